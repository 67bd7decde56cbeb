//! Results that the repository keeps in `docs/results`, made by `just keep-results`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The pages of docs and of its folders of pages.
pub(crate) fn pages() -> Vec<PathBuf> {
    let folders =
        ["docs", "docs/studies"].map(|folder| fs::read_dir(root().join(folder)).expect("a folder of pages"));
    let files = folders.into_iter().flatten().flatten().map(|file| file.path());
    files.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect()
}

/// A figure of a record, in its base unit (ratio, per second, nanoseconds).
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    pub(crate) value: f64,
    pub(crate) interval: Option<(f64, f64)>,
}

/// The results of one experiment.
#[derive(Debug)]
pub(crate) struct Record {
    figures: Vec<(String, BTreeSet<String>, Figure)>,
    /// The host and the runs; null for the published figures of all experiments.
    pub(crate) facts: Value,
    /// The table as `haltkick report` prints it.
    pub(crate) table: String,
}

impl Record {
    pub(crate) fn at(folder: &Path) -> Self {
        let text = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
        let facts = serde_json::from_str(&text("record.json")).unwrap_or_default();
        let figures = text("figures.tsv").lines().map(figure).collect();
        Self { figures, facts, table: text("table.txt") }
    }

    /// All figures of this name whose settings contain the given ones.
    pub(crate) fn find(&self, name: &str, settings: &BTreeSet<String>) -> Vec<&Figure> {
        let is_meant = |it: &&(String, BTreeSet<String>, Figure)| it.0 == name && it.1.is_superset(settings);
        self.figures.iter().filter(is_meant).map(|(.., figure)| figure).collect()
    }
}

fn figure(line: &str) -> (String, BTreeSet<String>, Figure) {
    let fields: Vec<&str> = line.split('\t').collect();
    let [name, setting, value, ends @ ..] = &fields[..] else { panic!("three fields or more: {line}") };
    let number = |text: &&str| text.parse::<f64>().ok();
    let interval = match ends {
        [low, high] => number(low).zip(number(high)),
        _ => None,
    };
    let value = number(value).unwrap_or_else(|| panic!("a number: {line}"));
    (name.to_string(), setting.split_whitespace().map(String::from).collect(), Figure { value, interval })
}

/// All records by name.
pub(crate) fn records() -> BTreeMap<String, Record> {
    let folders = fs::read_dir(root().join("docs/results")).into_iter().flatten().flatten();
    let folders = folders.filter(|folder| folder.path().is_dir());
    folders
        .map(|folder| (folder.file_name().to_string_lossy().into_owned(), Record::at(&folder.path())))
        .collect()
}

/// The published figures that `haltkick reproduce` knows.
pub(crate) fn published() -> Vec<f64> {
    let folder = root().join("bench/src/commands/reproduce/seeds");
    let mut found = Vec::new();
    for file in fs::read_dir(folder).expect("the rows of `haltkick reproduce`").flatten() {
        let text = fs::read_to_string(file.path()).expect("a source file");
        // Outside of strings, nearly all numbers with a decimal point are published figures.
        let code: String = text.split('"').step_by(2).collect();
        let words = code.split(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_'));
        found.extend(
            words
                .filter(|word| word.contains('.'))
                .filter_map(|word| word.replace('_', "").parse::<f64>().ok()),
        );
    }
    found
}
