//! TOML files in which every value names its source: machines and hosts.
//!
//! ```toml
//! [sources]
//! PB = { grade = "A", text = "perfbook, raw data of an 8-socket Xeon 8176" }
//!
//! [line]
//! socket-ns = { value = 47.5, source = "PB" }
//! ```

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// The version of both formats that this program reads.
const FORMAT: u32 = 1;

/// A fault in such a file.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{kind} file {name}: {what}")]
pub struct FileError {
    /// What it describes.
    pub kind: &'static str,
    /// The file, or the preset.
    pub name: String,
    /// Place, fault, and remedy.
    pub what: String,
}

/// Origin of values.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Source {
    #[serde(rename = "grade")]
    _grade: Grade,
    #[serde(rename = "text")]
    _text: String,
}

/// Reliability of a source: A, read in the source itself; B, quoted by another text; C, recalled; D, arithmetic on such; E, a guess;
/// M, measured on the machine itself.
#[derive(Deserialize)]
enum Grade {
    A,
    B,
    C,
    D,
    E,
    M,
}

/// The table `[sources]`, by key.
#[derive(Deserialize)]
pub(crate) struct Sources(BTreeMap<String, Source>);

/// A value with a key of [`Sources`].
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "{ value = ..., source = \"...\" }")]
pub(crate) struct Sourced<T> {
    /// In the unit that its key names.
    value: T,
    source: String,
}

/// A number with its source.
pub(crate) type Figure = Sourced<f64>;

impl Sources {
    /// Refuses a source that the file does not have; `key` is for the message.
    pub(crate) fn check(&self, key: &str, source: &str) -> Result<(), String> {
        if self.0.contains_key(source) {
            return Ok(());
        }
        let known: Vec<&str> = self.0.keys().map(String::as_str).collect();
        Err(format!("{key}: source `{source}` is not among [sources]: {}", known.join(" ")))
    }

    /// The value of `key`, if its source is known.
    pub(crate) fn of<T: Copy>(&self, key: &str, sourced: &Sourced<T>) -> Result<T, String> {
        self.check(key, &sourced.source).map(|()| sourced.value)
    }

    /// The number of `key` between two bounds, in its own unit.
    pub(crate) fn number(&self, key: &str, figure: &Figure, least: f64, most: f64) -> Result<f64, String> {
        let value = self.of(key, figure)?;
        if (least..=most).contains(&value) {
            return Ok(value);
        }
        Err(format!("{key} is {value}: it must be {least} to {most}"))
    }
}

/// The tables of a text, whose format is what `format` takes from them. Else the fault, with its line.
pub(crate) fn read<F: DeserializeOwned>(text: &str, format: impl Fn(&F) -> u32) -> Result<F, String> {
    let file: F = toml::from_str(text).map_err(|error| one_line(&error, text))?;
    match format(&file) {
        FORMAT => Ok(file),
        other => Err(format!("format {other} is unknown: this version reads format {FORMAT}")),
    }
}

fn one_line(error: &toml::de::Error, text: &str) -> String {
    let line =
        error.span().and_then(|span| text.get(..span.start)).map(|before| before.matches('\n').count() + 1);
    let place = line.map(|line| format!("line {line}: ")).unwrap_or_default();
    format!("{place}{}", error.message().lines().collect::<Vec<_>>().join("; "))
}
