//! The keys of an experiment about the Linux guest that an arm boots.

use std::collections::BTreeMap;

use super::keys;
use super::source::At;
use super::workload_inside::WorkloadInside;

/// The keys of a file about the kernel that an arm boots, or all arms: their values with the places where they were given. A
/// value without a place came from the command line.
#[derive(Clone, Debug, Default)]
pub(crate) struct Boot(BTreeMap<&'static str, (String, Option<At>)>);

/// Whether `key` says something of a kernel, rather than being a setting.
pub(crate) fn boots(key: &str) -> bool {
    keys::BOOT.contains(&key)
}

impl Boot {
    /// Sets one of [`keys::BOOT`] from text.
    pub(super) fn set(&mut self, key: &str, value: &str, at: Option<At>) -> Result<(), String> {
        // No words for the command line are a choice; a file without a name is none.
        if value.is_empty() && key != keys::CMDLINE {
            return Err(format!("'{key}' must be a text in quotes"));
        }
        if key == keys::NOPVSPIN && value.parse::<bool>().is_err() {
            return Err(format!("'{key}' must be true or false"));
        }
        if key == keys::WORKLOAD_INSIDE {
            WorkloadInside::read(value).map_err(|message| format!("'{key}': {message}"))?;
        }
        let key = keys::BOOT.iter().find(|known| **known == key).expect("the caller has looked");
        self.0.insert(key, (value.to_owned(), at));
        Ok(())
    }

    /// `self` where it says something, `below` elsewhere; but of the command line both, that of `below` first.
    pub(super) fn over(&self, below: &Self) -> Self {
        let mut both = below.clone();
        for (key, (text, at)) in &self.0 {
            let first = below.text(key).filter(|_| *key == keys::CMDLINE);
            let said = [first.unwrap_or_default(), text].into_iter().filter(|words| !words.is_empty());
            both.0.insert(key, (said.collect::<Vec<_>>().join(" "), at.clone()));
        }
        both
    }

    /// The value of `key`, if it is given.
    pub(super) fn text(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(|(text, _)| text.as_str())
    }

    /// The place where `key` was given, if it was: `Some(None)` is the command line.
    pub(super) fn place(&self, key: &str) -> Option<Option<&At>> {
        self.0.get(key).map(|(_, at)| at.as_ref())
    }

    /// The keys that are given, each with its place.
    pub(super) fn said(&self) -> impl Iterator<Item = (&'static str, Option<&At>)> {
        keys::BOOT.iter().filter_map(|key| Some((*key, self.place(key)?)))
    }
}
