//! The table of settings. Flags, keys of experiment files, `--set`, settings of single guests, what is refused for Linux
//! guests, and the record's `settings`: all of it comes from here.
//!
//! To add a setting, add a row. Its value goes into the run by `sets_run`, or into the work of each guest by `sets_ours`;
//! a row without either is combined with others in `Settings::resolve`. A number for the guest's sections goes into its
//! `Shape`, which the guest reads as it is. A row that only says more of another one stands `behind` it.

use std::time::Duration;

use haltkick_vmm::{
    Accelerator, Engine, MAX_LOCKS, MAX_VCPUS, MOST_LINES, Run, Sched, ShapeFlags, WorkloadFlags,
};

use super::choices::{
    self, AFTER_WORK, DISTRIBUTIONS, ENGINES, EXTENSIONS, FLAG_WRITERS, PLACES, PV_BACKENDS, RINGS,
    SCHEDULERS, SHARES, STAMPS, SWITCH,
};
use super::pause_loops::PauseLoops;
use super::row::{Kind, Linux, Setting, boot, given, name, ns, number, other, switch, time, told, word};
use crate::text::nearest;
use crate::text::quantity::MemorySize;

/// The rows, under the headings of the help.
pub(crate) static TABLE: &[(&str, &[Setting])] = &[
    ("Machine", MACHINE),
    ("Hostility", HOSTILITY),
    ("Measuring", MEASURING),
    ("Lock", LOCK),
    ("Workload", WORKLOAD),
    ("Several guests", SEVERAL_GUESTS),
];

/// Keys of experiment files that boot a kernel instead of our own guest. They stand wherever settings do.
pub(crate) static BOOT: &[Setting] = &[
    boot("kernel", Kind::Text, "Boot this kernel instead of our own guest; relative to this file"),
    boot("initrd", Kind::Text, "Its initial RAM disk; relative to this file"),
    boot(
        CMDLINE,
        Kind::Words,
        "Words for its command line; those of [settings] come first, then the grid's, then the arm's",
    ),
    boot(NOPVSPIN, Kind::Flag, "Whether the kernel is told not to use paravirtual spin locks"),
    boot(
        "marker",
        Kind::Text,
        "A piece of a line of its console that says: user space is there [default: Run /]",
    ),
    boot(
        WORKLOAD_INSIDE,
        Kind::Text,
        "Run this workload on it, `run` and settings of that, and make a RAM disk for it",
    ),
];

pub(crate) const CMDLINE: &str = "cmdline";
pub(crate) const NOPVSPIN: &str = "nopvspin";
/// The workload that runs inside a kernel. It brings its own RAM disk.
pub(crate) const WORKLOAD_INSIDE: &str = "workload-inside";

/// Whether `key` boots a kernel, rather than being a setting of a run.
pub(crate) fn boots(key: &str) -> bool {
    BOOT.iter().any(|row| row.name == key)
}

/// Longest work in or between sections that still makes sense with a watchdog.
const MAX_WORK: Duration = Duration::from_secs(1);
/// A shorter watchdog ends runs in which nothing is wrong.
const SHORTEST_WATCHDOG: Duration = Duration::from_millis(10);
const LONGEST_WATCHDOG: Duration = Duration::from_secs(24 * 3600);
const SHORTEST_SLICE: Duration = Duration::from_micros(50);
const LONGEST_SLICE: Duration = Duration::from_millis(100);

