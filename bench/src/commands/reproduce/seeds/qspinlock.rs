//! April 2015: qspinlock, native and paravirtual.

use crate::commands::reproduce::row::{
    Alike, Control, Figure, Other, Point, Row, Same, Setting, Share, compared,
};

/// The one load at which all of these are compared: a section after 20 us of other work.
const PINNED: Setting = &[("sched", "vmm"), ("ratio", "1"), ("think", "20us")];
const FLOATING: Setting = &[("sched", "host"), ("ratio", "1"), ("think", "20us")];
const FLOATING_2: Setting = &[("sched", "host"), ("ratio", "2"), ("think", "20us")];
const FLOATING_4: Setting = &[("sched", "host"), ("ratio", "4"), ("think", "20us")];
/// The setting with the most to gain.
const HEAVY: Setting = &[("sched", "vmm"), ("ratio", "4"), ("think", "5us")];
const HEAVY_PINNED: Setting = &[("sched", "vmm"), ("ratio", "1"), ("think", "5us")];

/// The locks that the study compared, with the threshold that both had.
const fn v16(setting: Setting) -> Figure {
    Figure::Ratio(Point { comparison: "v16/PV ticket", setting })
}

/// VM1 of the study, with what all have in common.
const VM1: Row = Row {
    seed: "qspinlock with PV support, v16 (2015), VM1",
    source: "Waiman Long: qspinlock: a 4-byte queue spinlock with PV support, v16, linux-kernel, April 2015",
    figure: "PV qspinlock v16 over PV ticket lock: kernel build, 32 vCPUs pinned",
    published: 0.997,
    again: None,
    machine: "KVM host of 8 sockets with 4 cores each",
    pcpus: 32,
    ratio: Some(1.0),
    needs_pcpus: 0,
    experiment: "qspinlock",
    ours: v16(PINNED),
    on_fewer: None,
    control: None,
    alike: Alike { lock: Same, arrangement: Same, workload: Other },
    why: "No vCPU is preempted, so neither lock can gain anything.",
    page: "docs/studies/qspinlock.md",
};

const CONTROL: Option<Control> =
    Some(Control { ours: Point { comparison: "v16/PV ticket", setting: PINNED }, published: Some(0.997) });

const VM2: Row = Row {
    seed: "qspinlock with PV support, v16 (2015), VM2",
    figure: "PV qspinlock v16 over PV ticket lock: kernel build, 32 unpinned vCPUs",
    published: 2.01,
    ours: v16(FLOATING),
    control: CONTROL,
    alike: Alike { arrangement: Other, ..VM1.alike },
    why: "With its pinning, the study's guest had also lost its NUMA nodes, on a host of eight sockets: this may be a \
          part of its gain. Here vCPUs float over CPUs of one node, and the host's scheduler does not move them if \
          there is one for each CPU.",
    ..VM1
};

const VM3: Row = Row {
    seed: "qspinlock with PV support, v16 (2015), VM3",
    figure: "PV qspinlock v16 over PV ticket lock: kernel build, 60 vCPUs",
    published: 1.03,
    ratio: Some(1.875),
    ours: v16(FLOATING_2),
    control: CONTROL,
    why: "Both locks have strict queues, and hand the lock to vCPUs that are off their pCPU.",
    ..VM2
};

/// A row about the cost of unpinned vCPUs alone.
const fn unpinned(
    seed: &'static str,
    figure: &'static str,
    published: f64,
    arm: &'static str,
    at: Setting,
) -> Row {
    Row {
        seed,
        figure,
        published,
        ours: Figure::Slowdown { arm, at, over: PINNED },
        control: None,
        why: "Both times are of the same build on the same host. In the study, unpinned vCPUs can move between eight \
              sockets.",
        ..VM2
    }
}

/// A row from another hypervisor.
const fn xen(seed: &'static str, figure: &'static str, published: f64, ratio: f64, setting: Setting) -> Row {
    Row {
        seed,
        figure,
        published,
        ratio: Some(ratio),
        machine: "Xen on the same host",
        ours: v16(setting),
        why: "This is another hypervisor with another scheduler: a preemption does the same to a queue, but does not \
              come as often.",
        ..VM2
    }
}

/// The native lock on a machine that has the CPUs.
const NATIVE: Row = Row {
    seed: "qspinlock (2015), native, 500 users",
    figure: "qspinlock over ticket lock: reaim high_systime, jobs a minute",
    published: 1.135,
    machine: "4 sockets, 60 cores, 120 threads, no hypervisor",
    pcpus: 120,
    needs_pcpus: 120,
    ours: compared("native qspinlock/ticket", HEAVY_PINNED),
    control: None,
    alike: Alike { lock: Same, arrangement: Other, workload: Other },
    why: "This needs many CPUs that wait for one cache line. A host, or an engine, that has them fills this row.",
    ..VM1
};

