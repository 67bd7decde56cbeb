//! The settings of a cell. One definition serves the flags of `haltkick run`, the keys of experiment files
//! and `--set key=value`; every one is optional until [`Settings::resolve`] fills in the defaults.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use haltkick_vmm::{
    Accelerator, Deschedule, Engine, Entry, Image, MAX_LOCKS, Mix, PreemptedBy, PvBackend, Ring, RunConfig,
    Sched, Share,
};

use crate::cpulist::{self, CpuList};
use crate::deschedule::Policy;
use crate::duration::Span;
use crate::memory_size::MemorySize;
use crate::nearest;
use crate::vm::{self, Vm};

/// A switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
}

/// What runs the guest's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineChoice {
    /// /dev/kvm
    Kvm,
    /// Threads of this process: no /dev/kvm needed, ordinary profilers work
    Threads,
    /// QEMU, by --accel kvm or tcg
    Qemu,
}

/// What QEMU runs the guest's code with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AccelChoice {
    /// /dev/kvm
    Kvm,
    /// QEMU's emulator
    Tcg,
}

/// Who decides which vCPU runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SchedChoice {
    /// The VMM: one pinned runner per pCPU, exact slices, repeatable
    Vmm,
    /// The host's scheduler: one thread per vCPU, as in production
    Host,
}

/// How a vCPU sleeps and is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PvBackendChoice {
    /// The best that works here
    Auto,
    /// Doorbells: the VMM does it
    Vmm,
    /// In the kernel: HLT, woken by KVM_HC_KICK_CPU
    Kvm,
    /// In the kernel: HLT, woken by an interrupt
    Ipi,
}

/// Who writes the `preempted` flag under the host's scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PreemptedChoice {
    /// KVM where it does, else a BPF program where that can be had
    Auto,
    /// KVM, in the steal-time record
    Kvm,
    /// A BPF program on the kernel's scheduler
    Bpf,
}

/// The ring that the guest runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RingChoice {
    /// Measure which ring this host runs natively
    Auto,
    /// Kernel mode
    #[value(name = "0")]
    Zero,
    /// User mode
    #[value(name = "3")]
    Three,
}

/// A policy of descheduling, or `none`, so that an arm can go without.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DescheduleChoice(Option<Policy>);

impl FromStr for DescheduleChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(Self(if text == "none" { None } else { Some(text.parse()?) }))
    }
}

/// What has equal shares of the pCPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ShareChoice {
    /// Every vCPU
    Vcpu,
    /// Every guest, whatever its number of vCPUs
    Guest,
}

/// What vCPUs do when the fixed amount of work is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AfterWork {
    /// They are done, too
    Leave,
    /// They take locks as before, uncounted, while another guest is at work
    GoOn,
}

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

/// Most vCPUs in one guest.
const MAX_VCPUS: u32 = haltkick_vmm::MAX_VCPUS as u32;
/// Room for 512 pages of each of 16 vCPUs, twice.
const DEFAULT_MEMORY_BYTES: u64 = 64 << 20;
/// Longest work in or between sections that still makes sense beside a watchdog.
const MAX_WORK: Duration = Duration::from_secs(1);
/// The longest that a fixed amount of work may take, unless a window is given.
const LONGEST_WORK: Duration = Duration::from_secs(60);
const SLICE_RANGE: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(100));

impl Settings {
    /// Sets one setting from text, as in `--set hold=5us` or `hold = "5us"`.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
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

    /// Fills in the defaults and checks that the cell can exist here.
    pub(crate) fn resolve(&self, supply: Supply<'_>) -> Result<RunConfig, Impossible> {
        let run = Self { vm: vec![], ..self.clone() };
        if self.vm.is_empty() {
            return run.resolve_one(supply);
        }
        let guest = |(index, vm): (usize, &Vm)| {
            let config = vm.settings.clone().over(&run).resolve_one(supply)?;
            // Guests that do the same must not do it in step.
            let seed = config.seed.wrapping_add(if vm.settings.seed.is_some() { 0 } else { index as u64 });
            let name = vm.name.clone().unwrap_or_else(|| vm::default_name(index));
            Ok(RunConfig { name, seed, ..config })
        };
        let mut guests = self.vm.iter().enumerate().map(guest).collect::<Result<Vec<_>, Impossible>>()?;
        let longest = |of: fn(&RunConfig) -> Duration| guests.iter().map(of).max().unwrap_or_default();
        let (warmup, window) = (longest(|guest| guest.warmup), longest(|guest| guest.window));
        guests.iter_mut().for_each(|guest| (guest.warmup, guest.window) = (warmup, window));
        let first = guests.remove(0);
        Ok(RunConfig { beside: guests, ..first })
    }