/// Settings of the machine: engine, CPUs, scheduler.
const MACHINE: &[Setting] = &[
    word(
        "engine",
        "ENGINE",
        "What runs the guest: kvm; threads or qemu where there is no /dev/kvm; sim, a simulated \
         machine",
        &ENGINES,
    )
    .typed("What runs the guest: --engine sim, a simulated machine, needs no /dev/kvm")
    .default("kvm")
    .linux(Linux::Only(&["kvm", "qemu", "qemu-kvm", "qemu-tcg"]))
    .recorded_as("engine", |it| told(engine(&it.run.engine))),
    name("machine", "The machine of engine sim: one of `haltkick list machines`, or a file")
        .typed("The simulated machine: --machine skylake-8s")
        .default_in_help("none")
        .recorded_as("machine", |it| {
            given(
                it.run.engine.machine().map(|machine| machine.name.clone()),
                "a machine that is not simulated",
            )
        }),
    number("vcpus", "Number of vCPUs")
        .within(1..=MAX_VCPUS as u64)
        .instead_of("ratio")
        .of_guest()
        .linux(Linux::Used)
        .recorded_as("vcpus", |it| told(it.guest.vcpus)),
    other("ratio", "N", Kind::Ratio, "vCPUs per pCPU, such as 8 or 1.5, instead of --vcpus")
        .typed("vCPUs per pCPU: --ratio 8")
        .default_in_help("8, or less if there would be more than 1024 vCPUs")
        .within(1..=MAX_VCPUS as u64)
        .instead_of("vcpus")
        .of_guest()
        .linux(Linux::Used)
        .recorded_as("ratio", |it| told(f64::from(it.guest.vcpus) / it.run.cpus.len() as f64)),
    other(
        "cpus",
        "CPUS",
        Kind::Cpus,
        "Host CPUs to use: cores, node:N, llc:N, isolated, all, or a list such as 0,2-3",
    )
    .typed("Host CPUs to use: --cpus 0-3")
    .default_in_help("cores: one CPU of each core that this process may use")
    .linux(Linux::Used)
    .recorded_as("cpus", |it| told(it.run.cpus.clone())),
    other(
        "numa",
        "NODES",
        Kind::Numa,
        "NUMA nodes of guest memory: local (that of each vCPU near its pCPU), interleave, or a \
         node's number",
    )
    .sets_run(|run, value| run.numa = value.by(choices::numa))
    .recorded_as("numa", |it| {
        given(numa(it.run), "this engine's guests have no memory that the VMM places on nodes")
    }),
    word("ring", "RING", "Privilege ring of the guest; auto on a simulated machine: 0", &RINGS)
        .default("auto")
        .sets_run(|run, value| run.ring = value.among(&RINGS)),
    word("sched", "SCHEDULER", "Which scheduler preempts the vCPUs: vmm or host", &SCHEDULERS)
        .typed("Which scheduler preempts the vCPUs: --sched host")
        .linux(Linux::Used)
        .sets_run(|run, value| run.rules.sched = value.among(&SCHEDULERS))
        .recorded_as("sched", |it| told(SCHEDULERS.of(it.run.rules.sched))),
    name(
        "host",
        "The host whose scheduler engine sim models with sched host: one of `haltkick list \
         hosts`, or a file",
    )
    .default_in_help("none")
    .recorded_as("host", |it| {
        given(it.run.host.as_ref().map(|host| host.name.clone()), "no model of a host schedules")
    }),
    time("slice", "Time a vCPU may run before the VMM takes it off its pCPU, 50us to 100ms")
        .typed("Time a vCPU may run before the VMM takes it off its pCPU: --slice 500us")
        .lasting(SHORTEST_SLICE..=LONGEST_SLICE)
        .linux(Linux::Used)
        .sets_run(|run, value| run.rules.slice = value.time())
        .recorded_as("slice_ns", |it| {
            given(
                (it.run.rules.sched == Sched::Vmm).then(|| ns(it.run.rules.slice)),
                "the host's scheduler decides",
            )
        }),
    switch("pause-exits", "Exits of spin loops in ring 0 (PLE, PAUSE filter): on or off")
        .linux(Linux::Used)
        .sets_run(|run, value| run.halts.pause_exits = value.is_on())
        .recorded_as("pause_exits", |it| told(it.run.halts.pause_exits)),
    other(
        "ple",
        "LIMITS",
        Kind::PauseLoops,
        "Limits of pause loops in the model of a host: gap=TICKS and window=TICKS (or PAUSEs on \
         AMD); and to which vCPU one that spins yields: target=round-robin (as KVM does), \
         last-kicked, holder or only-holder",
    )
    .default_in_help("as the host file says")
    .recorded_as("ple", |it| {
        given(
            PauseLoops::of(it.run).map(|loops| loops.to_string()),
            "no model of a host has pause-loop exits",
        )
    }),
    switch("hlt-exits", "Exits at HLT: on, or off (a halted vCPU keeps its pCPU)")
        .sets_run(|run, value| run.halts.hlt_exits = value.is_on())
        .recorded_as("hlt_exits", |it| told(it.run.halts.hlt_exits)),
];

