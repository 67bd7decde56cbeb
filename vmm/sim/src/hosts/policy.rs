//! The policy of a host: which laws hold there, and their constants; and the files that describe it, some of which are built in.

use serde::Deserialize;

use crate::sourced::{FileError, Sources, built_in, read, us, value, whole};

/// A host's scheduler: what a host file says.
#[derive(Clone, Debug, PartialEq)]
pub struct Host {
    /// Its name on the command line and in records.
    pub name: String,
    /// A line about it.
    pub title: String,
    /// Ticks a second.
    pub hz: u32,
    /// Choice of the next task, and its time.
    pub fair: Fair,
    /// Weights of guests of several vCPUs.
    pub groups: Groups,
    /// Whether the scheduler heeds a directed yield's hint. Nested control groups lose it.
    pub heeds_hints: bool,
    /// Whether a kick yields to the vCPU that it wakes.
    pub kick_yields: bool,
    /// When a vCPU without a pCPU acknowledges that it is to drop translations.
    pub invalidations: Invalidations,
    /// Halt polling.
    pub poll: Poll,
    /// How waiting vCPUs change pCPUs.
    pub balance: Balance,
    /// Pause-loop exits.
    pub pause: Option<Pause>,
    /// Costs that depend on the kernel, not on the machine.
    pub costs: HostCosts,
    /// The file's text.
    pub text: String,
}

/// The class of fair schedulers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fair {
    /// Earliest eligible virtual deadline first.
    Eevdf(Eevdf),
    /// The scheduler before Linux 6.6: least virtual time first.
    Cfs(Cfs),
}

/// Laws 1 to 7, from virtual time to slice ends.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Eevdf {
    /// A slice on one CPU; on more it is multiplied by 1 + floor(log2(min(CPUs, 8))).
    #[serde(rename = "base-slice-us", deserialize_with = "us::<10, _>")]
    pub base_slice_ns: u64,
    /// Slices end by a timer of their own (HRTICK), not at ticks.
    #[serde(rename = "exact-slices", deserialize_with = "value")]
    pub exact: bool,
    /// Requests to reschedule at a wake-up wait for the next exit or tick.
    #[serde(deserialize_with = "value")]
    pub lazy: bool,
    /// A sleeper with negative lag stays queued until it is picked.
    #[serde(rename = "delayed-dequeue", deserialize_with = "value")]
    pub delayed: bool,
    /// A yield forfeits the rest of the request: the virtual time moves to the deadline.
    #[serde(deserialize_with = "value")]
    pub yield_forfeits: bool,
}

/// Constants of CFS on one CPU; on more they are multiplied as [`Eevdf::base_slice_ns`] is.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Cfs {
    /// The period in which each runnable task runs once.
    #[serde(rename = "latency-us", deserialize_with = "us::<10, _>")]
    pub latency_ns: u64,
    /// Least slice.
    #[serde(rename = "min-granularity-us", deserialize_with = "us::<10, _>")]
    pub min_granularity_ns: u64,
    /// Lead in virtual time that lets a woken task preempt.
    #[serde(rename = "wakeup-granularity-us", deserialize_with = "us::<0, _>")]
    pub wakeup_granularity_ns: u64,
}

/// Law 19 (groups): weight of one vCPU of a guest with `n` runnable vCPUs on `P` CPUs, as a share of a thread's.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Groups {
    /// 1: no groups.
    None,
    /// 1 / n: each guest weighs as much as one thread.
    Smp,
    /// min(P, n) / n.
    Concur,
}

/// Law 20 (invalidations): when a vCPU that waits for a pCPU acknowledges that it is to drop cached translations.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Invalidations {
    /// When it runs: others wait for its interrupt.
    Wait,
    /// At once: it drops them on its way into the guest (`KVM_FEATURE_PV_TLB_FLUSH`).
    Pv,
}

/// Law 15 (halt polling).
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Poll {
    /// Longest poll; 0: vCPUs that halt sleep at once.
    #[serde(rename = "most-us", deserialize_with = "us::<0, _>")]
    pub most_ns: u64,
    /// First poll that is not 0.
    #[serde(rename = "start-us", deserialize_with = "us::<0, _>")]
    pub start_ns: u64,
    /// A poll is divided by this where it shrinks; 0: it becomes 0.
    #[serde(deserialize_with = "whole::<0, 1000, _, _>")]
    pub shrink: u64,
}

