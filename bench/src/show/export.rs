//! The table as Markdown, for issues and pages.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::str::FromStr;

use crate::analysis::summary::Summary;
use crate::results::directory::OpenedFile;
use crate::show::table;
use crate::text::exit::Result;
use crate::text::nearest;

/// A value of `--export`: the file that is asked for, if any; `-` is standard output.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Asked(Option<PathBuf>);

impl FromStr for Asked {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        const WORD: &str = "markdown";
        let (word, file) = text.split_once('=').map_or((text, None), |(word, file)| (word, Some(file)));
        match file {
            _ if word != WORD => Err(nearest::unknown_of_few("format", word, &[WORD])),
            Some("") => Err(format!("{word}= names no file: leave the = out, or write {word}=FILE")),
            file => Ok(Self(file.map(PathBuf::from))),
        }
    }
}

/// Destination of the table, with a file that is open if one was asked for.
#[derive(Debug)]
pub(crate) enum Export {
    /// Standard output, which then has nothing else.
    Stdout,
    /// A file of the results' directory.
    Directory,
    File(OpenedFile),
}

impl Export {
    pub(crate) fn open(asked: &[Asked]) -> Result<Vec<Self>> {
        let open = |Asked(file): &Asked| match file {
            None => Ok(Self::Directory),
            Some(file) if file.as_os_str() == "-" => Ok(Self::Stdout),
            Some(file) => OpenedFile::open("--export", file).map(Self::File),
        };
        asked.iter().map(open).collect()
    }
}

/// The table, whose figures stand at the right, and all up to the arm's name at the left.
pub(crate) fn markdown(summary: &Summary) -> String {
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