const HOSTILITY: &[Setting] = &[
    other(
        "deschedule",
        "POLICY",
        Kind::Deschedule,
        "Take vCPUs off their pCPU on purpose: none, or holder, head, waiter or random, followed \
         by ,rate=N (times a second) or ,prob=P, ,for=TIME and ,at=POINT (`haltkick list \
         points`); see docs/hostile-host.md",
    )
    .typed("Take vCPUs off their pCPU on purpose: --deschedule holder,rate=100,for=5ms")
    .default("none")
    .linux(Linux::Used)
    .sets_run(|run, value| run.deschedule = value.by(choices::deschedule))
    .recorded_as("deschedule", |it| {
        given(
            it.run.deschedule.as_ref().map(choices::written_deschedule),
            "no vCPU was to be descheduled on purpose",
        )
    }),
    name(
        "schedule",
        "A file with a recorded schedule that engine sim repeats: what `haltkick run --trace` wrote, or the text of perf script or \
         trace-cmd report with sched_switch and sched_waking; see docs/worst.md",
    )
    .default_in_help("none")
    .recorded_as("schedule", |it| {
        given(it.run.schedule.as_ref().map(|schedule| schedule.name.clone()), "no schedule was repeated")
    }),
    other(
        "quota",
        "RUN/PERIOD|inherited",
        Kind::Quota,
        "CPU time of a guest's vCPUs together in each period, such as 200us/1ms, after which all \
         wait for the next period; +BURST behind it: what may be left for a later one; inherited: \
         under sched host, the quota of the control group in which haltkick was started; see \
         docs/hostile-host.md",
    )
    .default("none")
    .of_guest()
    .recorded_as("quota", |it| {
        given(it.guest.quota.map(|quota| choices::written_quota(Some(quota))), "the guest had no quota")
    }),
    time(
        "grace",
        "How much longer a vCPU may run if it holds a lock when its slice ends, at most a slice; \
         which sections ask for that: kernel (all), or user (short ones of the workload mixed), \
         as in 50us/user",
    )
    .unit("TIME[/WHO]")
    .sets_run(|run, value| run.rules.grace = value.time())
    .recorded_as("grace_ns", |it| told(ns(it.run.rules.grace))),
    time("slice-margin", "How much of a slice must be left for slice-tas or qspinlock-wc to be taken")
        .sets_ours(|ours, value| ours.slice_margin = value.time())
        .recorded_as("slice_margin_ns", |it| told(ns(it.ours.slice_margin))),
    switch("kick-yield", "A kick hands the pCPU to the vCPU that it wakes: on or off")
        .sets_run(|run, value| run.rules.kick_yields = value.is_on())
        .recorded_as("kick_yield", |it| told(it.run.rules.kick_yields)),
    switch(
        "attribution",
        "Find out what each descheduled vCPU was doing, and what that cost the others: on or off",
    )
    .sets_run(|run, value| run.attribution = value.is_on())
    .recorded_as("attribution", |it| told(it.run.attribution)),
];

