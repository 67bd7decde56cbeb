//! The files that describe the schedulers of hosts, some of which are built in.

use serde::Deserialize;

use crate::hosts::policy::{
    Balance, Cfs, Eevdf, Fair, Groups, Host, HostCosts, Invalidations, Pause, PauseCounter, Poll, Target,
};
use crate::sourced::{FileError, Sourced, Sources, read};

/// The longest time in a file, a second.
const MOST_US: f64 = 1e6;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    format: u32,
    name: String,
    title: String,
    sources: Sources,
    scheduler: SchedulerTable,
    eevdf: Option<EevdfTable>,
    cfs: Option<CfsTable>,
    halt_polling: PollTable,
    balance: BalanceTable,
    pause: Option<PauseTable>,
    costs: CostsTable,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct SchedulerTable {
    hz: Sourced<f64>,
    groups: Sourced<Groups>,
    heeds_hints: Sourced<bool>,
    kick_yields: Sourced<bool>,
    invalidations: Sourced<Invalidations>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct EevdfTable {
    base_slice_us: Sourced<f64>,
    exact_slices: Sourced<bool>,
    lazy: Sourced<bool>,
    delayed_dequeue: Sourced<bool>,
    yield_forfeits: Sourced<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct CfsTable {
    latency_us: Sourced<f64>,
    min_granularity_us: Sourced<f64>,
    wakeup_granularity_us: Sourced<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct PollTable {
    most_us: Sourced<f64>,
    start_us: Sourced<f64>,
    shrink: Sourced<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct BalanceTable {
    hot_us: Sourced<f64>,
    try_us: Sourced<f64>,
    by_chance: Sourced<bool>,
    patience: Sourced<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct PauseTable {
    counter: Sourced<PauseCounter>,
    gap: Sourced<f64>,
    window: Sourced<f64>,
    scan_us: Sourced<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct CostsTable {
    tick_us: Sourced<f64>,
    barrier_us: Sourced<f64>,
}

/// Turns given values into constants, and refuses those that cannot be.
struct Reader<'a>(&'a Sources);

impl Reader<'_> {
    fn ns(&self, key: &str, given: &Sourced<f64>, least_us: f64) -> Result<u64, String> {
        Ok((self.0.number(key, given, least_us, MOST_US)? * 1000.0).round() as u64)
    }

    fn fair(&self, file: &File) -> Result<Fair, String> {
        match (&file.eevdf, &file.cfs) {
            (Some(it), None) => Ok(Fair::Eevdf(Eevdf {
                base_slice_ns: self.ns("eevdf.base-slice-us", &it.base_slice_us, 10.0)?,
                exact: self.0.of("eevdf.exact-slices", &it.exact_slices)?,
                lazy: self.0.of("eevdf.lazy", &it.lazy)?,
                delayed: self.0.of("eevdf.delayed-dequeue", &it.delayed_dequeue)?,
                yield_forfeits: self.0.of("eevdf.yield-forfeits", &it.yield_forfeits)?,
            })),
            (None, Some(it)) => Ok(Fair::Cfs(Cfs {
                latency_ns: self.ns("cfs.latency-us", &it.latency_us, 10.0)?,
                min_granularity_ns: self.ns("cfs.min-granularity-us", &it.min_granularity_us, 10.0)?,
                wakeup_granularity_ns: self.ns(
                    "cfs.wakeup-granularity-us",
                    &it.wakeup_granularity_us,
                    0.0,
                )?,
            })),
            _ => Err("a host has either [eevdf] or [cfs]: give one of them".into()),
        }
    }

    fn pause(&self, table: &PauseTable) -> Result<Pause, String> {
        Ok(Pause {
            counter: self.0.of("pause.counter", &table.counter)?,
            gap: self.0.number("pause.gap", &table.gap, 1.0, 1e6)? as u64,
            window: self.0.number("pause.window", &table.window, 1.0, 1e9)? as u64,
            scan_ns: self.ns("pause.scan-us", &table.scan_us, 0.0)?,
            target: Target::default(),
        })
    }
}

impl Host {
    /// Reads a host from the text of its file; `name` is for messages.
    ///
    /// # Errors
    /// [`FileError`]: what is wrong, where, and what would be right.
    pub fn parse(name: &str, text: &str) -> Result<Self, FileError> {
        let refuse = |what: String| FileError { kind: "host", name: name.into(), what };
        let file: File = read(text, |file: &File| file.format).map_err(refuse)?;
        host(&file, text).map_err(refuse)
    }
}

fn host(file: &File, text: &str) -> Result<Host, String> {
    let reader = Reader(&file.sources);
    let (scheduler, poll, balance) = (&file.scheduler, &file.halt_polling, &file.balance);
    Ok(Host {
        name: file.name.clone(),
        title: file.title.clone(),
        hz: reader.0.number("scheduler.hz", &scheduler.hz, 24.0, 10_000.0)? as u32,
        fair: reader.fair(file)?,
        groups: reader.0.of("scheduler.groups", &scheduler.groups)?,
        heeds_hints: reader.0.of("scheduler.heeds-hints", &scheduler.heeds_hints)?,
        kick_yields: reader.0.of("scheduler.kick-yields", &scheduler.kick_yields)?,
        invalidations: reader.0.of("scheduler.invalidations", &scheduler.invalidations)?,
        poll: Poll {
            most_ns: reader.ns("halt-polling.most-us", &poll.most_us, 0.0)?,
            start_ns: reader.ns("halt-polling.start-us", &poll.start_us, 0.0)?,
            shrink: reader.0.number("halt-polling.shrink", &poll.shrink, 0.0, 1000.0)? as u64,
        },
        balance: Balance {
            hot_ns: reader.ns("balance.hot-us", &balance.hot_us, 0.0)?,
            try_ns: reader.ns("balance.try-us", &balance.try_us, 0.0)?,
            by_chance: reader.0.of("balance.by-chance", &balance.by_chance)?,
            patience: reader.0.number("balance.patience", &balance.patience, 0.0, 1000.0)? as u32,
        },
        pause: file.pause.as_ref().map(|pause| reader.pause(pause)).transpose()?,
        costs: HostCosts {
            tick_ns: reader.ns("costs.tick-us", &file.costs.tick_us, 0.0)?,
            barrier_ns: reader.ns("costs.barrier-us", &file.costs.barrier_us, 0.0)?,
        },
        text: text.into(),
    })
}

/// A host that is built in.
#[derive(Clone, Copy, Debug)]
pub struct HostPreset {
    /// Its name on the command line.
    pub name: &'static str,
    /// Its file.
    pub text: &'static str,
}

macro_rules! presets {
    ($($name:literal),* $(,)?) => {
        /// All built-in hosts, the newest first.
        #[must_use]
        pub const fn presets() -> &'static [HostPreset] {
            &[$(HostPreset { name: $name, text: include_str!(concat!("../../hosts/", $name, ".toml")) }),*]
        }
    };
}

presets!["linux-7.3", "linux-6.12", "cfs-2019", "cfs-2015"];

impl HostPreset {
    /// The host.
    ///
    /// # Panics
    /// If its file is bad: a test reads all of them.
    #[must_use]
    pub fn host(&self) -> Host {
        Host::parse(self.name, self.text).expect("the files of the presets are tested")
    }
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
