//! The settings of a cell. One definition serves the flags of `haltkick run`, the keys of experiment files
//! and `--set key=value`; every one is optional until [`Settings::resolve`] fills in the defaults.

mod choices;
pub(crate) mod deschedule;
mod resolve;
pub(crate) mod shape;
pub(crate) mod vm;

use std::fmt::Display;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use haltkick_vmm::Image;

use crate::host::cpulist::CpuList;
use crate::text::duration::Span;
use crate::text::memory_size::MemorySize;
use crate::text::nearest;

pub(crate) use choices::{
    AccelChoice, AfterWork, DescheduleChoice, EngineChoice, PreemptedChoice, PvBackendChoice, RingChoice,
    SchedChoice, ShareChoice, Switch,
};
pub(crate) use resolve::layouts;
use shape::ShapeSettings;
use vm::Vm;

/// Settings of one cell, as far as somebody gave them.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub(crate) struct Settings {
    /// What runs the guest: kvm; threads or qemu where there is no /dev/kvm [default: kvm]
    #[arg(long, value_name = "ENGINE", hide_possible_values = true, help_heading = "Machine")]
    pub(crate) engine: Option<EngineChoice>,
    /// What QEMU runs the guest with: kvm or tcg, its emulator [default: kvm where there is /dev/kvm]
    #[arg(long, value_name = "ACCEL", hide_possible_values = true, help_heading = "Machine")]
    pub(crate) accel: Option<AccelChoice>,
    /// Number of vCPUs
    #[arg(long, value_name = "N", conflicts_with = "ratio", help_heading = "Machine")]
    pub(crate) vcpus: Option<u32>,
    /// vCPUs per pCPU, instead of --vcpus [default: 8]
    #[arg(long, value_name = "N", help_heading = "Machine")]
    pub(crate) ratio: Option<u32>,
    /// Host CPUs to use, such as 0,2-3 [default: all that this process may use]
    #[arg(long, value_name = "LIST", help_heading = "Machine")]
    pub(crate) cpus: Option<CpuList>,
    /// Privilege ring of the guest [default: auto]
    #[arg(long, value_name = "RING", hide_possible_values = true, help_heading = "Machine")]
    pub(crate) ring: Option<RingChoice>,
    /// Who preempts the vCPUs: vmm or host [default: vmm]
    #[arg(long, value_name = "WHO", hide_possible_values = true, help_heading = "Machine")]
    pub(crate) sched: Option<SchedChoice>,
    /// Time a vCPU may run before the VMM takes it off its pCPU, 50us to 100ms [default: 1ms]
    #[arg(long, value_name = "TIME", help_heading = "Machine")]
    pub(crate) slice: Option<Span>,

    /// Take vCPUs off on purpose: holder, head, waiter or random, then as wanted ,rate=N (a second) or ,prob=P,
    /// ,for=TIME and ,at=POINT (`haltkick list points`); or none [default: none]
    #[arg(long, value_name = "POLICY", help_heading = "Hostility")]
    pub(crate) deschedule: Option<DescheduleChoice>,
    /// How much longer a vCPU may run that says it holds a lock when its slice ends, up to a slice [default: 0s]
    #[arg(long, value_name = "TIME", help_heading = "Hostility")]
    pub(crate) grace: Option<Span>,
    /// How much of a slice must be left for locks that ask for that [default: 10us]
    #[arg(long, value_name = "TIME", help_heading = "Hostility")]
    pub(crate) slice_margin: Option<Span>,
    /// A kick hands the pCPU to the vCPU that it wakes: on or off [default: off]
    #[arg(long, value_name = "SWITCH", hide_possible_values = true, help_heading = "Hostility")]
    pub(crate) kick_yield: Option<Switch>,
    /// Tell descheduling by what the vCPU was doing, and what that cost the others: on or off [default: on]
    #[arg(long, value_name = "SWITCH", hide_possible_values = true, help_heading = "Hostility")]
    pub(crate) attribution: Option<Switch>,
    /// Count cache events of the guest, where the host has a PMU: on or off [default: off]
    #[arg(long, value_name = "SWITCH", hide_possible_values = true, help_heading = "Measuring")]
    pub(crate) pmu: Option<Switch>,

    /// The lock; `haltkick list locks` shows them [default: qspinlock]
    #[arg(long, value_name = "NAME", help_heading = "Lock")]
    pub(crate) lock: Option<String>,
    /// Layout of the lock's queue, where it has several [default: its first]
    #[arg(long, value_name = "NAME", help_heading = "Lock")]
    pub(crate) layout: Option<String>,
    /// Use the lock's paravirtual form: on or off [default: off, or all that the lock has]
    #[arg(long, value_name = "SWITCH", hide_possible_values = true, help_heading = "Lock")]
    pub(crate) pv: Option<Switch>,
    /// Rewrite the call sites for the lock, as a kernel does at boot: on or off (call through a table) [default: on]
    #[arg(long, value_name = "SWITCH", hide_possible_values = true, help_heading = "Lock")]
    pub(crate) patch: Option<Switch>,
    /// Let vcpu_is_preempted() read what the host writes: on or off [default: on]
    #[arg(long, value_name = "SWITCH", hide_possible_values = true, help_heading = "Lock")]
    pub(crate) preempted_hint: Option<Switch>,
    /// How vCPUs sleep and are woken: vmm (doorbells), kvm (HLT and hypercall), ipi (HLT and interrupt) [default: auto]
    #[arg(long, value_name = "BACKEND", hide_possible_values = true, help_heading = "Lock")]
    pub(crate) pv_backend: Option<PvBackendChoice>,
    /// How long KVM polls for a wake-up before it lets a halted vCPU sleep, 0ns for never [default: the host's]
    #[arg(long, value_name = "TIME", help_heading = "Lock")]
    pub(crate) halt_poll: Option<Span>,
    /// Exits of spin loops in ring 0 (PLE, PAUSE filter): on or off [default: on]
    #[arg(long, value_name = "SWITCH", hide_possible_values = true, help_heading = "Machine")]
    pub(crate) pause_exits: Option<Switch>,
    /// Exits at HLT; off: a halted vCPU keeps its pCPU [default: on]
    #[arg(long, value_name = "SWITCH", hide_possible_values = true, help_heading = "Machine")]
    pub(crate) hlt_exits: Option<Switch>,
    /// Who writes that flag under the host's scheduler: auto, kvm or bpf [default: auto]
    #[arg(long, value_name = "WHO", hide_possible_values = true, help_heading = "Lock")]
    pub(crate) preempted_by: Option<PreemptedChoice>,
    /// How long a paravirtual waiter spins before it sleeps [default: 20us]
    #[arg(long, value_name = "TIME", help_heading = "Lock")]
    pub(crate) spin_threshold: Option<Span>,

    /// What the guest does; `haltkick list workloads` shows them [default: critical-section]
    #[arg(long, value_name = "NAME", help_heading = "Workload")]
    pub(crate) workload: Option<String>,
    /// Work inside a critical section [default: 1us]
    #[arg(long, value_name = "TIME", help_heading = "Workload")]
    pub(crate) hold: Option<Span>,
    /// Work between two critical sections [default: 2us]
    #[arg(long, value_name = "TIME", help_heading = "Workload")]
    pub(crate) think: Option<Span>,
    /// Number of locks that the sections are spread over [default: 1]
    #[arg(long, value_name = "N", help_heading = "Workload")]
    pub(crate) locks: Option<u32>,
    /// Memory that the guest manages, in the workloads that take page faults [default: 64MiB]
    #[arg(long, value_name = "SIZE", help_heading = "Workload")]
    pub(crate) memory: Option<MemorySize>,
    /// Fixed amount of work instead of a window, as time on one pCPU [workload mixed]
    #[arg(long, value_name = "TIME", help_heading = "Workload")]
    pub(crate) work: Option<Span>,
    /// What vCPUs do when that is done: leave or go-on [default: leave]
    #[arg(long, value_name = "WHAT", hide_possible_values = true, help_heading = "Workload")]
    pub(crate) after_work: Option<AfterWork>,
    /// Work inside a long critical section [workload mixed]
    #[arg(long, value_name = "TIME", help_heading = "Workload")]
    pub(crate) long_hold: Option<Span>,
    /// One section of so many is long [default: 0, none]
    #[arg(long, value_name = "N", help_heading = "Workload")]
    pub(crate) long_one_in: Option<u32>,
    /// One section of so many has another inside, under another lock [default: 0, none]
    #[arg(long, value_name = "N", help_heading = "Workload")]
    pub(crate) nested_one_in: Option<u32>,

    #[command(flatten)]
    pub(crate) shape: ShapeSettings,

    /// Length of the measuring window [default: 1s]
    #[arg(long = "duration", visible_alias = "window", value_name = "TIME", help_heading = "Measuring")]
    pub(crate) window: Option<Span>,
    /// Lengthen the window until every vCPU has so many turns in it [default: 0, it stays as it is]
    #[arg(long, value_name = "N", help_heading = "Measuring")]
    pub(crate) min_turns: Option<u32>,
    /// Double the window until so many sections are done in it, up to 16 times [default: 0, it stays as it is]
    #[arg(long, value_name = "N", help_heading = "Measuring")]
    pub(crate) min_sections: Option<u64>,
    /// Time between start and window [default: 20ms, or two rounds of slices]
    #[arg(long, value_name = "TIME", help_heading = "Measuring")]
    pub(crate) warmup: Option<Span>,
    /// End the run when nothing has moved for this long [default: from ratio and slice]
    #[arg(long, value_name = "TIME", help_heading = "Measuring")]
    pub(crate) watchdog: Option<Span>,
    /// Seed of everything random, echoed in the record [default: 1]
    #[arg(long, value_name = "N", value_parser = seed, help_heading = "Measuring")]
    pub(crate) seed: Option<u64>,
    /// Iterations of the work loop per 2^20 ns, from an earlier record [default: measured at boot]
    #[arg(long, value_name = "N", help_heading = "Measuring")]
    pub(crate) work_rate: Option<u64>,
    /// A guest, as key=value,...; given several times, the guests run at once and their records bear one run id
    #[arg(long, value_name = "KEY=VALUE,...", help_heading = "Several guests")]
    pub(crate) vm: Vec<Vm>,
    /// What has equal shares of the pCPUs: guest or vcpu [default: vcpu]
    #[arg(long, value_name = "WHAT", hide_possible_values = true, help_heading = "Several guests")]
    pub(crate) share: Option<ShareChoice>,
}