const LOCK: &[Setting] = &[
    name(
        "lock",
        "The lock; `haltkick list locks` shows them; with +pv its paravirtual form, as in qspinlock+pv",
    )
    .typed("The lock: --lock ticket, or --lock file:my_lock.c")
    .default("qspinlock")
    .of_guest()
    .recorded_as("lock", |it| told(it.ours.lock.clone())),
    name("layout", "Layout of the lock's queue, where it has several").default_in_help("its first"),
    switch(
        "pv",
        "Use the lock's paravirtual form: on or off. Off is what Linux runs with nopvspin; on a \
         host without PV it runs --lock virt-tas",
    )
    .typed("The lock's paravirtual form: --pv on")
    .default_in_help("off, unless the lock has only a paravirtual form")
    .of_guest()
    .linux(Linux::Used)
    .recorded_as("pv", |it| told(it.guest.pv)),
    switch(
        "patch",
        "Rewrite the call sites for the lock, as a kernel does at boot: on or off (call through a \
         table)",
    )
    .sets_ours(|ours, value| ours.patch = value.is_on())
    .recorded_as("patch", |it| told(it.ours.patch)),
    word(
        "preempted-hint",
        "SWITCH[/WRITER]",
        "Let vcpu_is_preempted() read what the host writes: on or off; what writes it under the \
         host's scheduler: auto, kvm or bpf, as in on/bpf",
        &SWITCH,
    )
    .of_guest()
    .sets_ours(|ours, value| ours.preempted_hint = value.is_on())
    .recorded_as("preempted_hint", |it| told(it.ours.preempted_hint)),
    word(
        "pv-backend",
        "BACKEND",
        "How vCPUs sleep and are woken: vmm (doorbells), kvm (HLT and hypercall), ipi (HLT and \
         interrupt)",
        &PV_BACKENDS,
    )
    .default("auto")
    .sets_run(|run, value| run.pv_backend = value.among(&PV_BACKENDS)),
    time("halt-poll", "How long KVM polls for a wake-up before it lets a halted vCPU sleep, 0ns for never")
        .default_in_help("the host's")
        .lasting(Duration::ZERO..=Duration::from_secs(4))
        .linux(Linux::Used)
        .sets_run(|run, value| run.halts.poll = Some(value.time()))
        .recorded_as("halt_poll_ns", |it| given(it.run.halts.poll.map(ns), "left as the host has it")),
    word(
        "preempted-by",
        "WRITER",
        "What writes the preempted flag under the host's scheduler: auto, kvm or bpf",
        &FLAG_WRITERS,
    )
    .sets_run(|run, value| run.preempted_by = value.among(&FLAG_WRITERS))
    .behind("preempted-hint"),
    other(
        "spin-threshold",
        "TIME|linux",
        Kind::SpinThreshold,
        "How long a paravirtual waiter spins before it sleeps; linux: 2^15 rounds, as Linux does",
    )
    .of_guest()
    .sets_ours(|ours, value| {
        (ours.spin_threshold, ours.spin_rounds) = value.by(choices::spin_threshold);
    })
    .recorded_as("spin_threshold_ns", |it| told(ns(it.ours.spin_threshold))),
    number("lock-parameter", "The number that a lock object gets from hk_parameter()")
        .within(0..=u32::MAX as u64)
        .of_guest()
        .sets_ours(|ours, value| ours.lock_parameter = value.to())
        .recorded_as("lock_parameter", |it| told(it.ours.lock_parameter)),
];

