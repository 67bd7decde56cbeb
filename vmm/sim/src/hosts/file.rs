//! The files that describe the schedulers of hosts, some of which are built in.

use serde::Deserialize;

use crate::hosts::policy::{Balance, Cfs, Eevdf, Fair, Groups, Host, HostCosts, Invalidations, Pause, Poll};
use crate::sourced::{FileError, Sources, built_in, read, value, whole};

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    format: u32,
    name: String,
    title: String,
    sources: Sources,
    scheduler: SchedulerTable,
    eevdf: Option<Eevdf>,
    cfs: Option<Cfs>,
    halt_polling: Poll,
    balance: Balance,
    pause: Option<Pause>,
    costs: HostCosts,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct SchedulerTable {
    #[serde(deserialize_with = "whole::<24, 10_000, _, _>")]
    hz: u32,
    #[serde(deserialize_with = "value")]
    groups: Groups,
    #[serde(deserialize_with = "value")]
    heeds_hints: bool,
    #[serde(deserialize_with = "value")]
    kick_yields: bool,
    #[serde(deserialize_with = "value")]
    invalidations: Invalidations,
}

impl Host {
    /// Reads a host from the text of its file; `name` is for messages.
    ///
    /// # Errors
    /// [`FileError`]: what is wrong, where, and what would be right.
    pub fn parse(name: &str, text: &str) -> Result<Self, FileError> {
        let refuse = |what: String| FileError { kind: "host", name: name.into(), what };
        let file: File = read(text, |file: &File| (file.format, &file.sources)).map_err(refuse)?;
        let fair = match (file.eevdf, file.cfs) {
            (Some(it), None) => Fair::Eevdf(it),
            (None, Some(it)) => Fair::Cfs(it),
            _ => return Err(refuse("a host has either [eevdf] or [cfs]: give one of them".into())),
        };
        let SchedulerTable { hz, groups, heeds_hints, kick_yields, invalidations } = file.scheduler;
        Ok(Self {
            name: file.name,
            title: file.title,
            hz,
            fair,
            groups,
            heeds_hints,
            kick_yields,
            invalidations,
            poll: file.halt_polling,
            balance: file.balance,
            pause: file.pause,
            costs: file.costs,
            text: text.into(),
        })
    }
}

built_in! {
    /// All built-in hosts, the newest first.
    HostPreset, Host by host from "hosts": "linux-7.3", "linux-6.12", "cfs-2019", "cfs-2015"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(old: &str, new: &str) -> String {
        let good = presets()[0].text;
        let bad = good.replacen(old, new, 1);
        assert_ne!(bad, good, "the change did nothing");
        Host::parse("test", &bad).expect_err("the file is bad").to_string()
    }

    #[test]
    fn a_bad_file_is_refused_with_the_place_and_the_remedy() {
        for (old, new, message) in [
            ("format = 1", "format = 9", "format 9 is unknown"),
            ("hz = { value = ", "hz = { value = -", "scheduler.hz is -"),
            ("[eevdf]", "[efdve]", "unknown field `efdve`"),
            ("source = \"doc\"", "source = \"rumour\"", "source `rumour` is not among [sources]: "),
            ("value = \"concur\"", "value = \"most\"", "unknown variant `most`"),
        ] {
            assert!(refusal(old, new).contains(message), "{}", refusal(old, new));
        }
        let without = presets()[0].text.split("[eevdf]").next().unwrap().to_owned()
            + &presets()[0].text[presets()[0].text.find("[halt-polling]").unwrap()..];
        let error = Host::parse("test", &without).unwrap_err().to_string();
        assert!(error.contains("either [eevdf] or [cfs]"), "{error}");
    }
    #[test]
    fn every_preset_is_a_host_of_its_own_name() {
        for preset in presets() {
            assert_eq!(preset.host().name, preset.name);
        }
    }
}