    /// One guest of it.
    fn resolve_one(&self, supply: Supply<'_>) -> Result<RunConfig, Impossible> {
        if self.accel.is_some() && self.engine != Some(EngineChoice::Qemu) {
            let message = "only QEMU has accelerators to choose from: use engine qemu".into();
            return Err(Impossible { key: "accel", message });
        }
        let cpus = self.pcpus(supply.allowed)?;
        let vcpus = self.vcpu_count(cpus.0.len() as u32)?;
        let (lock, pv) = self.lock_form(&supply.image.locks)?;
        let workload = self.workload.clone().unwrap_or_else(|| "critical-section".into());
        find("workload", &workload, &supply.image.workloads)?;
        let slice = self.slice_length()?;
        let hold = work("hold", self.hold, Duration::from_micros(1))?;
        let think = work("think", self.think, Duration::from_micros(2))?;
        let mix = self.mix(&workload, hold, think)?;
        let longest = if mix.work_sections.is_some() { LONGEST_WORK } else { Duration::from_secs(1) };
        let round = slice * vcpus.div_ceil(cpus.0.len() as u32);
        let config = RunConfig {
            engine: match self.engine.unwrap_or(EngineChoice::Kvm) {
                EngineChoice::Kvm => Engine::Kvm,
                EngineChoice::Threads => Engine::Threads,
                EngineChoice::Qemu => Engine::Qemu(self.accelerator()),
            },
            vcpus,
            cpus: cpus.0,
            ring: match self.ring.unwrap_or(RingChoice::Auto) {
                RingChoice::Auto => Ring::Auto,
                RingChoice::Zero => Ring::Ring0,
                RingChoice::Three => Ring::Ring3,
            },
            sched: match self.sched.unwrap_or(self.default_sched()) {
                SchedChoice::Vmm => Sched::Vmm,
                SchedChoice::Host => Sched::Host,
            },
            slice,
            grace: self.grace_length(slice)?,
            slice_margin: length(self.slice_margin, Duration::from_micros(10)),
            kick_yields: self.kick_yields()?,
            attribution: self.attribution.unwrap_or(Switch::On) == Switch::On,
            pmu: self.pmu == Some(Switch::On),
            deschedule: self.descheduling(find("lock", &lock, &supply.image.locks)?, supply.image)?,
            lock,
            pv,
            patch: self.patch.unwrap_or(Switch::On) == Switch::On,
            preempted_hint: self.preempted_hint.unwrap_or(Switch::On) == Switch::On,
            pv_backend: match self.pv_backend.unwrap_or(PvBackendChoice::Auto) {
                PvBackendChoice::Auto => PvBackend::Auto,
                PvBackendChoice::Vmm => PvBackend::Vmm,
                PvBackendChoice::Kvm => PvBackend::Kvm,
                PvBackendChoice::Ipi => PvBackend::Ipi,
            },
            halt_poll: self.halt_poll.map(|span| span.0),
            pause_exits: self.pause_exits.unwrap_or(Switch::On) == Switch::On,
            hlt_exits: self.hlt_exits.unwrap_or(Switch::On) == Switch::On,
            preempted_by: match self.preempted_by.unwrap_or(PreemptedChoice::Auto) {
                PreemptedChoice::Auto => PreemptedBy::Auto,
                PreemptedChoice::Kvm => PreemptedBy::Kvm,
                PreemptedChoice::Bpf => PreemptedBy::Bpf,
            },
            spin_threshold: length(self.spin_threshold, Duration::from_micros(20)),
            workload,
            hold,
            think,
            mix,
            lock_count: within("locks", self.locks.unwrap_or(1), 1, MAX_LOCKS)?,
            memory_bytes: self.memory.map_or(DEFAULT_MEMORY_BYTES, |memory| memory.bytes),
            work_rate: self.work_rate,
            warmup: length(self.warmup, (round * 2).max(Duration::from_millis(20))),
            window: length(self.window, longest).max(round.saturating_mul(self.min_turns.unwrap_or(0))),
            min_sections: self.min_sections.unwrap_or(0),
            watchdog: self.watchdog.map(|span| span.0),
            seed: self.seed.unwrap_or(1),
            name: "guest".into(),
            beside: vec![],
            share: match self.share.unwrap_or(ShareChoice::Vcpu) {
                ShareChoice::Vcpu => Share::Vcpu,
                ShareChoice::Guest => Share::Guest,
            },
        };
        if config.window < Duration::from_millis(1) {
            let message = "the window is too short to count in: 1ms at least".into();
            return Err(Impossible { key: "window", message });
        }
        Ok(config)
    }