const WORKLOAD: &[Setting] = &[
    name("workload", "What the guest does; `haltkick list workloads` shows them")
        .of_guest()
        .sets_ours(|ours, value| {
            // Its name until 0.1.0.
            let name = value.text();
            ours.workload = if name == "selftest-unborn" { "selftest-not-started" } else { name }.into();
        })
        .recorded_as("workload", |it| told(it.ours.workload.clone())),
    time(
        "hold",
        "Work inside a critical section; by how much a section's length may differ from that, \
         such as 1us/20%",
    )
    .unit("TIME[/SHARE]")
    .typed("Work inside a critical section: --hold 500ns")
    .lasting(Duration::ZERO..=MAX_WORK)
    .of_guest()
    .sets_ours(|ours, value| ours.hold = value.time())
    .recorded_as("hold_ns", |it| told(ns(it.ours.hold))),
    time(
        "think",
        "Work between two critical sections; fixed, or exponential as in 2us/exponential: how \
         these times (or times between arrivals) are distributed",
    )
    .unit("TIME[/HOW]")
    .typed("Work between two critical sections: --think 5us")
    .lasting(Duration::ZERO..=MAX_WORK)
    .of_guest()
    .sets_ours(|ours, value| ours.think = value.time())
    .recorded_as("think_ns", |it| told(ns(it.ours.think))),
    number("locks", "Number of locks that the sections are spread over")
        .within(1..=MAX_LOCKS as u64)
        .of_guest()
        .sets_ours(|ours, value| ours.lock_count = value.to())
        .recorded_as("locks", |it| told(it.ours.lock_count)),
    other(
        "memory",
        "SIZE",
        Kind::Memory,
        "Memory that the guest manages, in the workloads that take page faults",
    )
    .default("64MiB")
    .linux(Linux::Used)
    .sets_ours(|ours, value| ours.memory_bytes = value.to::<MemorySize>().bytes),
    time(
        "work",
        "Fixed amount of work instead of a window, as time on one pCPU; what vCPUs do when it is \
         done: leave, or go-on as in 1s/go-on [workload mixed]",
    )
    .unit("TIME[/WHAT]")
    .of_guest()
    .only_in(WorkloadFlags::IS_MIXED)
    .about("Sections that make up the fixed amount of work; null: as many as fit into the window.")
    .recorded_as("work_sections", |it| {
        given(it.ours.shape.work(), "as many sections as fit into the window")
    }),
    number("each", "Fixed amount of work instead of a window: operations of each vCPU [workloads line-*]")
        .within(1..=u32::MAX as u64)
        .of_guest()
        .only_in(WorkloadFlags::HAS_WORK_FOR_EACH),
    word("after-work", "WHAT", "Whether vCPUs go on, uncounted, when the fixed work is done", &AFTER_WORK)
        .sets_ours(|ours, value| ours.shape.flags.set(ShapeFlags::GO_ON, value.among(&AFTER_WORK)))
        .behind("work")
        .recorded_as("go_on", |it| told(it.ours.shape.flags.has(ShapeFlags::GO_ON))),
    time(
        "long-hold",
        "Work inside a long critical section; one section in N, chosen at random, is long, such \
         as 20us/16 [workload mixed]",
    )
    .unit("TIME[/N]")
    .lasting(Duration::ZERO..=MAX_WORK)
    .of_guest()
    .only_in(WorkloadFlags::IS_MIXED)
    .recorded_as("long_hold_ns", |it| told(it.ours.shape.long_hold_ns)),
    number("long-one-in", "One section in this many, chosen at random, is long; 0: none")
        .sets_ours(|ours, value| ours.shape.long_one_in = value.to())
        .behind("long-hold")
        .recorded_as("long_one_in", |it| told(it.ours.shape.long_one_in)),
    word(
        "slice-extension",
        "WHO",
        "Which sections ask for --grace: kernel (all) or user (short ones)",
        &EXTENSIONS,
    )
    .only_in(WorkloadFlags::IS_MIXED)
    .sets_ours(|ours, value| ours.shape.flags.set(ShapeFlags::ONLY_SHORT_ASK, value.among(&EXTENSIONS)))
    .behind("grace")
    .recorded_as("slice_extension", |it| {
        told(EXTENSIONS.of(it.ours.shape.flags.has(ShapeFlags::ONLY_SHORT_ASK)))
    }),
    number("nested-one-in", "In one section in N, chosen at random, nest another one under another lock")
        .default_in_help("0, none")
        .of_guest()
        .only_in(WorkloadFlags::IS_MIXED)
        .sets_ours(|ours, value| ours.shape.nested_one_in = value.to())
        .recorded_as("nested_one_in", |it| told(it.ours.shape.nested_one_in)),
    number("tasks", "Number of tasks, which take turns on the vCPUs [workload tasks]")
        .default_in_help("as many as vCPUs")
        .within(1..=MAX_VCPUS as u64)
        .of_guest()
        .only_in(WorkloadFlags::HAS_TASKS)
        .sets_ours(|ours, value| ours.tasks = Some(value.to()))
        .recorded_as("tasks", |it| {
            given(
                (it.ours.workload == "tasks").then(|| it.ours.tasks.unwrap_or(it.guest.vcpus)),
                "the workload has no tasks",
            )
        }),
    other(
        "fold",
        "HOW",
        Kind::Fold,
        "vCPUs that run tasks: all (off), as the guest's steal says \
         (governor/INTERVAL/LOW%/HIGH%), or the guest's share of pCPUs (oracle) [workload tasks]",
    )
    .default("off")
    .of_guest()
    .only_in(WorkloadFlags::HAS_TASKS)
    .sets_ours(|ours, value| ours.fold = value.by(choices::fold))
    .recorded_as("fold", |it| {
        given(
            (it.ours.workload == "tasks").then(|| choices::written_fold(it.ours.fold)),
            "the workload has no tasks",
        )
    }),
    word(
        "think-distribution",
        "HOW",
        "How times between sections are distributed: fixed or exponential",
        &DISTRIBUTIONS,
    )
    .only_in(WorkloadFlags::IS_SHAPED)
    .sets_ours(|ours, value| ours.shape.flags.set(ShapeFlags::EXPONENTIAL_THINK, value.among(&DISTRIBUTIONS)))
    .behind("think")
    .about("Whether thinking times (or times between arrivals) were exponentially distributed.")
    .recorded_as("exponential_think", |it| told(it.ours.shape.flags.has(ShapeFlags::EXPONENTIAL_THINK))),
    other(
        "hold-jitter",
        "SHARE",
        Kind::Share,
        "By how much a section's length may differ from --hold, such as 20%",
    )
    .only_in(WorkloadFlags::IS_SHAPED)
    .sets_ours(|ours, value| ours.shape.hold_jitter_percent = value.by(choices::percent))
    .behind("hold")
    .recorded_as("hold_jitter_percent", |it| told(it.ours.shape.hold_jitter_percent)),
    other(
        "zipf",
        "POWER",
        Kind::Exponent,
        "Choose lock n with a probability that falls with n to this power, such as 0.99",
    )
    .default_in_help("each lock in turn")
    .only_in(WorkloadFlags::IS_SHAPED)
    .sets_ours(|ours, value| ours.shape.zipf_hundredths = value.by(choices::exponent))
    .recorded_as("zipf", |it| told(f64::from(it.ours.shape.zipf_hundredths) / 100.0)),
    other(
        "arrivals",
        "RATE",
        Kind::Arrivals,
        "Sections that each vCPU begins per second, even if the last one is not done; waits count \
         from then",
    )
    .only_in(WorkloadFlags::HAS_ARRIVALS)
    .sets_ours(|ours, value| ours.shape.arrivals_ns = 1_000_000_000 / value.by(choices::arrivals))
    .about(
        "Mean time between two sections that each vCPU was to begin; null: it began the next when \
         it had thought.",
    )
    .recorded_as("arrivals_ns", |it| {
        given(
            Some(it.ours.shape.arrivals_ns).filter(|&ns| ns > 0),
            "vCPUs began their next section when they had thought",
        )
    }),
    number(
        "footprint",
        "Cache lines of its lock that a section reads; how many of them it writes, too; embed: \
         the first is the line in which the lock ends; such as 8/2/embed",
    )
    .unit("LINES[/DIRTY][/embed]")
    .within(0..=MOST_LINES)
    .only_in(WorkloadFlags::IS_SHAPED)
    .sets_ours(|ours, value| ours.shape.footprint_lines = value.to())
    .recorded_as("footprint_lines", |it| told(it.ours.shape.footprint_lines)),
    other("dirty", "LINES", Kind::Number, "How many of the lines of --footprint the section writes, too")
        .sets_ours(|ours, value| ours.shape.dirty_lines = value.to())
        .behind("footprint")
        .recorded_as("dirty_lines", |it| told(it.ours.shape.dirty_lines)),
    word(
        "embed",
        "WHERE",
        "Whether the first line of the footprint is the one in which the lock ends",
        &PLACES,
    )
    .only_in(WorkloadFlags::CAN_EMBED)
    .sets_ours(|ours, value| ours.shape.flags.set(ShapeFlags::EMBED, value.among(&PLACES)))
    .behind("footprint")
    .recorded_as("embed", |it| told(it.ours.shape.flags.has(ShapeFlags::EMBED))),
    other(
        "read-share",
        "SHARE[/TIME]",
        Kind::Share,
        "Sections that only read, as a share of all; work inside those, if not that of --hold, \
         such as 90%/300ns",
    )
    .only_in(WorkloadFlags::IS_SHAPED)
    .sets_ours(|ours, value| ours.shape.read_percent = value.by(choices::percent))
    .recorded_as("read_percent", |it| told(it.ours.shape.read_percent)),
    time("read-hold", "Work inside a section that only reads")
        .behind("read-share")
        .recorded_as("read_hold_ns", |it| {
            told(if it.ours.shape.read_percent > 0 { it.ours.shape.read_hold_ns } else { 0 })
        }),
];

