//! Results as other programs take them: the table as Markdown, values one by one. A file for each.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::analysis::summary::Summary;
use crate::record::Record;
use crate::results::directory::OpenedFile;
use crate::show::{csv, table};
use crate::text::exit::Result;
use crate::text::nearest;

type Content = fn(&Summary, &[Record]) -> String;

/// Formats that results can be written in: name, the file of a directory that each is written to, and its text.
const FORMATS: [(&str, &str, Content); 2] = [
    ("markdown", "table.md", |summary, _| markdown(summary)),
    ("csv", "runs.csv", |summary, records| csv::runs(&summary.outline, records)),
];

/// The place of a format among [`FORMATS`], and the file that is asked for; `-` is standard output.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Export {
    format: usize,
    file: Option<PathBuf>,
}

impl FromStr for Export {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (word, file) = text.split_once('=').map_or((text, None), |(word, file)| (word, Some(file)));
        let names = FORMATS.map(|(name, ..)| name);
        let format = names.iter().position(|name| *name == word);
        let format = format.ok_or_else(|| nearest::unknown_of_few("format", word, &names))?;
        if file == Some("") {
            return Err(format!("{word}= names no file: leave the = out, or write {word}=FILE"));
        }
        Ok(Self { format, file: file.map(PathBuf::from) })
    }
}

impl Export {
    /// Whether it goes to standard output, where nothing else goes then.
    pub(crate) fn is_stdout(&self) -> bool {
        self.file.as_deref().is_some_and(|file| file.as_os_str() == "-")
    }

    /// The file to write: without one that was asked for, that of its format in `directory`.
    pub(crate) fn path(&self, directory: &Path) -> PathBuf {
        directory.join(FORMATS[self.format].1)
    }

    pub(crate) fn content(&self, summary: &Summary, records: &[Record]) -> String {
        FORMATS[self.format].2(summary, records)
    }
}

/// Exports with the files that were asked for, which are open.
#[derive(Debug, Default)]
pub(crate) struct Exports(pub(crate) Vec<(Export, Option<OpenedFile>)>);

impl Exports {
    pub(crate) fn open(exports: &[Export]) -> Result<Self> {
        let open = |export: &Export| {
            let file = export.file.as_deref().filter(|_| !export.is_stdout());
            let opened = file.map(|file| OpenedFile::open("--export", file)).transpose()?;
            Ok((export.clone(), opened))
        };
        exports.iter().map(open).collect::<Result<_>>().map(Self)
    }
}

/// The table, whose figures stand at the right, and all up to the arm's name at the left.
pub(super) fn markdown(summary: &Summary) -> String {
    let grid = table::grid(summary);
    let mut text = format!("### {}\n\n{}\n\n", escape(&summary.outline.title), table::extent_line(summary));
    let line = |fields: Vec<String>| format!("| {} |\n", fields.join(" | "));
    let alignment = (0..grid.header.len()).map(|i| if i <= grid.names_at { "---" } else { "---:" });
    text += &line(grid.header.iter().map(|heading| escape(heading)).collect());
    text += &line(alignment.map(String::from).collect());
    for fields in grid.groups.iter().flatten() {
        text += &line(fields.iter().map(|field| escape(&field.text)).collect());
    }
    for line in grid.notes {
        let _ = writeln!(text, "\n{}", escape(&line));
    }
    text
}

/// Text in which nothing is taken for a mark.
fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        if "\\`*_{}[]<>#|~".contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::synthetic::{Sketch, World};

    #[test]
    fn every_row_has_the_headers_fields_whatever_the_names() {
        let sketch = Sketch::new().axis("ratio", &["1", "8"]).arm("a|b", "tas").arm("c", "mcs");
        let summary = World::new(1).summary(&sketch.compare("c/a", "c", "a|b").plan(8));
        let text = markdown(&summary);
        let rows: Vec<&str> = text.lines().filter(|line| line.starts_with('|')).collect();
        let fields = |line: &str| line.replace("\\|", "").matches('|').count();
        assert_eq!(rows.len(), 2 + summary.rows.len(), "{text}");
        assert!(rows.iter().all(|row| fields(row) == fields(rows[0])), "{text}");
        assert!(text.contains("a\\|b") && rows[1].starts_with("| --- | --- | ---: |"), "{text}");
        assert!(!text.contains('\u{1b}'), "no colours: {text}");
    }
}
