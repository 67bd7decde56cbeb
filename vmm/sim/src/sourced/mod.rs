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
use serde::de::{DeserializeOwned, Deserializer, Error as _};
use thiserror::Error;
use toml::de::{DeTable, DeValue};

/// The version of both formats that this program reads.
const FORMAT: u32 = 1;

/// The longest time, a second.
const MOST_NS: f64 = 1e9;
const MOST_US: f64 = 1e6;

/// Begins a message that lacks its key.
const IS: &str = "is ";

/// A fault in such a file.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{kind} file {name}: {what}")]
pub struct FileError {
    /// The kind of thing that it describes.
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
struct Sourced<T> {
    /// In the unit that its key names.
    value: T,
    #[serde(rename = "source")]
    _source: String,
}

pub(crate) fn between(value: f64, least: f64, most: f64) -> Result<f64, String> {
    if (least..=most).contains(&value) {
        return Ok(value);
    }
    Err(format!("{IS}{value}: it must be {least} to {most}"))
}

/// Deserializes a value with its source.
pub(crate) fn value<'d, T: Deserialize<'d>, D: Deserializer<'d>>(from: D) -> Result<T, D::Error> {
    Ok(Sourced::deserialize(from)?.value)
}

/// Deserializes a number from 0 to `MOST` thousandths, which is a choice and has no source.
pub(crate) fn choice<'d, const MOST: u64, D: Deserializer<'d>>(from: D) -> Result<f64, D::Error> {
    between(f64::deserialize(from)?, 0.0, MOST as f64 / 1000.0).map_err(D::Error::custom)
}

/// Reads a number between two bounds, in the unit of the text, and returns `factor` times that.
fn scaled<'d, D: Deserializer<'d>>(from: D, least: f64, most: f64, factor: f64) -> Result<u64, D::Error> {
    Ok((between(value(from)?, least, most).map_err(D::Error::custom)? * factor).round() as u64)
}

/// Deserializes numbers from `LEAST` to `MOST`, each with its source, as thousandths: factors, or nanoseconds as picoseconds.
pub(crate) fn thousandths<'d, const LEAST: u64, const MOST: u64, D: Deserializer<'d>>(
    from: D,
) -> Result<Vec<u64>, D::Error> {
    let (least, most) = (LEAST as f64, MOST as f64);
    let figures = Vec::<Sourced<f64>>::deserialize(from)?.into_iter();
    let within = figures.map(|it| between(it.value, least, most).map(|it| (it * 1000.0).round() as u64));
    within.collect::<Result<_, _>>().map_err(D::Error::custom)
}

/// Deserializes a whole number from `LEAST` to `MOST`, with its source.
pub(crate) fn whole<'d, const LEAST: u64, const MOST: u64, T: TryFrom<u64>, D: Deserializer<'d>>(
    from: D,
) -> Result<T, D::Error> {
    let number = between(value(from)?, LEAST as f64, MOST as f64).map_err(D::Error::custom)? as u64;
    T::try_from(number).map_err(|_| D::Error::custom("too large for its type"))
}

/// Deserializes a share or a factor between `LEAST` and `MOST` thousandths, with its source, as thousandths.
pub(crate) fn permille<'d, const LEAST: u64, const MOST: u64, D: Deserializer<'d>>(
    from: D,
) -> Result<u64, D::Error> {
    scaled(from, LEAST as f64 / 1000.0, MOST as f64 / 1000.0, 1000.0)
}

/// Deserializes a time from `LEAST` microseconds on, with its source, as nanoseconds.
pub(crate) fn us<'d, const LEAST: u64, D: Deserializer<'d>>(from: D) -> Result<u64, D::Error> {
    scaled(from, LEAST as f64, MOST_US, 1000.0)
}

/// Deserializes a time in microseconds, with its source, as picoseconds.
pub(crate) fn us_as_ps<'d, D: Deserializer<'d>>(from: D) -> Result<u64, D::Error> {
    scaled(from, 0.0, MOST_US, 1e6)
}