const MEASURING: &[Setting] = &[
    switch("pmu", "Count cache events of the guest, where the host has a PMU: on or off")
        .default("off")
        .sets_run(|run, value| run.pmu = value.is_on()),
    switch("live", "Show the run to `haltkick top` while it goes: on or off")
        .sets_run(|run, value| run.live = value.is_on())
        .recorded_as("live", |it| told(it.run.live)),
    switch("oracle", "Check mutual exclusion from inside every section: on or off")
        .sets_ours(|ours, value| ours.oracle = value.is_on())
        .recorded_as("oracle", |it| told(it.ours.oracle)),
    word("stamps", "HOW", "Read the clock between fences (ordered) or without them (plain)", &STAMPS)
        .default("ordered")
        .sets_ours(|ours, value| ours.ordered_stamps = value.among(&STAMPS))
        .recorded_as("ordered_stamps", |it| told(it.ours.ordered_stamps)),
    time(
        "window",
        "Length of the measuring window, longer if every vCPU must have TURNS turns in it: by default 8 in experiments, and 0 where \
         the command line gives the length",
    )
    .unit("TIME[/TURNS]")
    .typed("Length of the measuring window: --duration 2s")
    .flag("duration")
    .default_in_help("1s, or eight scheduling rounds if longer")
    .linux(Linux::Used)
    .recorded_as("window_ns", |it| told(ns(it.run.window))),
    number("min-turns", "Turns of every vCPU in the window at least")
        .behind("window"),
    other(
        "min-sections",
        "N",
        Kind::LargeNumber,
        "Double the window, up to 16 times its length, until at least N sections are done in it",
    )
    .default_in_help("0, it stays as it is")
    .sets_run(|run, value| run.min_sections = value.to())
    .recorded_as("min_sections", |it| told(it.run.min_sections)),
    time("warmup", "Time between start and window")
        .default_in_help("20ms, or two rounds of slices if longer")
        .recorded_as("warmup_ns", |it| told(ns(it.run.warmup))),
    switch(
        "drain",
        "After the window, wait until every vCPU has left, and fail if one never does: on or off",
    )
    .default("off")
    .sets_run(|run, value| run.drain = value.is_on()),
    time("watchdog", "End the run when nothing has moved for this long")
        .default_in_help("from ratio and slice")
        .lasting(SHORTEST_WATCHDOG..=LONGEST_WATCHDOG)
        .sets_run(|run, value| run.watchdog = Some(value.time())),
    other("seed", "N", Kind::Seed, "Seed of everything random, echoed in the record")
        .default("1")
        .of_guest()
        .linux(Linux::Used)
        .recorded_as("seed", |it| told(it.guest.seed)),
];

