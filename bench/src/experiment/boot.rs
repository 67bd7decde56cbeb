//! The keys of an experiment about the Linux guest that an arm boots.

use super::keys;
use super::source::At;

/// The keys of a file about the kernel that an arm boots, or all arms; with the places.
#[derive(Clone, Debug, Default)]
pub(crate) struct Boot {
    pub(super) kernel: Said<String>,
    pub(super) initrd: Said<String>,
    pub(super) cmdline: Said<String>,
    pub(super) nopvspin: Said<bool>,
    pub(super) marker: Said<String>,
}

/// A value, and where it was given; without a place it came from the command line.
type Said<T> = Option<(T, Option<At>)>;

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
        let text = || Some((value.to_owned(), at.clone()));
        match key {
            "kernel" => self.kernel = text(),
            "initrd" => self.initrd = text(),
            keys::CMDLINE => self.cmdline = text(),
            "marker" => self.marker = text(),
            keys::NOPVSPIN => {
                let is_on = value.parse().map_err(|_| format!("'{key}' must be true or false"))?;
                self.nopvspin = Some((is_on, at));
            }
            other => unreachable!("{other} says nothing of a kernel"),
        }
        Ok(())
    }

    /// `self` where it says something, `below` elsewhere; but of the command line both, that of `below` first.
    pub(super) fn over(&self, below: &Self) -> Self {
        let cmdline = match (&self.cmdline, &below.cmdline) {
            (Some((words, at)), Some((first, _))) => {
                let both = [first, words].map(String::as_str);
                let said: Vec<&str> = both.into_iter().filter(|words| !words.is_empty()).collect();
                Some((said.join(" "), at.clone()))
            }
            (cmdline, first) => cmdline.clone().or_else(|| first.clone()),
        };
        Self {
            kernel: self.kernel.clone().or_else(|| below.kernel.clone()),
            initrd: self.initrd.clone().or_else(|| below.initrd.clone()),
            cmdline,
            nopvspin: self.nopvspin.clone().or_else(|| below.nopvspin.clone()),
            marker: self.marker.clone().or_else(|| below.marker.clone()),
        }
    }

    /// The place where `key` was given, if it was: `Some(None)` is the command line.
    pub(super) fn place(&self, key: &str) -> Option<Option<&At>> {
        let text = match key {
            "kernel" => &self.kernel,
            "initrd" => &self.initrd,
            keys::CMDLINE => &self.cmdline,
            "marker" => &self.marker,
            keys::NOPVSPIN => return self.nopvspin.as_ref().map(|(_, at)| at.as_ref()),
            _ => return None,
        };
        text.as_ref().map(|(_, at)| at.as_ref())
    }

    /// The keys that are given, each with its place.
    pub(super) fn said(&self) -> impl Iterator<Item = (&'static str, Option<&At>)> {
        keys::BOOT.iter().filter_map(|key| Some((*key, self.place(key)?)))
    }
}
