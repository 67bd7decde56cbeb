//! Counts that outlive the process: one number per line of a file, which is replaced as a whole.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Named counts.
pub(crate) struct Tally {
    path: PathBuf,
    counts: BTreeMap<String, u64>,
}

impl Tally {
    /// Reads the tally from `path`; empty if there is no such file.
    pub(crate) fn load(path: &Path) -> io::Result<Self> {
        let text = match fs::read_to_string(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            text => text?,
        };
        let parse = |line: &str| {
            let (name, count) = line.rsplit_once('\t')?;
            Some((name.to_owned(), count.parse().ok()?))
        };
        let counts = text.lines().map(|line| parse(line).ok_or_else(|| io::Error::other(line.to_owned())));
        Ok(Self { path: path.to_owned(), counts: counts.collect::<io::Result<_>>()? })
    }

    pub(crate) fn save(&self) -> io::Result<()> {
        if let Some(parent) = self.path.parent() {
            fs::create_dir_all(parent)?;
        }
        let lines: String = self.counts.iter().map(|(name, count)| format!("{name}\t{count}\n")).collect();
        let partial = self.path.with_extension("partial");
        fs::write(&partial, lines)?;
        fs::rename(&partial, &self.path)
    }

    pub(crate) fn get(&self, name: &str) -> u64 {
        self.counts.get(name).copied().unwrap_or(0)
    }

    pub(crate) fn add(&mut self, name: &str, more: u64) {
        *self.counts.entry(name.to_owned()).or_default() += more;
    }

    pub(crate) fn most(&mut self, name: &str, value: u64) {
        let most = self.counts.entry(name.to_owned()).or_default();
        *most = (*most).max(value);
    }

    pub(crate) fn least(&mut self, name: &str, value: u64) {
        let least = self.counts.entry(name.to_owned()).or_insert(u64::MAX);
        *least = (*least).min(value);
    }

    pub(crate) fn set(&mut self, name: &str, value: u64) {
        self.counts.insert(name.to_owned(), value);
    }

    /// All with their names.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, u64)> {
        self.counts.iter().map(|(name, count)| (name.as_str(), *count))
    }
}