const SEVERAL_GUESTS: &[Setting] = &[
    other(
        "vm",
        "KEY=VALUE,...",
        Kind::Guests,
        "A guest, as key=value,...; given several times, the guests run at once and their records \
         bear one run id",
    )
    .instead_of("guests")
    .about("Name of the guest among those of the run.")
    .recorded_as("guest", |it| told(it.guest.name.clone())),
    number("guests", "Number of guests, all alike, that run at once; their records bear one run id")
        .default_in_help("1")
        .within(1..=26)
        .instead_of("vm"),
    word("share", "WHAT", "What has equal shares of the pCPUs: guest or vcpu", &SHARES)
        .sets_run(|run, value| run.rules.share = value.among(&SHARES))
        .recorded_as("share", |it| told(SHARES.of(it.run.rules.share))),
    time(
        "from",
        "When the guest gets its first pCPU in the window, such as 100ms after its opening; when \
         it gets none any longer, as in 100ms/500ms",
    )
    .unit("TIME[/TIME]")
    .default_in_help("at once")
    .of_guest()
    .recorded_as("from_ns", |it| {
        given(it.guest.presence.map(|presence| ns(presence.from)), "the guest was there all the time")
    }),
    time("until", "When the guest gets no pCPU any longer until the window closes")
        .behind("from")
        .recorded_as("until_ns", |it| {
            given(
                it.guest.presence.and_then(|presence| presence.until).map(ns),
                "the guest stayed until the end",
            )
        }),
];

