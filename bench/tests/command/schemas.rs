//! The formats that users parse, as of their last intended change.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use crate::support::{code, haltkick, stderr, stdout, trials};

trials![every_schema_is_as_it_was_last_changed_on_purpose];

/// Set, it writes the files anew.
const WRITE: &str = "HALTKICK_WRITE_SCHEMAS";

fn directory() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/schemas"))
}

/// Formats of `haltkick schema`.
fn formats() -> BTreeSet<String> {
    let help = stdout(&haltkick(&["schema", "--help"]));
    let listed = help.lines().filter_map(|line| line.trim().strip_prefix("- ")?.split_once(':'));
    listed.map(|(format, _)| format.to_owned()).collect()
}

fn every_schema_is_as_it_was_last_changed_on_purpose() {
    let mut changed = Vec::new();
    for format in formats() {
        let output = haltkick(&["schema", &format]);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        let (printed, path) = (stdout(&output), directory().join(format!("{format}.json")));
        if std::env::var_os(WRITE).is_some() {
            fs::write(&path, &printed).expect("a file in the repository");
        }
        let kept = fs::read_to_string(&path).unwrap_or_default();
        if let Some(difference) = first_difference(&kept, &printed) {
            changed.push(format!("{}: {difference}", path.display()));
        }
    }
    assert!(
        changed.is_empty(),
        "`haltkick schema` prints something else than is kept:\n{}\n\
         Somebody parses this. If the change is meant, write the files anew and commit them:\n    \
         {WRITE}=1 cargo test --package haltkick --test command schemas::\n\
         Fields may come in, optional where old files are read. One that goes, or gets another name, unit or meaning, makes \
         another `schema_version` than that of the last release. Either is a line in CHANGELOG.md.",
        changed.join("\n")
    );
    let kept = fs::read_dir(directory()).expect("the directory of schemas");
    let kept = kept.map(|file| file.expect("a file").file_name().to_string_lossy().into_owned());
    let expected = formats().into_iter().map(|format| format!("{format}.json")).collect::<BTreeSet<_>>();
    assert_eq!(kept.collect::<BTreeSet<_>>(), expected, "kept, and printed");
    assert!(expected.contains("run.json"), "{expected:?}");
}

/// The first line that differs, of what is kept and of what is printed.
fn first_difference(kept: &str, printed: &str) -> Option<String> {
    if kept == printed {
        return None;
    }
    let (mut kept, mut printed) = (kept.lines(), printed.lines());
    for number in 1.. {
        let lines = (kept.next(), printed.next());
        if lines.0 != lines.1 || lines.0.is_none() {
            let [kept, printed] = [lines.0, lines.1].map(|line| line.map_or("nothing", str::trim));
            return Some(format!("line {number} was `{kept}` and is `{printed}`"));
        }
    }
    unreachable!("one of them ends")
}