/// Names of all settings, as in flags and files.
pub(crate) const KEYS: &[&str] = &[
    "engine",
    "accel",
    "vcpus",
    "ratio",
    "cpus",
    "ring",
    "sched",
    "slice",
    "deschedule",
    "grace",
    "slice-margin",
    "kick-yield",
    "attribution",
    "pmu",
    "lock",
    "layout",
    "pv",
    "patch",
    "preempted-hint",
    "pv-backend",
    "halt-poll",
    "pause-exits",
    "hlt-exits",
    "preempted-by",
    "spin-threshold",
    "workload",
    "hold",
    "think",
    "locks",
    "memory",
    "work",
    "after-work",
    "long-hold",
    "long-one-in",
    "nested-one-in",
    "think-distribution",
    "hold-jitter",
    "zipf",
    "arrivals",
    "footprint",
    "dirty",
    "read-share",
    "read-hold",
    "oracle",
    "stamps",
    "window",
    "min-turns",
    "min-sections",
    "warmup",
    "watchdog",
    "seed",
    "work-rate",
    "vm",
    "share",
];

/// A setting that cannot be had, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Impossible {
    pub(crate) key: &'static str,
    pub(crate) message: String,
}

/// What a cell can be made of: the image's tables and this host's CPUs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Supply<'a> {
    pub(crate) image: &'a Image,
    pub(crate) allowed: &'a CpuList,
}

