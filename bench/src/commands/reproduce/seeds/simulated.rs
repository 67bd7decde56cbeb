//! The reference studies on simulated machines like their own: `haltkick reproduce --engine sim`.

use crate::commands::reproduce::row::{Alike, Other, Row, Same, Unknown, compared};

const FOUR_SOCKETS: Row = Row {
    seed: "qspinlock, native (2015), four sockets, simulated",
    source: "Waiman Long: qspinlock: a 4-byte queue spinlock with PV support, v16, linux-kernel, April 2015",
    figure: "native qspinlock over ticket lock: reaim high_systime, 60 cores with 120 threads",
    published: 1.84,
    again: None,
    machine: "4 sockets of Ivy Bridge-EX",
    pcpus: 120,
    ratio: Some(1.0),
    needs_pcpus: 0,
    experiment: "sim-native",
    ours: compared("qspinlock/ticket", &[("machine", "ivybridge-ex-4s"), ("think", "20us")]),
    on_fewer: None,
    control: None,
    alike: Alike { lock: Same, arrangement: Same, workload: Other },
    why: "The ratio grows with the load on the lock, and the share of reaim that goes into one lock was not \
          published. At a fifth of this load the two simulated locks are equally fast.",
    page: "docs/simulated-seeds.md",
};

const PV_32: Row = Row {
    seed: "qspinlock with PV support, v16 (2015), 32 vCPUs, simulated",
    figure: "PV qspinlock v16 over PV ticket lock: kernel build, 32 vCPUs pinned",
    published: 0.997,
    machine: "KVM host of 8 sockets with 4 cores each",
    pcpus: 32,
    experiment: "sim-pv",
    ours: compared("v16/PV ticket", &[("vcpus", "32"), ("think", "20us")]),
    why: "No vCPU is preempted, so neither lock can gain anything.",
    ..FOUR_SOCKETS
};

const FAULTS_16: Row = Row {
    seed: "Speculative page faults (2018), 16 CPUs, simulated",
    source: "Laurent Dufour: Speculative page faults, v10, linux-mm, April 2018",
    figure: "speculative over mmap_sem: ebizzy, records a second, 16-CPU x86 guest",
    published: 7.34,
    machine: "16-CPU x86 guest of an unknown host",
    pcpus: 16,
    experiment: "sim-fault",
    ours: compared("speculative/mmap-sem", &[("machine", "nehalem-2s")]),
    alike: Alike { lock: Same, arrangement: Unknown, workload: Other },
    why: "In the study a record took 81 us, most of it for sleeps and wake-ups of a guest; here each vCPU wakes up on \
          a pCPU of its own.",
    ..FOUR_SOCKETS
};

const OSQ_1024: Row = Row {
    seed: "optimistic spin queue (2023), 1024 bytes, rwsem, simulated",
    source: "Zeng Heng: locking/osq_lock: Avoid false sharing in optimistic_spin_node, linux-kernel, December 2023",
    figure: "split over packed layout: UnixBench file copy, 1024 bytes, 80 at a time",
    published: 1.227,
    machine: "40-core, 80-thread host",
    pcpus: 80,
    experiment: "sim-osq",
    ours: compared("split/packed", &[("lock", "rwsem"), ("workload", "copy-1024")]),
    alike: Alike { lock: Other, arrangement: Same, workload: Same },
    why: "Our copies have readers, which bypass the queue, and a copy takes far longer, since a simulated core \
          fetches one line after the other. So a smaller part of the time is spent in the queue.",
    ..FOUR_SOCKETS
};

pub(super) const ROWS: &[Row] = &[
    FOUR_SOCKETS,
    Row {
        seed: "qspinlock, native (2015), 512 cores, simulated",
        figure: "native qspinlock over ticket lock: reaim compute, 512 cores",
        published: 8.0,
        machine: "NumaConnect, 512 cores of Opterons",
        pcpus: 512,
        ours: compared("qspinlock/ticket", &[("machine", "numaconnect-512"), ("think", "100us")]),
        why: "A line takes a microsecond between nodes. Which share of reaim is in locks, and what the machine's \
              nodes were, was not published.",
        ..FOUR_SOCKETS
    },
    PV_32,
    Row {
        seed: "qspinlock with PV support, v16 (2015), 60 vCPUs, simulated",
        figure: "PV qspinlock v16 over PV ticket lock: kernel build, 60 vCPUs",
        published: 1.03,
        ratio: Some(1.875),
        ours: compared("v16/PV ticket", &[("vcpus", "60"), ("think", "20us")]),
        alike: Alike { arrangement: Other, ..PV_32.alike },
        why: "Both locks have strict queues, and hand the lock to vCPUs that are off their pCPU. In the study the \
              host's scheduler moved the vCPUs.",
        ..PV_32
    },
    FAULTS_16,
    Row {
        seed: "Speculative page faults (2018), 80 CPUs, simulated",
        figure: "speculative over mmap_sem: ebizzy, records a second, 80-CPU POWER8 host",
        published: 2.01,
        machine: "80-CPU POWER8 host",
        pcpus: 80,
        ours: compared("speculative/mmap-sem", &[("machine", "cascadelake-2s")]),
        alike: Alike { arrangement: Other, ..FAULTS_16.alike },
        ..FAULTS_16
    },
    Row {
        seed: "Grant table locking, split (2013), 16 CPUs, simulated",
        source: "Matt Wilson: gnttab: refactor locking for better scalability, xen-devel, November 2013, and its thread",
        figure: "split locks over one lock: 24 disks that stream 2 MiB writes, MB/s",
        published: 2.14,
        machine: "an unknown Xen host",
        pcpus: 0,
        ratio: None,
        experiment: "sim-grant",
        ours: compared("split/single", &[]),
        alike: Alike { lock: Same, arrangement: Unknown, workload: Other },
        why: "In the study the disks left pauses between uses of the locks; here map, use and unmap follow each other \
              without a pause.",
        ..FOUR_SOCKETS
    },
    Row {
        seed: "optimistic spin queue (2023), 256 bytes, rwsem, simulated",
        figure: "split over packed layout: UnixBench file copy, 256 bytes, 80 at a time",
        published: 1.212,
        ours: compared("split/packed", &[("lock", "rwsem"), ("workload", "copy-256")]),
        ..OSQ_1024
    },
    OSQ_1024,
    Row {
        seed: "optimistic spin queue (2023), 256 bytes, mutex, simulated",
        figure: "split over packed layout: UnixBench file copy, 256 bytes, 80 at a time",
        published: 1.212,
        ours: compared("split/packed", &[("lock", "mutex"), ("workload", "copy-256")]),
        alike: Alike { workload: Other, ..OSQ_1024.alike },
        why: "A file copy takes an rwsem. Under a mutex every copy excludes every other, so the queue is used as \
              much as possible.",
        ..OSQ_1024
    },
    Row {
        seed: "optimistic spin queue (2023), the queue alone, simulated",
        source: "Waiman Long's answer to Zeng Heng's patch, linux-kernel, 20 December 2023",
        figure: "cached over packed layout: lock and unlock of the queue in a loop, 96 threads",
        published: 1.794,
        machine: "2 sockets with 96 CPUs; the CPU is not named",
        pcpus: 96,
        experiment: "sim-queue",
        ours: compared("cached/packed", &[]),
        alike: Alike { lock: Same, arrangement: Same, workload: Same },
        why: "The CPU is a guess: the machine of the patch, with more cores.",
        ..OSQ_1024
    },
];