    /// What the workload `mixed` varies.
    fn mix(&self, workload: &str, hold: Duration, think: Duration) -> Result<Mix, Impossible> {
        let given = [
            ("work", self.work.is_some()),
            ("after-work", self.after_work.is_some()),
            ("long-hold", self.long_hold.is_some()),
            ("long-one-in", self.long_one_in.is_some()),
            ("nested-one-in", self.nested_one_in.is_some()),
        ];
        if let Some((key, _)) = given.into_iter().find(|(_, given)| *given)
            && workload != "mixed"
        {
            let message = format!("workload '{workload}' has no such thing: use workload mixed");
            return Err(Impossible { key, message });
        }
        let mut mix = Mix {
            work_sections: None,
            go_on: self.after_work == Some(AfterWork::GoOn),
            long_hold: work("long-hold", self.long_hold, hold)?,
            long_one_in: self.long_one_in.unwrap_or(0),
            nested_one_in: self.nested_one_in.unwrap_or(0),
        };
        if mix.nested_one_in > 0 && self.locks.unwrap_or(1) < 2 {
            let message = "nested sections need a second lock: use locks 2 or more".into();
            return Err(Impossible { key: "nested-one-in", message });
        }
        if let Some(Span(work)) = self.work {
            let section = mix.mean_hold(hold) + think;
            if section.is_zero() {
                let message = "there is no work to divide: give hold or think a length".into();
                return Err(Impossible { key: "work", message });
            }
            mix.work_sections = Some((work.as_nanos() / section.as_nanos()).max(1) as u64);
        }
        Ok(mix)
    }

    /// QEMU's vCPUs are threads that only the host can schedule.
    fn default_sched(&self) -> SchedChoice {
        if self.engine == Some(EngineChoice::Qemu) { SchedChoice::Host } else { SchedChoice::Vmm }
    }

    fn accelerator(&self) -> Accelerator {
        match self.accel {
            Some(AccelChoice::Tcg) => Accelerator::Tcg,
            Some(AccelChoice::Kvm) => Accelerator::Kvm,
            None if std::path::Path::new("/dev/kvm").exists() => Accelerator::Kvm,
            None => Accelerator::Tcg,
        }
    }

    fn pcpus(&self, allowed: &CpuList) -> Result<CpuList, Impossible> {
        let cpus = self.cpus.clone().unwrap_or_else(|| allowed.clone());
        cpulist::check_allowed(&cpus, allowed).map_err(|message| Impossible { key: "cpus", message })?;
        Ok(cpus)
    }

    fn vcpu_count(&self, pcpus: u32) -> Result<u32, Impossible> {
        match (self.vcpus, self.ratio) {
            (Some(vcpus), _) => within("vcpus", vcpus, 1, MAX_VCPUS),
            (None, ratio) => {
                let ratio = within("ratio", ratio.unwrap_or(8), 1, MAX_VCPUS)?;
                within("ratio", ratio, 1, MAX_VCPUS / pcpus).map_err(|mut impossible| {
                    impossible.message =
                        format!("{} vCPUs on {pcpus} pCPUs: {}", ratio * pcpus, impossible.message);
                    impossible
                })?;
                Ok(ratio * pcpus)
            }
        }
    }

