//! The source of an experiment's text, and how complaints name a place in it.

use std::ops::Range;
use std::path::Path;
use std::{fmt, fs};

use haltkick_vmm::input;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::text::exit::{Failure, Result};
use crate::text::nearest;
use crate::text::output::clean;

/// The origin of an experiment that `haltkick sweep` was asked for: its text is generated.
pub(crate) const SWEEP: &str = "haltkick sweep";

pub(super) const FORMAT: i64 = 1;
/// The longest built-in experiment has 20 KiB.
const MOST_TEXT_BYTES: u64 = 1 << 20;

/// Name and text of experiments in the folder of those that come with the program.
macro_rules! built_in {
    ($($name:literal)*) => {
        [$(($name, include_str!(concat!("../../experiments/", $name, ".toml")))),*]
    };
}

pub(crate) const BUILT_IN: [(&str, &str); 34] = built_in! {
    "overcommit" "phase-map" "production" "ratio-one" "locks" "which-lock" "judge" "qspinlock"
    "spin-threshold" "unfair" "work-conserving" "osq" "sleeping-locks" "hostile" "remedies" "quota"
    "fold" "fault" "grant" "grant-options" "grant-writer" "rwlock" "sim-fold" "sim-native" "sim-pv"
    "sim-fault" "sim-osq" "sim-queue" "sim-grant" "sim-ple" "switch-on" "sim-switch-on" "sim-production"
    "aa"
};

#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// A path, or the name of a built-in experiment.
    pub(crate) origin: String,
    pub(crate) text: String,
}

/// Byte range in the source.
pub(crate) type At = Range<usize>;

impl Source {
    /// A built-in experiment by name, or a file by path.
    pub(crate) fn find(name: &str) -> Result<Self> {
        if let Some((origin, text)) = BUILT_IN.iter().find(|(built_in, _)| *built_in == name) {
            return Ok(Self { origin: (*origin).into(), text: (*text).into() });
        }
        let is_path = name.contains('/') || name.ends_with(".toml") || fs::exists(name).unwrap_or(false);
        if !is_path {
            let names = BUILT_IN.map(|(name, _)| name);
            return Err(Failure::usage(format!(
                "{} (a file is given by its path: more stand in examples/experiments)",
                nearest::unknown("experiment", name, &names)
            )));
        }
        Self::read(Path::new(name), "give a readable file or a built-in name")
    }

    /// A file by path. Where it cannot be read, `advice` says what to do.
    pub(super) fn read(path: &Path, advice: &str) -> Result<Self> {
        let text = input::read_piped_text(path, MOST_TEXT_BYTES)
            .map_err(|error| Failure::usage(format!("{}: {error}: {advice}", path.display())))?;
        Ok(Self { origin: path.display().to_string(), text })
    }

    pub(super) fn tree(&self) -> Result<Spanned<DeTable<'_>>> {
        let tree = DeTable::parse(&self.text).map_err(|error| {
            let message = error.message().lines().collect::<Vec<_>>().join(", ");
            self.complain(error.span().as_ref(), message)
        })?;
        // Names and titles go to terminals.
        match unprintable(tree.get_ref()) {
            Some(at) => Err(self.complain(Some(&at), "a control character, which no name or value has")),
            None => Ok(tree),
        }
    }

    /// Line and column where a place begins, counted from 1.
    pub(crate) fn line_and_column(&self, at: &At) -> (usize, usize) {
        let before = &self.text[..at.start.min(self.text.len())];
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        (before.matches('\n').count() + 1, column)
    }

    /// A complaint about the place `at`; a generated text is complained about without a place.
    pub(crate) fn complain(&self, at: Option<&At>, message: impl fmt::Display) -> Failure {
        if self.origin == SWEEP {
            return Failure::usage(format!("sweep: {message}"));
        }
        let (line, column) = self.line_and_column(at.unwrap_or(&(0..0)));
        Failure::experiment(format!("{}:{line}:{column}: {message}", self.origin))
    }
}

/// The first text in `table` that a terminal would not show as it is.
fn unprintable(table: &DeTable<'_>) -> Option<At> {
    table.iter().find_map(|(key, value)| match clean(key.get_ref()) == **key.get_ref() {
        true => unprintable_value(value),
        false => Some(key.span()),
    })
}

fn unprintable_value(value: &Spanned<DeValue<'_>>) -> Option<At> {
    match value.get_ref() {
        DeValue::String(text) => (clean(text) != **text).then(|| value.span()),
        DeValue::Array(values) => values.iter().find_map(unprintable_value),
        DeValue::Table(table) => unprintable(table),
        _ => None,
    }
}