impl Settings {
    /// Sets one setting from text, as in `--set hold=5us` or `hold = "5us"`.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        if let Some(set) = self.shape.set(key, value) {
            return set;
        }
        match key {
            "engine" => self.engine = Some(choose(value)?),
            "accel" => self.accel = Some(choose(value)?),
            "vcpus" => (self.vcpus, self.ratio) = (Some(parse(value)?), None),
            "ratio" => (self.ratio, self.vcpus) = (Some(parse(value)?), None),
            "cpus" => self.cpus = Some(value.parse()?),
            "ring" => self.ring = Some(choose(value)?),
            "sched" => self.sched = Some(choose(value)?),
            "slice" => self.slice = Some(value.parse()?),
            "deschedule" => self.deschedule = Some(value.parse()?),
            "grace" => self.grace = Some(value.parse()?),
            "slice-margin" => self.slice_margin = Some(value.parse()?),
            "kick-yield" => self.kick_yield = Some(choose(value)?),
            "attribution" => self.attribution = Some(choose(value)?),
            "pmu" => self.pmu = Some(choose(value)?),
            "lock" => self.lock = Some(value.into()),
            "layout" => self.layout = Some(value.into()),
            "pv" => self.pv = Some(choose(value)?),
            "patch" => self.patch = Some(choose(value)?),
            "preempted-hint" => self.preempted_hint = Some(choose(value)?),
            "pv-backend" => self.pv_backend = Some(choose(value)?),
            "halt-poll" => self.halt_poll = Some(value.parse()?),
            "pause-exits" => self.pause_exits = Some(choose(value)?),
            "hlt-exits" => self.hlt_exits = Some(choose(value)?),
            "preempted-by" => self.preempted_by = Some(choose(value)?),
            "spin-threshold" => self.spin_threshold = Some(value.parse()?),
            "workload" => self.workload = Some(value.into()),
            "hold" => self.hold = Some(value.parse()?),
            "think" => self.think = Some(value.parse()?),
            "locks" => self.locks = Some(parse(value)?),
            "memory" => self.memory = Some(value.parse()?),
            "work" => self.work = Some(value.parse()?),
            "after-work" => self.after_work = Some(choose(value)?),
            "long-hold" => self.long_hold = Some(value.parse()?),
            "long-one-in" => self.long_one_in = Some(parse(value)?),
            "nested-one-in" => self.nested_one_in = Some(parse(value)?),
            "window" | "duration" => self.window = Some(value.parse()?),
            "min-turns" => self.min_turns = Some(parse(value)?),
            "min-sections" => self.min_sections = Some(parse(value)?),
            "warmup" => self.warmup = Some(value.parse()?),
            "watchdog" => self.watchdog = Some(value.parse()?),
            "seed" => self.seed = Some(seed(value)?),
            "work-rate" => self.work_rate = Some(parse(value)?),
            "vm" => self.vm = vm::several(value)?,
            "share" => self.share = Some(choose(value)?),
            _ => return Err(nearest::unknown("setting", key, KEYS)),
        }
        Ok(())
    }

    /// `self` where it says something, `below` elsewhere.
    pub(crate) fn over(self, below: &Self) -> Self {
        let sized = self.vcpus.is_some() || self.ratio.is_some();
        Self {
            engine: self.engine.or(below.engine),
            accel: self.accel.or(below.accel),
            vcpus: if sized { self.vcpus } else { below.vcpus },
            ratio: if sized { self.ratio } else { below.ratio },
            cpus: self.cpus.or_else(|| below.cpus.clone()),
            ring: self.ring.or(below.ring),
            sched: self.sched.or(below.sched),
            slice: self.slice.or(below.slice),
            deschedule: self.deschedule.or_else(|| below.deschedule.clone()),
            grace: self.grace.or(below.grace),
            slice_margin: self.slice_margin.or(below.slice_margin),
            kick_yield: self.kick_yield.or(below.kick_yield),
            attribution: self.attribution.or(below.attribution),
            pmu: self.pmu.or(below.pmu),
            lock: self.lock.or_else(|| below.lock.clone()),
            layout: self.layout.or_else(|| below.layout.clone()),
            pv: self.pv.or(below.pv),
            patch: self.patch.or(below.patch),
            preempted_hint: self.preempted_hint.or(below.preempted_hint),
            pv_backend: self.pv_backend.or(below.pv_backend),
            halt_poll: self.halt_poll.or(below.halt_poll),
            pause_exits: self.pause_exits.or(below.pause_exits),
            hlt_exits: self.hlt_exits.or(below.hlt_exits),
            preempted_by: self.preempted_by.or(below.preempted_by),
            spin_threshold: self.spin_threshold.or(below.spin_threshold),
            workload: self.workload.or_else(|| below.workload.clone()),
            hold: self.hold.or(below.hold),
            think: self.think.or(below.think),
            locks: self.locks.or(below.locks),
            memory: self.memory.or(below.memory),
            work: self.work.or(below.work),
            after_work: self.after_work.or(below.after_work),
            long_hold: self.long_hold.or(below.long_hold),
            long_one_in: self.long_one_in.or(below.long_one_in),
            nested_one_in: self.nested_one_in.or(below.nested_one_in),
            shape: self.shape.over(&below.shape),
            window: self.window.or(below.window),
            min_turns: self.min_turns.or(below.min_turns),
            min_sections: self.min_sections.or(below.min_sections),
            warmup: self.warmup.or(below.warmup),
            watchdog: self.watchdog.or(below.watchdog),
            seed: self.seed.or(below.seed),
            work_rate: self.work_rate.or(below.work_rate),
            vm: if self.vm.is_empty() { below.vm.clone() } else { self.vm },
            share: self.share.or(below.share),
        }
    }
}

/// A seed that every JSON reader keeps: at most 2^53 - 1.
pub(crate) fn seed(text: &str) -> Result<u64, String> {
    const LARGEST: u64 = (1 << 53) - 1;
    let seed = parse(text)?;
    if seed > LARGEST {
        return Err(format!("{seed} is out of range: {LARGEST} at most, which every JSON reader keeps"));
    }
    Ok(seed)
}

fn parse<T: FromStr<Err: Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error| format!("'{text}' is no whole number: {error}"))
}

fn choose<T: ValueEnum>(text: &str) -> Result<T, String> {
    T::from_str(text, false).map_err(|_| {
        let names: Vec<String> = T::value_variants()
            .iter()
            .filter_map(|variant| variant.to_possible_value())
            .map(|value| value.get_name().to_owned())
            .collect();
        format!("'{text}' is not one of {}", names.join(", "))
    })
}