/// Deserializes a time in nanoseconds, with its source, as picoseconds.
pub(crate) fn ns<'d, D: Deserializer<'d>>(from: D) -> Result<u64, D::Error> {
    scaled(from, 0.0, MOST_NS, 1000.0)
}

/// Deserializes a frequency in GHz, with its source, as kHz.
pub(crate) fn ghz<'d, D: Deserializer<'d>>(from: D) -> Result<u64, D::Error> {
    scaled(from, 0.1, 10.0, 1e6)
}

/// Declares what is built in: the type of its files, and a list of them.
macro_rules! built_in {
    ($(#[$doc:meta])* $preset:ident, $kind:ident by $method:ident from $directory:literal: $($name:literal),* $(,)?) => {
        /// A file that is built in.
        #[derive(Clone, Copy, Debug)]
        pub struct $preset {
            /// Its name on the command line.
            pub name: &'static str,
            /// Its file.
            pub text: &'static str,
        }

        impl $preset {
            /// Reads its file, which is built in.
            ///
            /// # Panics
            /// If its file is bad: a test reads all of them.
            #[must_use]
            pub fn $method(&self) -> $kind {
                $kind::parse(self.name, self.text).expect("the files of the presets are tested")
            }
        }

        $(#[$doc])*
        #[must_use]
        pub const fn presets() -> &'static [$preset] {
            &[$(
                $preset { name: $name, text: include_str!(concat!("../../", $directory, "/", $name, ".toml")) }
            ),*]
        }
    };
}

pub(crate) use built_in;

/// Tells of each table that names its source, in `table`, which is at `key`: its own key, itself, and the source.
pub(crate) fn each_sourced(key: &str, table: &DeTable<'_>, tell: &mut impl FnMut(&str, &DeTable<'_>, &str)) {
    if let Some(source) = table.get("source").and_then(|source| source.get_ref().as_str()) {
        tell(key, table, source);
    }
    for (inner, value) in table {
        let dot = if key.is_empty() { "" } else { "." };
        let key = format!("{key}{dot}{}", inner.get_ref());
        match value.get_ref() {
            DeValue::Table(table) => each_sourced(&key, table, tell),
            DeValue::Array(values) => {
                for (i, value) in values.iter().enumerate() {
                    if let DeValue::Table(table) = value.get_ref() {
                        each_sourced(&format!("{key}[{i}]"), table, tell);
                    }
                }
            }
            _ => {}
        }
    }
}

/// The tables of a text, whose format and sources are what `head` takes from them. Else the fault, with its line or key.
pub(crate) fn read<F: DeserializeOwned>(
    text: &str,
    head: impl Fn(&F) -> (u32, &Sources),
) -> Result<F, String> {
    let file: F = toml::from_str(text).map_err(|error| one_line(error, text))?;
    let (format, known) = head(&file);
    if format != FORMAT {
        return Err(format!("format {format} is unknown: this version reads format {FORMAT}"));
    }
    let table = DeTable::parse(text).map_err(|error| one_line(error, text))?;
    let mut unknown = None;
    each_sourced("", table.get_ref(), &mut |key, _, source| {
        if unknown.is_none() && !known.0.contains_key(source) {
            // The key as the file has it, without places in arrays.
            let key: String = key.split(['[', ']']).step_by(2).collect();
            let known: Vec<&str> = known.0.keys().map(String::as_str).collect();
            unknown = Some(format!("{key}: source `{source}` is not among [sources]: {}", known.join(" ")));
        }
    });
    unknown.map_or(Ok(file), Err)
}

fn one_line(mut error: toml::de::Error, text: &str) -> String {
    let message = error.message().lines().collect::<Vec<_>>().join("; ");
    if message.starts_with(IS) {
        // Without the text an error tells its key instead.
        error.set_input(None);
        let told = error.to_string();
        return format!("{} {message}", told.split('`').nth(1).unwrap_or_default());
    }
    let line =
        error.span().and_then(|span| text.get(..span.start)).map(|before| before.matches('\n').count() + 1);
    let place = line.map(|line| format!("line {line}: ")).unwrap_or_default();
    format!("{place}{message}")
}
