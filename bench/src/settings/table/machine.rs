//! Rows of the machine: what runs a guest, on which CPUs, under which scheduler.

use std::time::Duration;

use haltkick_vmm::{Accelerator, Engine, MAX_VCPUS, Run, Sched};

use super::super::choices::{self, ENGINES, RINGS, SCHEDULERS};
use super::super::pause_loops::PauseLoops;
use super::super::row::{Kind, Linux, Setting, given, name, ns, number, other, switch, time, told, word};

const SHORTEST_SLICE: Duration = Duration::from_micros(50);
const LONGEST_SLICE: Duration = Duration::from_millis(100);

pub(super) const MACHINE: &[Setting] = &[
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
        .sets_run(|run, value| run.ring = value.among(&RINGS))
        .recorded("settings.ring"),
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