    /// Name and form of the lock, if the image has both.
    pub(crate) fn lock_form<'a>(&self, locks: &'a [Entry]) -> Result<(String, bool), Impossible> {
        let lock = self.lock_entry(locks)?;
        let name = lock.name.clone();
        let (native, paravirt) = (lock.has_native(), lock.has_paravirt());
        let pv = self.pv.map_or(!native, |pv| pv == Switch::On);
        let (form, other, has): (_, _, fn(&Entry) -> bool) = match pv {
            true if !paravirt => ("paravirtual", "off", Entry::has_paravirt),
            false if !native => ("native", "on", Entry::has_native),
            _ => return Ok((name, pv)),
        };
        // A lock in several layouts is one name.
        let of = |lock: &'a Entry| lock.name.split_once('/').map_or(lock.name.as_str(), |(name, _)| name);
        let mut with: Vec<&str> = locks.iter().filter(|lock| has(lock)).map(of).collect();
        with.dedup();
        let message =
            format!("lock '{name}' has no {form} form: use pv {other}, or one of {}", with.join(", "));
        Err(Impossible { key: "pv", message })
    }

    fn descheduling(&self, lock: &Entry, image: &Image) -> Result<Option<Deschedule>, Impossible> {
        let Some(DescheduleChoice(Some(Policy(deschedule)))) = self.deschedule.clone() else {
            return Ok(None);
        };
        deschedule.check(lock, image).map_err(|message| Impossible { key: "deschedule", message })?;
        Ok(Some(deschedule))
    }

    fn grace_length(&self, slice: Duration) -> Result<Duration, Impossible> {
        let grace = length(self.grace, Duration::ZERO);
        let wrong = |message: String| Err(Impossible { key: "grace", message });
        if grace > slice {
            return wrong(format!("{} is out of range: a slice, {}, at most", Span(grace), Span(slice)));
        }
        if !grace.is_zero() && self.sched == Some(SchedChoice::Host) {
            return wrong("only the VMM's own scheduler can grant it: use --sched vmm".into());
        }
        Ok(grace)
    }

    fn kick_yields(&self) -> Result<bool, Impossible> {
        let on = self.kick_yield == Some(Switch::On);
        if on && self.sched == Some(SchedChoice::Host) {
            let message = "only the VMM's own scheduler can run whom a kick names: use --sched vmm".into();
            return Err(Impossible { key: "kick-yield", message });
        }
        Ok(on)
    }

    /// The image's entry for lock and layout, which is called `lock/layout` where there are several.
    fn lock_entry<'a>(&self, locks: &'a [Entry]) -> Result<&'a Entry, Impossible> {
        let name = self.lock.as_deref().unwrap_or("qspinlock");
        let layouts = layouts(locks, name);
        let Some(layout) = &self.layout else {
            let first = layouts.first().map_or(name.to_owned(), |layout| format!("{name}/{layout}"));
            return find("lock", &first, locks);
        };
        if layouts.is_empty() {
            find("lock", name, locks)?;
            let message =
                format!("lock '{name}' has no layouts to choose from: leave it out, or take another lock");
            return Err(Impossible { key: "layout", message });
        }
        match layouts.contains(&layout.as_str()) {
            true => find("lock", &format!("{name}/{layout}"), locks),
            false => Err(Impossible {
                key: "layout",
                message: format!("lock '{name}' has no layout '{layout}': it has {}", layouts.join(", ")),
            }),
        }
    }

    fn slice_length(&self) -> Result<Duration, Impossible> {
        let slice = length(self.slice, Duration::from_millis(1));
        let (shortest, longest) = SLICE_RANGE;
        if (shortest..=longest).contains(&slice) {
            return Ok(slice);
        }
        let message =
            format!("a slice of {} is out of range: {} to {}", Span(slice), Span(shortest), Span(longest));
        Err(Impossible { key: "slice", message })
    }
}

fn length(given: Option<Span>, default: Duration) -> Duration {
    given.map_or(default, |span| span.0)
}

fn work(key: &'static str, given: Option<Span>, default: Duration) -> Result<Duration, Impossible> {
    let work = length(given, default);
    if work <= MAX_WORK {
        return Ok(work);
    }
    Err(Impossible { key, message: format!("{} is out of range: {} at most", Span(work), Span(MAX_WORK)) })
}

fn within(key: &'static str, value: u32, least: u32, most: u32) -> Result<u32, Impossible> {
    if (least..=most).contains(&value) {
        return Ok(value);
    }
    Err(Impossible { key, message: format!("{value} is out of range: {least} to {most}") })
}

/// The layouts in which the image has lock `name`; none if it has it in one form only.
pub(crate) fn layouts<'a>(locks: &'a [Entry], name: &str) -> Vec<&'a str> {
    locks
        .iter()
        .filter_map(|lock| lock.name.split_once('/'))
        .filter(|(lock, _)| *lock == name)
        .map(|(_, layout)| layout)
        .collect()
}

fn find<'a>(kind: &'static str, name: &str, entries: &'a [Entry]) -> Result<&'a Entry, Impossible> {
    entries.iter().find(|entry| entry.name == name).ok_or_else(|| {
        // A lock in several layouts is one name.
        let mut names: Vec<&str> = entries.iter().filter_map(|entry| entry.name.split('/').next()).collect();
        names.dedup();
        Impossible { key: kind, message: nearest::unknown(kind, name, &names) }
    })
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
