//! Rows of the machine: what runs a guest, on which CPUs, under which scheduler.

use std::time::Duration;

use haltkick_vmm::MAX_VCPUS;

use super::super::choices::{ACCELERATORS, ENGINES, RINGS, SCHEDULERS};
use super::super::row::{Kind, Linux, Setting, name, number, other, switch, time, word};

const SHORTEST_SLICE: Duration = Duration::from_micros(50);
const LONGEST_SLICE: Duration = Duration::from_millis(100);

pub(super) const MACHINE: &[Setting] = &[
    word(
        "engine",
        "ENGINE",
        "What runs the guest: kvm; threads or qemu where there is no /dev/kvm; sim, a simulated machine",
        &ENGINES,
    )
    .default("kvm")
    .linux(Linux::Only(&["kvm", "qemu"]))
    .recorded("settings.engine"),
    word("accel", "ACCEL", "What QEMU runs the guest with: kvm or tcg, its emulator", &ACCELERATORS)
        .default_in_help("kvm where there is /dev/kvm")
        .linux(Linux::Only(&["kvm", "tcg"]))
        .recorded("settings.engine"),
    name("machine", "The machine of engine sim: one of `haltkick list machines`, or a file")
        .default_in_help("none")
        .recorded("settings.machine"),
    number("vcpus", "Number of vCPUs")
        .within(1..=MAX_VCPUS as u64)
        .instead_of("ratio")
        .of_guest()
        .linux(Linux::Used)
        .recorded("settings.vcpus"),
    other("ratio", "N", Kind::Ratio, "vCPUs per pCPU, such as 8 or 1.5, instead of --vcpus")
        .default_in_help("8, or less if there would be more than 1024 vCPUs")
        .within(1..=MAX_VCPUS as u64)
        .instead_of("vcpus")
        .of_guest()
        .linux(Linux::Used)
        .recorded("settings.ratio"),
    other(
        "cpus",
        "CPUS",
        Kind::Cpus,
        "Host CPUs to use: cores, node:N, llc:N, isolated, all, or a list such as 0,2-3",
    )
    .default_in_help("cores: one CPU of each core that this process may use")
    .linux(Linux::Used)
    .recorded("settings.cpus"),
    other(
        "numa",
        "NODES",
        Kind::Numa,
        "NUMA nodes of guest memory: local (that of each vCPU near its pCPU), interleave, or a node's number",
    )
    .default("local")
    .sets_run(|run, value| run.numa = value.numa())
    .recorded("settings.numa"),
    word("ring", "RING", "Privilege ring of the guest", &RINGS)
        .default("auto")
        .sets_run(|run, value| run.ring = value.among(&RINGS))
        .recorded("settings.ring"),
    word("sched", "SCHEDULER", "Which scheduler preempts the vCPUs: vmm or host", &SCHEDULERS)
        .default("vmm")
        .linux(Linux::Used)
        .sets_run(|run, value| run.rules.sched = value.among(&SCHEDULERS))
        .recorded("settings.sched"),
    name(
        "host",
        "The host whose scheduler engine sim models with sched host: one of `haltkick list hosts`, or a file",
    )
    .default_in_help("none")
    .recorded("settings.host"),
    time("slice", "Time a vCPU may run before the VMM takes it off its pCPU, 50us to 100ms")
        .default("1ms")
        .lasting(SHORTEST_SLICE..=LONGEST_SLICE)
        .linux(Linux::Used)
        .sets_run(|run, value| run.rules.slice = value.time())
        .recorded("settings.slice_ns"),
    switch("pause-exits", "Exits of spin loops in ring 0 (PLE, PAUSE filter): on or off")
        .default("on")
        .linux(Linux::Used)
        .sets_run(|run, value| run.halts.pause_exits = value.is_on())
        .recorded("settings.pause_exits"),
    other(
        "ple",
        "LIMITS",
        Kind::PauseLoops,
        "Limits of pause loops in the model of a host: gap=TICKS and window=TICKS (or PAUSEs on AMD); and to which vCPU one that spins \
         yields: target=round-robin (as KVM does), last-kicked, holder or only-holder",
    )
    .default_in_help("as the host file says")
    .recorded("settings.ple"),
    switch("hlt-exits", "Exits at HLT: on, or off (a halted vCPU keeps its pCPU)")
        .default("on")
        .sets_run(|run, value| run.halts.hlt_exits = value.is_on())
        .recorded("settings.hlt_exits"),
];