/// Laws 9 and 10 (pulls, balance).
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Balance {
    /// A task that ran less than this ago stays where its caches are warm.
    #[serde(rename = "hot-us", deserialize_with = "us::<0, _>")]
    pub hot_ns: u64,
    /// Time of one attempt to pull a task.
    #[serde(rename = "try-us", deserialize_with = "us::<0, _>")]
    pub try_ns: u64,
    /// Whether attempts of an idle CPU are made with the probability of recent success.
    #[serde(deserialize_with = "value")]
    pub by_chance: bool,
    /// Balances in a row that find one task more elsewhere before they move it.
    #[serde(deserialize_with = "whole::<0, 1000, _, _>")]
    pub patience: u32,
}

/// Laws 12 and 13 (pause-loop exits, spinners' choice).
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Pause {
    /// Which kind of counter.
    #[serde(deserialize_with = "value")]
    pub counter: PauseCounter,
    /// PAUSEs further apart belong to different loops, in ticks of the time stamp counter.
    #[serde(deserialize_with = "whole::<1, 1_000_000, _, _>")]
    pub gap: u64,
    /// The first window: ticks of the time stamp counter, or PAUSEs.
    #[serde(deserialize_with = "whole::<1, 1_000_000_000, _, _>")]
    pub window: u64,
    /// Time to look at one vCPU for a candidate.
    #[serde(rename = "scan-us", deserialize_with = "us::<0, _>")]
    pub scan_ns: u64,
    /// Which vCPU a spinner yields to.
    #[serde(skip)]
    pub target: Target,
}

/// The vCPU of its guest to which one that spins yields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Target {
    /// Law 13 (spinners' choice), which knows no locks: the first candidate behind the last one that was yielded to.
    #[default]
    RoundRobin,
    /// The vCPU that was kicked last, if it waits for a pCPU; else as [`Target::RoundRobin`].
    LastKicked,
    /// The one that holds a lock, or else is first in a queue, if it waits for a pCPU; else as [`Target::RoundRobin`].
    Holder,
    /// As [`Target::Holder`], or else none.
    OnlyHolder,
}

/// How a processor finds pause loops.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum PauseCounter {
    /// Intel: by time.
    Ticks,
    /// AMD: by the number of PAUSEs.
    Pauses,
}

/// Laws 11 and 17 (ticks, entries).
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct HostCosts {
    /// A tick, in addition to its exit.
    #[serde(rename = "tick-us", deserialize_with = "us::<0, _>")]
    pub tick_ns: u64,
    /// Barrier against branch prediction of another vCPU, at each change of vCPUs.
    #[serde(rename = "barrier-us", deserialize_with = "us::<0, _>")]
    pub barrier_ns: u64,
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

    /// The length of a tick.
    #[must_use]
    pub fn tick_ns(&self) -> u64 {
        1_000_000_000 / u64::from(self.hz)
    }
}

/// By how much constants grow with the number of CPUs: 1 + floor(log2(min(cpus, 8))).
#[must_use]
pub fn scale(cpus: u32) -> u64 {
    u64::from(1 + cpus.clamp(1, 8).ilog2())
}

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

built_in! {
    /// All built-in hosts, the newest first.
    HostPreset, Host by host from "hosts": "linux-7.3", "linux-6.12", "cfs-2019", "cfs-2015"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_file_is_refused_with_the_place_and_the_remedy() {
        let good = presets()[0].text;
        let fair = &good[good.find("[eevdf]").unwrap()..good.find("[halt-polling]").unwrap()];
        for (old, new, message) in [
            ("hz = { value = ", "hz = { value = -", "scheduler.hz is -"),
            ("[eevdf]", "[efdve]", "unknown field `efdve`"),
            ("value = \"concur\"", "value = \"most\"", "unknown variant `most`"),
            (fair, "", "either [eevdf] or [cfs]"),
        ] {
            let bad = good.replacen(old, new, 1);
            assert_ne!(bad, good, "the change did nothing");
            let error = Host::parse("test", &bad).expect_err("the file is bad").to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}
