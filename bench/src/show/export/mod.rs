//! Results as other programs take them: a table, values one by one. A file for each.

mod markdown;

use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::analysis::summary::Summary;
use crate::record::Record;
use crate::results::opened::OpenedFile;
use crate::show::csv;
use crate::text::exit::Result;
use crate::text::nearest;

/// Formats that results can be written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExportFormat {
    Markdown,
    Csv,
}

/// A format, and the file that is asked for; `-` is standard output.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Export {
    pub(crate) format: ExportFormat,
    file: Option<PathBuf>,
}

impl ExportFormat {
    /// All of them, by name, with the file of a directory that each is written to.
    const ALL: [(Self, &'static str, &'static str); 2] =
        [(Self::Markdown, "markdown", "table.md"), (Self::Csv, "csv", "runs.csv")];
}

impl FromStr for Export {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (word, file) = text.split_once('=').map_or((text, None), |(word, file)| (word, Some(file)));
        let names = ExportFormat::ALL.map(|(_, name, _)| name);
        let found = ExportFormat::ALL.into_iter().find(|(_, name, _)| *name == word);
        let (format, ..) = found.ok_or_else(|| nearest::unknown_of_few("format", word, &names))?;
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
        let (.., name) =
            ExportFormat::ALL.into_iter().find(|(format, ..)| *format == self.format).expect("all are there");
        directory.join(name)
    }

    /// The text that is written.
    pub(crate) fn content(&self, summary: &Summary, records: &[Record]) -> String {
        match self.format {
            ExportFormat::Markdown => markdown::write(summary),
            ExportFormat::Csv => csv::runs(&summary.outline, records),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_goes_to_its_own_file_or_to_a_given_one() {
        let export: Export = "markdown".parse().unwrap();
        assert_eq!(export.path(Path::new("results")), Path::new("results/table.md"));
        let export: Export = "csv=paper/runs.csv".parse().unwrap();
        assert_eq!(export.file.as_deref(), Some(Path::new("paper/runs.csv")));
        assert!("csv=-".parse::<Export>().unwrap().is_stdout());
        for (text, complaint) in [
            ("markdwn", "unknown format 'markdwn': did you mean 'markdown'? There is markdown, csv"),
            ("csv=", "csv= names no file"),
        ] {
            let error = text.parse::<Export>().unwrap_err();
            assert!(error.starts_with(complaint), "{error}");
        }
    }
}
