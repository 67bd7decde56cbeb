//! The request of a run, as its record tells it.

use std::time::Duration;

use haltkick_vmm::{Accelerator, Engine, OurGuest, Outcome, Ring, Run, Sched};
use serde::{Deserialize, Serialize};

use super::why::Why;
use crate::settings::choices::{EXTENSIONS, NumaChoice, SCHEDULERS, SHARES};
use crate::settings::deschedule::Policy;
use crate::settings::fold::FoldChoice;
use crate::settings::pause_loops::PauseLoops;
use crate::settings::quota::QuotaChoice;
use crate::text::output::clean;

/// Declares the request, and its echo of a guest's settings and of the choices that were left to the run: a row for each field,
/// with the value that it has for the guest `asked`.
macro_rules! config {
    (|$asked:ident, $outcome:ident, $why:ident| $($(#[$about:meta])* $field:ident: $type:ty = $value:expr;)*) => {
        /// The request.
        #[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        pub(crate) struct Config {
            $($(#[$about])* pub(crate) $field: $type,)*
        }

        impl Config {
            /// Echoes the settings of a guest, and the choices that were left to the run.
            pub(crate) fn new($asked: OurGuest<'_>, $outcome: &Outcome, $why: &mut Why) -> Self {
                Self { $($field: $value,)* }
            }
        }
    };
}

config! { |asked, outcome, why|
    /// Engine of the guest: "kvm", "threads", "qemu-kvm", "qemu-tcg" or "sim".
    engine: String = engine(&asked.run.engine).into();
    /// The file of the simulated machine, word for word.
    #[serde(default)]
    machine: Option<String> = why.given("config.machine", asked.run.engine.machine().map(|machine| machine.text.clone()),
        "a machine that is not simulated");
    /// The file of the host whose scheduler is modelled on the simulated machine, word for word; null where none is.
    #[serde(default)]
    host: Option<String> = why.given("config.host", asked.run.host.as_ref().map(|host| host.text.clone()),
        "no model of a host schedules");
    /// Name of the guest among those of the run.
    #[serde(default)]
    guest: String = asked.guest.name.clone();
    /// Names of the other guests that ran at the same time.
    #[serde(default)]
    beside: Vec<String> = beside(asked);
    /// Unit with equal shares of the pCPUs: "vcpu" or "guest".
    #[serde(default)]
    share: String = SHARES.of(asked.run.rules.share).into();
    /// Number of vCPUs.
    vcpus: u32 = asked.guest.vcpus;
    /// Host CPUs that they share.
    cpus: Vec<u32> = asked.run.cpus.clone();
    /// NUMA nodes of the guest's memory: "local", "interleave" or a number; null in records older than the field.
    #[serde(default)]
    numa: Option<String> = why.given("config.numa", numa(asked.run),
        "this engine's guests have no memory that the VMM places on nodes");
    /// vCPUs per pCPU.
    ratio: f64 = f64::from(asked.guest.vcpus) / asked.run.cpus.len() as f64;
    /// CPU time of the guest's vCPUs in each period, "RUN/PERIOD+BURST"; null where it had no quota, and in older records.
    #[serde(default)]
    quota: Option<String> = why.given("config.quota", asked.guest.quota.map(|quota| QuotaChoice(Some(quota)).to_string()),
        "the guest had no quota");
    /// When the guest got its first pCPU in the window, from its opening on; null where it had one at once, and in older records.
    #[serde(default)]
    from_ns: Option<u64> = why.given("config.from_ns", asked.guest.presence.map(|presence| ns(presence.from)),
        "the guest was there all the time");
    /// When the guest got no pCPU any longer, from the opening of the window on; null where it stayed, and in older records.
    #[serde(default)]
    until_ns: Option<u64> = why.given("config.until_ns", asked.guest.presence.and_then(|presence| presence.until).map(ns),
        "the guest stayed until the end");
    /// How much longer a vCPU could run that said it held a lock when its slice ended.
    #[serde(default)]
    grace_ns: u64 = ns(asked.run.rules.grace);
    /// Which sections asked for that: "kernel" (all) or "user" (short ones).
    #[serde(default = "kernel")]
    slice_extension: String = EXTENSIONS.of(asked.ours.mix.only_short_ask).into();
    /// How much of a slice had to be left for locks that ask for that; null in records from before there were any.
    #[serde(default)]
    slice_margin_ns: Option<u64> = Some(ns(asked.ours.slice_margin));
    /// Whether a kick handed the pCPU to the vCPU that it woke.
    #[serde(default)]
    kick_yield: bool = asked.run.rules.kick_yields;
    /// Whether descheduling was attributed to what the vCPU was doing.
    #[serde(default = "yes")]
    attribution: bool = asked.run.attribution;
    /// vCPUs to take off on purpose, how often and for how long; null: none.
    #[serde(default)]
    deschedule: Option<String> = why.given("config.deschedule", asked.run.deschedule.clone().map(|policy| Policy(policy).to_string()),
        "no vCPU was to be descheduled on purpose");
    /// File of the recorded schedule that was repeated; null where none was, and in records older than the field.
    #[serde(default)]
    schedule: Option<String> = why.given("config.schedule", asked.run.schedule.as_ref().map(|schedule| schedule.name().to_owned()),
        "no schedule was repeated");
    /// SHA-256 of that file; null where none was repeated, and in records older than the field.
    #[serde(default)]
    schedule_sha256: Option<String> = why.given("config.schedule_sha256",
        asked.run.schedule.as_ref().map(|schedule| schedule.sha256().to_owned()), "no schedule was repeated");
    /// Name of the lock.
    lock: String = asked.ours.lock.clone();
    /// Whether its paravirtual form.
    pv: bool = asked.guest.pv;
    /// Whether the lock's call sites were rewritten; else they called through a table.
    patch: bool = asked.ours.patch;
    /// Whether `vcpu_is_preempted` could read the flag.
    preempted_hint: bool = asked.ours.preempted_hint;
    /// How long a paravirtual waiter spins before it sleeps.
    spin_threshold_ns: u64 = ns(asked.ours.spin_threshold);
    /// How many rounds it spins instead; 0: it goes by that time, as it does in records older than the field.
    #[serde(default)]
    spin_rounds: u32 = asked.ours.spin_rounds;
    /// Memory that the guest managed, in bytes; 0 in workloads that manage none, and in records older than the field.
    #[serde(default)]
    memory_bytes: u64 = outcome.memory_bytes;
    /// "vmm" or "host".
    sched: String = SCHEDULERS.of(asked.run.rules.sched).into();
    /// Length of a slice; null where the host decides.
    slice_ns: Option<u64> = why.given("config.slice_ns", (asked.run.rules.sched == Sched::Vmm).then(|| ns(asked.run.rules.slice)),
        "the host's scheduler decides");
    /// The ring that was used: 0 or 3.
    ring: u32 = if outcome.ring == Ring::Ring0 { 0 } else { 3 };
    /// Why that ring.
    ring_reason: String = outcome.ring_reason.clone();
    /// How vCPUs slept and were woken: "vmm", "kvm" or "ipi".
    pv_backend: String = outcome.pv_backend.name().into();
    /// Why so.
    pv_backend_reason: String = outcome.pv_backend_reason.clone();
    /// How long KVM polls before it lets a halted vCPU sleep; null if not set, so that the host's setting holds.
    halt_poll_ns: Option<u64> = why.given("config.halt_poll_ns", asked.run.halts.poll.map(ns), "left as the host has it");
    /// Whether spin loops in ring 0 may end in exits.
    pause_exits: bool = asked.run.halts.pause_exits;
    /// Limits of pause loops in the model of a host, "gap=TICKS,window=TICKS", and ",target=" if that is not KVM's; null where no model has any, and in older records.
    #[serde(default)]
    ple: Option<String> = why.given("config.ple", PauseLoops::of(asked.run).map(|loops| loops.to_string()),
        "no model of a host has pause-loop exits");
    /// Whether HLT ends in an exit.
    hlt_exits: bool = asked.run.halts.hlt_exits;
    /// Name of the workload.
    workload: String = asked.ours.workload.clone();
    /// Work inside a critical section.
    hold_ns: u64 = ns(asked.ours.hold);
    /// Work between critical sections.
    think_ns: u64 = ns(asked.ours.think);
    /// Locks that the sections are spread over.
    locks: u32 = asked.ours.lock_count;
    /// Tasks that took turns on the vCPUs; null in workloads without tasks, and in older records.
    #[serde(default)]
    tasks: Option<u32> = why.given("config.tasks", (asked.ours.workload == "tasks").then(|| asked.ours.tasks.unwrap_or(asked.guest.vcpus)),
        "the workload has no tasks");
    /// How the guest chose the vCPUs that run tasks, as `--fold` says it; null in workloads without tasks, and in older records.
    #[serde(default)]
    fold: Option<String> = why.given("config.fold", (asked.ours.workload == "tasks").then(|| FoldChoice(asked.ours.fold).to_string()),
        "the workload has no tasks");
    /// Sections that make up the fixed amount of work; null: as many as fit into the window.
    work_sections: Option<u64> = why.given("config.work_sections", asked.ours.mix.work_sections,
        "as many sections as fit into the window");
    /// Whether vCPUs went on, uncounted, when that was done.
    #[serde(default)]
    go_on: bool = asked.ours.mix.go_on;
    /// Work inside a long critical section.
    #[serde(default)]
    long_hold_ns: u64 = ns(asked.ours.mix.long_hold);
    /// One section in this many, chosen at random, is long; 0: none.
    #[serde(default)]
    long_one_in: u32 = asked.ours.mix.long_one_in;
    /// One section in this many, chosen at random, has another inside; 0: none.
    #[serde(default)]
    nested_one_in: u32 = asked.ours.mix.nested_one_in;
    /// Whether thinking times (or times between arrivals) were exponentially distributed.
    #[serde(default)]
    exponential_think: bool = asked.ours.shape.exponential_think;
    /// How far the length of a section was off `hold_ns`, at most, in percent of it.
    #[serde(default)]
    hold_jitter_percent: u32 = asked.ours.shape.hold_jitter_percent;
    /// Locks were chosen with a probability that fell with their number to this power; 0: in turn.
    #[serde(default)]
    zipf: f64 = f64::from(asked.ours.shape.zipf_hundredths) / 100.0;
    /// Mean time between two sections that each vCPU was to begin; null: it began the next when it had thought.
    #[serde(default)]
    arrivals_ns: Option<u64> = why.given("config.arrivals_ns", asked.ours.shape.arrivals.map(ns),
        "vCPUs began their next section when they had thought");
    /// Cache lines that a section walked.
    #[serde(default)]
    footprint_lines: u32 = asked.ours.shape.footprint_lines;
    /// Number of these lines that it wrote.
    #[serde(default)]
    dirty_lines: u32 = asked.ours.shape.dirty_lines;
    /// Whether the first of those lines was the one in which the lock ends.
    #[serde(default)]
    embed: bool = asked.ours.shape.embed;
    /// Sections in a hundred that only read.
    #[serde(default)]
    read_percent: u32 = asked.ours.shape.read_percent;
    /// Work inside those; 0 where there are none.
    #[serde(default)]
    read_hold_ns: u64 = if asked.ours.shape.read_percent > 0 { ns(asked.ours.shape.read_hold) } else { 0 };
    /// Whether every section was watched from inside.
    #[serde(default = "yes")]
    oracle: bool = asked.ours.oracle;
    /// Whether the run showed itself to `haltkick top` while it went.
    #[serde(default)]
    live: bool = asked.run.live;
    /// Whether the clock was read between fences at the edges of sections; it was not in records from before there was a choice.
    #[serde(default)]
    ordered_stamps: bool = asked.ours.ordered_stamps;
    /// Time between start and window.
    warmup_ns: u64 = ns(asked.run.warmup);
    /// Length of the window as asked.
    window_ns: u64 = ns(asked.run.window);
    /// The window doubled until at least this many sections were done in it; 0: it stayed as asked.
    #[serde(default)]
    min_sections: u64 = asked.run.min_sections;
    /// Seed of everything random.
    seed: u64 = asked.guest.seed;
}

impl Config {
    /// The first file that a simulation reads, of the machine, the host and the schedule, that is another one for `run`.
    pub(crate) fn other_file(&self, run: &Run) -> Option<&'static str> {
        // Records that were read back are clean.
        let machine = run.engine.machine().map(|machine| clean(&machine.text));
        let host = run.host.as_ref().map(|host| clean(&host.text));
        let schedule = run.schedule.as_ref().map(|schedule| schedule.sha256().to_owned());
        let files = [
            ("machine", machine, &self.machine),
            ("host", host, &self.host),
            ("schedule", schedule, &self.schedule_sha256),
        ];
        files.into_iter().find(|(_, is, was)| is != *was).map(|(file, ..)| file)
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

/// Names of the other guests. The first guest tells of them.
fn beside(asked: OurGuest<'_>) -> Vec<String> {
    let others = asked.run.guests.iter().skip(1).filter(|_| asked.index == 0);
    others.map(|guest| guest.name.clone()).collect()
}

/// NUMA nodes of the guests' memory, where the VMM places it.
fn numa(run: &Run) -> Option<String> {
    matches!(run.engine, Engine::Kvm | Engine::Threads).then(|| NumaChoice(run.numa).to_string())
}

/// Name of an engine in records.
pub(crate) fn engine(engine: &Engine) -> &'static str {
    match engine {
        Engine::Kvm => "kvm",
        Engine::Threads => "threads",
        Engine::Qemu(Accelerator::Kvm) => "qemu-kvm",
        Engine::Qemu(Accelerator::Tcg) => "qemu-tcg",
        Engine::Sim(_) => "sim",
    }
}

/// The meaning of records from before there was a choice.
fn kernel() -> String {
    "kernel".into()
}

fn yes() -> bool {
    true
}
