//! An experiment's directory: whole files appear complete or not at all, records are appended one by one.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use crate::exit::{Exit, Failure, Result};
use crate::record::{Record, SCHEMA, SCHEMA_VERSION};

pub(crate) const MANIFEST: &str = "manifest.json";
pub(crate) const RUNS: &str = "runs.jsonl";

/// A directory that takes results.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    runs: File,
}

impl Directory {
    /// A new or empty directory.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        fs::create_dir_all(path).map_err(|error| unwritable(path, &error))?;
        // An empty runs.jsonl alone is what a run leaves that was killed before its first record.
        let has_records = fs::metadata(path.join(RUNS)).is_ok_and(|runs| runs.len() > 0);
        if path.join(MANIFEST).exists() || has_records {
            return Err(Failure::usage(format!(
                "{} already holds an experiment: choose another --output directory",
                path.display()
            )));
        }
        Self::open(path)
    }

    /// A directory that holds an experiment, to add to it. What a killed run left of a line is cut off.
    pub(crate) fn reopen(path: &Path) -> Result<Self> {
        let directory = Self::open(path)?;
        let runs = path.join(RUNS);
        let failed = |error| unwritable(&runs, &error);
        let bytes = fs::read(&runs).map_err(failed)?;
        let complete = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        if complete < bytes.len() {
            directory.runs.set_len(complete as u64).map_err(failed)?;
        }
        Ok(directory)
    }

    fn open(path: &Path) -> Result<Self> {
        let runs = OpenOptions::new()
            .create(true)
            .append(true)
            .open(path.join(RUNS))
            .map_err(|error| unwritable(path, &error))?;
        Ok(Self { path: path.to_owned(), runs })
    }

    /// A directory that is new, or that other processes may be adding records to.
    pub(crate) fn join(path: &Path) -> Result<Self> {
        fs::create_dir_all(path).map_err(|error| unwritable(path, &error))?;
        Self::open(path)
    }

    pub(crate) fn has_manifest(&self) -> bool {
        self.path.join(MANIFEST).exists()
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes what was made for an experiment of which nothing was measured.
    pub(crate) fn discard(self) {
        if fs::metadata(self.path.join(RUNS)).is_ok_and(|file| file.len() == 0) && !self.has_manifest() {
            let _ = fs::remove_file(self.path.join(RUNS));
        }
        let _ = fs::remove_dir(&self.path); // fails, rightly, if the directory holds something else
    }

    /// Writes a whole file: under another name first, so that no reader sees half of it.
    pub(crate) fn write(&self, name: &str, content: &str) -> Result<()> {
        write_whole(&self.path.join(name), content)
    }

    /// Appends one record.
    pub(crate) fn append(&mut self, json_line: &str) -> Result<()> {
        let failed = |error| Failure::internal(format!("{}: {error}", self.path.join(RUNS).display()));
        self.runs
            .write_all(format!("{json_line}\n").as_bytes())
            .and_then(|()| self.runs.flush())
            .map_err(failed)
    }
}

/// Writes a file so that it is there completely or not at all.
pub(crate) fn write_whole(path: &Path, content: &str) -> Result<()> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(format!(".partial-{}", std::process::id()));
    let partial = PathBuf::from(partial);
    fs::write(&partial, content)
        .and_then(|()| fs::rename(&partial, path))
        .map_err(|error| Failure::internal(format!("{}: {error}", path.display())))
}

/// All records of a directory. A last line without its end is the mark of a killed run and is left out.
pub(crate) fn read_records(directory: &Path) -> Result<Vec<Record>> {
    let path = directory.join(RUNS);
    let text = fs::read_to_string(&path).map_err(|error| {
        Failure::usage(format!("{}: {error}: give a directory that `haltkick bench` made", path.display()))
    })?;
    let complete = text.rfind('\n').map_or("", |end| &text[..=end]);
    complete.lines().enumerate().map(|(i, line)| parse_record(&path, i + 1, line)).collect()
}

fn parse_record(path: &Path, line_number: usize, line: &str) -> Result<Record> {
    let complain = |message: String| Failure::usage(format!("{}:{line_number}: {message}", path.display()));
    let value: serde_json::Value = serde_json::from_str(line)
        .map_err(|error| complain(format!("no JSON ({error}): remove the line, or restore the file")))?;
    match (value["schema"].as_str(), value["schema_version"].as_u64()) {
        (Some(SCHEMA), Some(version)) if version == u64::from(SCHEMA_VERSION) => {}
        (Some(SCHEMA), version) => {
            let version = version.map_or("no version".into(), |version| format!("version {version}"));
            return Err(complain(format!(
                "a record of {version}, where this haltkick reads version {SCHEMA_VERSION}: use the haltkick that wrote it"
            )));
        }
        (other, _) => {
            let other = other.map_or("nothing".into(), |name| format!("'{name}'"));
            return Err(complain(format!("schema is {other}, not '{SCHEMA}': this is no run record")));
        }
    }
    serde_json::from_value(value)
        .map_err(|error| complain(format!("a broken record ({error}): remove the line, or restore the file")))
}

fn unwritable(path: &Path, error: &std::io::Error) -> Failure {
    let hint = match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            ": choose a writable one with --output"
        }
        ErrorKind::AlreadyExists | ErrorKind::NotADirectory => {
            ": a file is in the way, choose another --output"
        }
        _ => "",
    };
    Failure { exit: Exit::Usage, message: format!("output directory {}: {error}{hint}", path.display()) }
}
