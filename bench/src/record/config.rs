//! The request of a run, as its record tells it.

use std::time::Duration;

use haltkick_vmm::{Accelerator, Engine, OurGuest, Outcome, Ring, Sched, Share};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::why::Why;
use crate::settings::choices::NumaChoice;
use crate::settings::deschedule::Policy;
use crate::settings::pause_loops::PauseLoops;

/// The request.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
pub(crate) struct Config {
    /// Engine of the guest: "kvm", "threads", "qemu-kvm", "qemu-tcg" or "sim".
    pub(crate) engine: String,
    /// The file of the simulated machine, word for word.
    #[serde(default)]
    pub(crate) machine: Option<String>,
    /// The file of the host whose scheduler is modelled on the simulated machine, word for word; null where none is.
    #[serde(default)]
    pub(crate) host: Option<String>,
    /// Name of the guest among those of the run.
    #[serde(default)]
    pub(crate) guest: String,
    /// Names of the other guests that ran at the same time.
    #[serde(default)]
    pub(crate) beside: Vec<String>,
    /// Unit with equal shares of the pCPUs: "vcpu" or "guest".
    #[serde(default)]
    pub(crate) share: String,
    /// Number of vCPUs.
    pub(crate) vcpus: u32,
    /// Host CPUs that they share.
    pub(crate) cpus: Vec<u32>,
    /// NUMA nodes of the guest's memory: "local", "interleave" or a number; null in records older than the field.
    #[serde(default)]
    pub(crate) numa: Option<String>,
    /// vCPUs per pCPU.
    pub(crate) ratio: f64,
    /// How much longer a vCPU could run that said it held a lock when its slice ended.
    #[serde(default)]
    pub(crate) grace_ns: u64,
    /// How much of a slice had to be left for locks that ask for that; null in records from before there were any.
    #[serde(default)]
    pub(crate) slice_margin_ns: Option<u64>,
    /// Whether a kick handed the pCPU to the vCPU that it woke.
    #[serde(default)]
    pub(crate) kick_yield: bool,
    /// Whether descheduling was attributed to what the vCPU was doing.
    #[serde(default = "yes")]
    pub(crate) attribution: bool,
    /// vCPUs to take off on purpose, how often and for how long; null: none.
    #[serde(default)]
    pub(crate) deschedule: Option<String>,
    /// Name of the lock.
    pub(crate) lock: String,
    /// Whether its paravirtual form.
    pub(crate) pv: bool,
    /// Whether the lock's call sites were rewritten; else they called through a table.
    pub(crate) patch: bool,
    /// Whether `vcpu_is_preempted` could read the flag.
    pub(crate) preempted_hint: bool,
    /// How long a paravirtual waiter spins before it sleeps.
    pub(crate) spin_threshold_ns: u64,
    /// How many rounds it spins instead; 0: it goes by that time, as it does in records older than the field.
    #[serde(default)]
    pub(crate) spin_rounds: u32,
    /// Memory that the guest managed, in bytes; 0 in workloads that manage none, and in records older than the field.
    #[serde(default)]
    pub(crate) memory_bytes: u64,
    /// "vmm" or "host".
    pub(crate) sched: String,
    /// Length of a slice; null where the host decides.
    pub(crate) slice_ns: Option<u64>,
    /// The ring that was used: 0 or 3.
    pub(crate) ring: u32,
    /// Why that ring.
    pub(crate) ring_reason: String,
    /// How vCPUs slept and were woken: "vmm", "kvm" or "ipi".
    pub(crate) pv_backend: String,
    /// Why so.
    pub(crate) pv_backend_reason: String,
    /// How long KVM polls before it lets a halted vCPU sleep; null if not set, so that the host's setting holds.
    pub(crate) halt_poll_ns: Option<u64>,
    /// Whether spin loops in ring 0 may end in exits.
    pub(crate) pause_exits: bool,
    /// Limits of pause loops in the model of a host, "gap=TICKS,window=TICKS"; null where no model has any, and in older records.
    #[serde(default)]
    pub(crate) ple: Option<String>,
    /// Whether HLT ends in an exit.
    pub(crate) hlt_exits: bool,
    /// Name of the workload.
    pub(crate) workload: String,
    /// Work inside a critical section.
    pub(crate) hold_ns: u64,
    /// Work between critical sections.
    pub(crate) think_ns: u64,
    /// Locks that the sections are spread over.
    pub(crate) locks: u32,
    /// Sections that make up the fixed amount of work; null: as many as fit into the window.
    pub(crate) work_sections: Option<u64>,
    /// Whether vCPUs went on, uncounted, when that was done.
    #[serde(default)]
    pub(crate) go_on: bool,
    /// Work inside a long critical section.
    #[serde(default)]
    pub(crate) long_hold_ns: u64,
    /// One section in this many, chosen at random, is long; 0: none.
    #[serde(default)]
    pub(crate) long_one_in: u32,
    /// One section in this many, chosen at random, has another inside; 0: none.
    #[serde(default)]
    pub(crate) nested_one_in: u32,
    /// Whether thinking times (or times between arrivals) were exponentially distributed.
    #[serde(default)]
    pub(crate) exponential_think: bool,
    /// How far the length of a section was off `hold_ns`, at most, in percent of it.
    #[serde(default)]
    pub(crate) hold_jitter_percent: u32,
    /// Locks were chosen with a probability that fell with their number to this power; 0: in turn.
    #[serde(default)]
    pub(crate) zipf: f64,
    /// Mean time between two sections that each vCPU was to begin; null: it began the next when it had thought.
    #[serde(default)]
    pub(crate) arrivals_ns: Option<u64>,
    /// Cache lines that a section walked.
    #[serde(default)]
    pub(crate) footprint_lines: u32,
    /// Number of these lines that it wrote.
    #[serde(default)]
    pub(crate) dirty_lines: u32,
    /// Whether the first of those lines was the one in which the lock ends.
    #[serde(default)]
    pub(crate) embed: bool,
    /// Sections in a hundred that only read.
    #[serde(default)]
    pub(crate) read_percent: u32,
    /// Work inside those; 0 where there are none.
    #[serde(default)]
    pub(crate) read_hold_ns: u64,
    /// Whether every section was watched from inside.
    #[serde(default = "yes")]
    pub(crate) oracle: bool,
    /// Whether the run showed itself to `haltkick top` while it went.
    #[serde(default)]
    pub(crate) live: bool,
    /// Whether the clock was read between fences at the edges of sections; it was not in records from before there was a choice.
    #[serde(default)]
    pub(crate) ordered_stamps: bool,
    /// Time between start and window.
    pub(crate) warmup_ns: u64,
    /// Length of the window as asked.
    pub(crate) window_ns: u64,
    /// The window doubled until at least this many sections were done in it; 0: it stayed as asked.
    #[serde(default)]
    pub(crate) min_sections: u64,
    /// Seed of everything random.
    pub(crate) seed: u64,
}

