//! The file that describes a host's scheduler: TOML in which every figure names its source, as in a machine file.

use std::collections::BTreeMap;

use serde::Deserialize;
use thiserror::Error;

use crate::hosts::policy::{Balance, Cfs, Eevdf, Fair, Groups, Host, HostCosts, Pause, PauseCounter, Poll};

/// The version of the format that this program reads.
const FORMAT: u32 = 1;
/// The longest time in a file, a second.
const MOST_US: f64 = 1e6;

/// A fault in a host file.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("host file {name}: {what}")]
pub struct HostError {
    /// The file, or the preset.
    pub name: String,
    /// Place, fault, and remedy.
    pub what: String,
}

/// Origin of figures. The grades are those of machine files, without M, and with M for what `doctor --write-host` measured.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Source {
    #[serde(rename = "grade")]
    _grade: Grade,
    #[serde(rename = "text")]
    _text: String,
}

#[derive(Deserialize)]
enum Grade {
    A,
    B,
    C,
    D,
    E,
    M,
}

/// A value with its source.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Given<T> {
    value: T,
    source: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    format: u32,
    name: String,
    title: String,
    sources: BTreeMap<String, Source>,
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
    hz: Given<f64>,
    groups: Given<GroupsWord>,
    heeds_hints: Given<bool>,
    kick_yields: Given<bool>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum GroupsWord {
    None,
    Smp,
    Concur,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct EevdfTable {
    base_slice_us: Given<f64>,
    exact_slices: Given<bool>,
    lazy: Given<bool>,
    delayed_dequeue: Given<bool>,
    yield_forfeits: Given<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct CfsTable {
    latency_us: Given<f64>,
    min_granularity_us: Given<f64>,
    wakeup_granularity_us: Given<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct PollTable {
    most_us: Given<f64>,
    start_us: Given<f64>,
    shrink: Given<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct BalanceTable {
    hot_us: Given<f64>,
    try_us: Given<f64>,
    by_chance: Given<bool>,
    patience: Given<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct PauseTable {
    counter: Given<CounterWord>,
    gap: Given<f64>,
    window: Given<f64>,
    scan_us: Given<f64>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum CounterWord {
    Ticks,
    Pauses,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct CostsTable {
    tick_us: Given<f64>,
    barrier_us: Given<f64>,
}

/// Turns given values into constants, and refuses those that cannot be.
struct Reader<'a>(&'a BTreeMap<String, Source>);

impl Reader<'_> {
    fn of<T: Copy>(&self, key: &str, given: &Given<T>) -> Result<T, String> {
        match self.0.contains_key(&given.source) {
            true => Ok(given.value),
            false => {
                let known: Vec<&str> = self.0.keys().map(String::as_str).collect();
                let source = &given.source;
                Err(format!("{key}: source `{source}` is not among [sources]: {}", known.join(" ")))
            }
        }
    }

    fn number(&self, key: &str, given: &Given<f64>, least: f64, most: f64) -> Result<f64, String> {
        let value = self.of(key, given)?;
        match (least..=most).contains(&value) {
            true => Ok(value),
            false => Err(format!("{key} is {value}: it must be {least} to {most}")),
        }
    }

    fn ns(&self, key: &str, given: &Given<f64>, least_us: f64) -> Result<u64, String> {
        Ok((self.number(key, given, least_us, MOST_US)? * 1000.0).round() as u64)
    }

    fn fair(&self, file: &File) -> Result<Fair, String> {
        match (&file.eevdf, &file.cfs) {
            (Some(it), None) => Ok(Fair::Eevdf(Eevdf {
                base_slice_ns: self.ns("eevdf.base-slice-us", &it.base_slice_us, 10.0)?,
                exact: self.of("eevdf.exact-slices", &it.exact_slices)?,
                lazy: self.of("eevdf.lazy", &it.lazy)?,
                delayed: self.of("eevdf.delayed-dequeue", &it.delayed_dequeue)?,
                yield_forfeits: self.of("eevdf.yield-forfeits", &it.yield_forfeits)?,
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
            counter: match self.of("pause.counter", &table.counter)? {
                CounterWord::Ticks => PauseCounter::Ticks,
                CounterWord::Pauses => PauseCounter::Pauses,
            },
            gap: self.number("pause.gap", &table.gap, 1.0, 1e6)? as u64,
            window: self.number("pause.window", &table.window, 1.0, 1e9)? as u64,
            scan_ns: self.ns("pause.scan-us", &table.scan_us, 0.0)?,
        })
    }
}

impl Host {
    /// Reads a host from the text of its file; `name` is for messages.
    ///
    /// # Errors
    /// [`HostError`]: what is wrong, where, and what would be right.
    pub fn parse(name: &str, text: &str) -> Result<Self, HostError> {
        let refuse = |what: String| HostError { name: name.into(), what };
        let file: File = toml::from_str(text).map_err(|error| refuse(one_line(&error, text)))?;
        if file.format != FORMAT {
            return Err(refuse(format!(
                "format {} is unknown: this version reads format {FORMAT}",
                file.format
            )));
        }
        host(&file, text).map_err(refuse)
    }
}

fn host(file: &File, text: &str) -> Result<Host, String> {
    let reader = Reader(&file.sources);
    let (scheduler, poll, balance) = (&file.scheduler, &file.halt_polling, &file.balance);
    Ok(Host {
        name: file.name.clone(),
        title: file.title.clone(),
        hz: reader.number("scheduler.hz", &scheduler.hz, 24.0, 10_000.0)? as u32,
        fair: reader.fair(file)?,
        groups: match reader.of("scheduler.groups", &scheduler.groups)? {
            GroupsWord::None => Groups::None,
            GroupsWord::Smp => Groups::Smp,
            GroupsWord::Concur => Groups::Concur,
        },
        heeds_hints: reader.of("scheduler.heeds-hints", &scheduler.heeds_hints)?,
        kick_yields: reader.of("scheduler.kick-yields", &scheduler.kick_yields)?,
        poll: Poll {
            most_ns: reader.ns("halt-polling.most-us", &poll.most_us, 0.0)?,
            start_ns: reader.ns("halt-polling.start-us", &poll.start_us, 0.0)?,
            shrink: reader.number("halt-polling.shrink", &poll.shrink, 0.0, 1000.0)? as u64,
        },
        balance: Balance {
            hot_ns: reader.ns("balance.hot-us", &balance.hot_us, 0.0)?,
            try_ns: reader.ns("balance.try-us", &balance.try_us, 0.0)?,
            by_chance: reader.of("balance.by-chance", &balance.by_chance)?,
            patience: reader.number("balance.patience", &balance.patience, 0.0, 1000.0)? as u32,
        },
        pause: file.pause.as_ref().map(|pause| reader.pause(pause)).transpose()?,
        costs: HostCosts {
            tick_ns: reader.ns("costs.tick-us", &file.costs.tick_us, 0.0)?,
            barrier_ns: reader.ns("costs.barrier-us", &file.costs.barrier_us, 0.0)?,
        },
        text: text.into(),
    })
}

/// The fault of a text, with its line.
fn one_line(error: &toml::de::Error, text: &str) -> String {
    let line =
        error.span().and_then(|span| text.get(..span.start)).map(|before| before.matches('\n').count() + 1);
    let place = line.map(|line| format!("line {line}: ")).unwrap_or_default();
    format!("{place}{}", error.message().lines().collect::<Vec<_>>().join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::presets::presets;

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
}