/// NUMA nodes of the guests' memory, where the VMM places it.
fn numa(run: &Run) -> Option<String> {
    matches!(run.engine, Engine::Kvm | Engine::Threads).then(|| choices::written_numa(run.numa))
}

pub(crate) fn engine(engine: &Engine) -> &'static str {
    match engine {
        Engine::Kvm => "kvm",
        Engine::Threads => "threads",
        Engine::Qemu(Accelerator::Kvm) => "qemu-kvm",
        Engine::Qemu(Accelerator::Tcg) => "qemu-tcg",
        Engine::Sim(_) => "sim",
    }
}

pub(crate) fn all() -> impl Iterator<Item = &'static Setting> {
    BOOT.iter().chain(TABLE.iter().flat_map(|(_, rows)| rows.iter()))
}

/// Rows that users name.
pub(crate) fn named_rows() -> impl Iterator<Item = &'static Setting> {
    all().filter(|setting| setting.qualifies.is_none())
}

/// Rows whose values stand behind that of the setting `name`.
pub(crate) fn behind(name: &str) -> impl Iterator<Item = &'static Setting> {
    all().filter(move |setting| setting.qualifies == Some(name))
}

/// Names of all settings, as in flags and files.
pub(crate) fn names() -> Vec<&'static str> {
    named_rows().map(|setting| setting.name).collect()
}

/// The row that is called `key`, or the nearest name.
pub(crate) fn named(key: &str) -> Result<&'static Setting, String> {
    find(key).ok_or_else(|| unknown("setting", key, &names()))
}

pub(crate) fn find(key: &str) -> Option<&'static Setting> {
    named_rows().find(|setting| setting.is_called(key))
}

/// Returns the complaint about `key`, which is not among the `known`.
pub(crate) fn unknown(what: &str, key: &str, known: &[&str]) -> String {
    let row = all().find(|setting| setting.is_called(key)).and_then(|setting| setting.qualifies);
    match row.and_then(find) {
        Some(main) => format!("{key} stands behind {}: write {} as {}", main.name, main.name, main.unit),
        None => nearest::unknown(what, key, known),
    }
}

#[cfg(test)]
mod tests;