const SHARE: Row = Row {
    seed: "qspinlock (2015), native, share of CPU time in ticket locks",
    figure: "CPU time in spin locks, ticket: reaim high_systime, 1000 users",
    published: 0.2321,
    needs_pcpus: 0,
    ours: Figure::Share { of: Share::LockCpu, arm: "ticket", setting: PINNED },
    why: "This share needs many CPUs at one lock; with one vCPU for each of two pCPUs, vCPUs hardly ever wait.",
    ..NATIVE
};

/// Today's lock, which the study did not have.
const TODAY: Row = Row {
    seed: "today's PV qspinlock for VM2",
    figure: "today's PV qspinlock, which steals, next to the figure of v16: kernel build, 32 unpinned vCPUs",
    published: 2.01,
    ours: compared("today's PV/PV ticket", FLOATING),
    on_fewer: Some(compared("today's PV/PV ticket", &[("sched", "host"), ("ratio", "4"), ("think", "5us")])),
    control: Some(Control {
        ours: Point { comparison: "today's PV/PV ticket", setting: HEAVY_PINNED },
        published: Some(0.997),
    }),
    alike: Alike { lock: Other, arrangement: Other, workload: Other },
    why: "The lock, the load and, on hosts with few CPUs, the ratio are not the study's: there four vCPUs for each \
          pCPU replace the migration over eight sockets. Both locks spin for 20 us, our default.",
    ..VM2
};

pub(super) const ROWS: &[Row] = &[
    VM1,
    VM2,
    VM3,
    unpinned(
        "PV ticket lock (2015), unpinned: VM2/VM1",
        "time with 32 unpinned vCPUs over that with 32 pinned, PV ticket lock",
        3.07,
        "ticket pv, linux",
        FLOATING,
    ),
    unpinned(
        "PV qspinlock v16 (2015), unpinned: VM2/VM1",
        "time with 32 unpinned vCPUs over that with 32 pinned, PV qspinlock v16",
        1.53,
        "qspinlock-v16 pv, linux",
        FLOATING,
    ),
    Row {
        ratio: Some(1.875),
        ..unpinned(
            "PV ticket lock (2015), overcommitted: VM3/VM1",
            "time with 60 vCPUs over that with 32 pinned, PV ticket lock",
            4.18,
            "ticket pv, linux",
            FLOATING_2,
        )
    },
    Row {
        ratio: Some(1.875),
        ..unpinned(
            "PV qspinlock v16 (2015), overcommitted: VM3/VM1",
            "time with 60 vCPUs over that with 32 pinned, PV qspinlock v16",
            4.05,
            "qspinlock-v16 pv, linux",
            FLOATING_2,
        )
    },
    xen(
        "qspinlock with PV support, v16 (2015), Xen, 32 vCPUs",
        "PV qspinlock v16 over PV ticket lock: kernel build, 32 vCPUs (the posting has 5m51.6s in two tables)",
        1.27,
        1.0,
        FLOATING,
    ),
    xen(
        "qspinlock with PV support, v16 (2015), Xen, 64 vCPUs",
        "PV qspinlock v16 over PV ticket lock: kernel build, 64 vCPUs",
        1.35,
        2.0,
        FLOATING_2,
    ),
    xen(
        "qspinlock with PV support, v16 (2015), Xen, 128 vCPUs",
        "PV qspinlock v16 over PV ticket lock: kernel build, 128 vCPUs",
        1.29,
        4.0,
        FLOATING_4,
    ),
    TODAY,
    Row {
        seed: "today's PV qspinlock for VM2, Linux's spin threshold",
        ours: compared("today's PV/PV ticket, linux", FLOATING),
        on_fewer: Some(compared(
            "today's PV/PV ticket, linux",
            &[("sched", "host"), ("ratio", "4"), ("think", "5us")],
        )),
        why: "As above, both locks with the 2^15 rounds that Linux spins.",
        ..TODAY
    },
    Row {
        seed: "today's PV qspinlock for VM2, each lock at its best threshold",
        ours: compared("best-tuned PV/best-tuned PV ticket", HEAVY),
        on_fewer: None,
        why: "Each lock has its own best threshold, which just bench spin-threshold finds.",
        ..TODAY
    },
    NATIVE,
    Row { seed: "qspinlock (2015), native, 1000 users", published: 1.173, ..NATIVE },
    Row { seed: "qspinlock (2015), native, 1500 users", published: 1.840, ..NATIVE },
    Row { seed: "qspinlock (2015), native, 2000 users", published: 1.737, ..NATIVE },
    Row {
        seed: "qspinlock (2015), native, 512 cores",
        figure: "qspinlock over ticket lock: reaim compute, 113 processes, jobs a minute",
        published: 8.1,
        machine: "512-core NumaConnect system, no hypervisor",
        pcpus: 512,
        needs_pcpus: 512,
        ..NATIVE
    },
    SHARE,
    Row {
        seed: "qspinlock (2015), native, share of CPU time in qspinlocks",
        figure: "CPU time in spin locks, qspinlock (2.25 and 4.42 %): reaim high_systime, 1000 users",
        published: 0.0667,
        ours: Figure::Share { of: Share::LockCpu, arm: "qspinlock", setting: PINNED },
        ..SHARE
    },
];