impl Config {
    /// Echoes the settings of a guest, and the choices that were left to the run. Long: its one literal names every field.
    pub(crate) fn new(asked: OurGuest<'_>, outcome: &Outcome, why: &mut Why) -> Self {
        let (mix, shape) = (asked.ours.mix, asked.ours.shape);
        // The first tells of the others.
        let beside = asked.run.guests.iter().skip(1).filter(|_| asked.index == 0);
        let deschedule = asked.run.deschedule.clone().map(|policy| Policy(policy).to_string());
        let slice_ns = (asked.run.rules.sched == Sched::Vmm).then(|| ns(asked.run.rules.slice));
        let machine = asked.run.engine.machine().map(|machine| machine.text.clone());
        Self {
            engine: engine(&asked.run.engine).into(),
            machine: why.given("config.machine", machine, "a machine that is not simulated"),
            host: why.given(
                "config.host",
                asked.run.host.as_ref().map(|host| host.text.clone()),
                "no model of a host schedules",
            ),
            guest: asked.guest.name.clone(),
            beside: beside.map(|guest| guest.name.clone()).collect(),
            share: share(asked.run.rules.share).into(),
            vcpus: asked.guest.vcpus,
            cpus: asked.run.cpus.clone(),
            numa: why.given(
                "config.numa",
                matches!(asked.run.engine, Engine::Kvm | Engine::Threads)
                    .then(|| NumaChoice(asked.run.numa).to_string()),
                "this engine's guests have no memory that the VMM places on nodes",
            ),
            ratio: f64::from(asked.guest.vcpus) / asked.run.cpus.len() as f64,
            grace_ns: ns(asked.run.rules.grace),
            slice_margin_ns: Some(ns(asked.ours.slice_margin)),
            kick_yield: asked.run.rules.kick_yields,
            attribution: asked.run.attribution,
            deschedule: why.given(
                "config.deschedule",
                deschedule,
                "no vCPU was to be descheduled on purpose",
            ),
            lock: asked.ours.lock.clone(),
            pv: asked.guest.pv,
            patch: asked.ours.patch,
            preempted_hint: asked.ours.preempted_hint,
            spin_threshold_ns: ns(asked.ours.spin_threshold),
            spin_rounds: asked.ours.spin_rounds,
            memory_bytes: outcome.memory_bytes,
            sched: sched(asked.run.rules.sched).into(),
            slice_ns: why.given("config.slice_ns", slice_ns, "the host's scheduler decides"),
            ring: if outcome.ring == Ring::Ring0 { 0 } else { 3 },
            ring_reason: outcome.ring_reason.clone(),
            pv_backend: outcome.pv_backend.name().into(),
            pv_backend_reason: outcome.pv_backend_reason.clone(),
            halt_poll_ns: why.given(
                "config.halt_poll_ns",
                asked.run.halts.poll.map(ns),
                "left as the host has it",
            ),
            pause_exits: asked.run.halts.pause_exits,
            ple: why.given(
                "config.ple",
                PauseLoops::of(asked.run).map(|loops| loops.to_string()),
                "no model of a host has pause-loop exits",
            ),
            hlt_exits: asked.run.halts.hlt_exits,
            workload: asked.ours.workload.clone(),
            hold_ns: ns(asked.ours.hold),
            think_ns: ns(asked.ours.think),
            locks: asked.ours.lock_count,
            work_sections: why.given(
                "config.work_sections",
                mix.work_sections,
                "as many sections as fit into the window",
            ),
            go_on: mix.go_on,
            long_hold_ns: ns(mix.long_hold),
            long_one_in: mix.long_one_in,
            nested_one_in: mix.nested_one_in,
            exponential_think: shape.exponential_think,
            hold_jitter_percent: shape.hold_jitter_percent,
            zipf: f64::from(shape.zipf_hundredths) / 100.0,
            arrivals_ns: why.given(
                "config.arrivals_ns",
                shape.arrivals.map(ns),
                "vCPUs began their next section when they had thought",
            ),
            footprint_lines: shape.footprint_lines,
            dirty_lines: shape.dirty_lines,
            embed: shape.embed,
            read_percent: shape.read_percent,
            read_hold_ns: if shape.read_percent > 0 { ns(shape.read_hold) } else { 0 },
            oracle: asked.ours.oracle,
            live: asked.run.live,
            ordered_stamps: asked.ours.ordered_stamps,
            warmup_ns: ns(asked.run.warmup),
            window_ns: ns(asked.run.window),
            min_sections: asked.run.min_sections,
            seed: asked.guest.seed,
        }
    }

    /// Mean work in a section and after it.
    pub(crate) fn section_ns(&self) -> u64 {
        let hold_ns = match u64::from(self.long_one_in) {
            0 => self.hold_ns,
            n => (self.hold_ns * (n - 1) + self.long_hold_ns) / n,
        };
        hold_ns + self.think_ns
    }
}

/// A time in nanoseconds, as far as records can hold it.
pub(crate) fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn engine(engine: &Engine) -> &'static str {
    match engine {
        Engine::Kvm => "kvm",
        Engine::Threads => "threads",
        Engine::Qemu(Accelerator::Kvm) => "qemu-kvm",
        Engine::Qemu(Accelerator::Tcg) => "qemu-tcg",
        Engine::Sim(_) => "sim",
    }
}

/// The scheduler's name in records.
pub(crate) fn sched(sched: Sched) -> &'static str {
    match sched {
        Sched::Vmm => "vmm",
        Sched::Host => "host",
    }
}

fn share(share: Share) -> &'static str {
    match share {
        Share::Vcpu => "vcpu",
        Share::Guest => "guest",
    }
}

/// The meaning of records from before there was a choice.
fn yes() -> bool {
    true
}
