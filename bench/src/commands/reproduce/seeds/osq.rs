//! December 2023: false sharing in the optimistic spin queue.

use crate::commands::reproduce::row::{
    Alike, Control, Figure, Other, Point, Row, Same, Setting, Share, compared,
};

/// The lock that a file copy takes in a kernel, with a vCPU for each CPU.
const RWSEM_256: Setting = &[("workload", "copy-256"), ("lock", "rwsem"), ("ratio", "1")];
const RWSEM_1024: Setting = &[("workload", "copy-1024"), ("lock", "rwsem"), ("ratio", "1")];
const RWSEM_4096: Setting = &[("workload", "copy-4096"), ("lock", "rwsem"), ("ratio", "1")];
const MUTEX_1024: Setting = &[("workload", "copy-1024"), ("lock", "mutex"), ("ratio", "1")];
const COMPUTE: Setting = &[("workload", "compute"), ("lock", "rwsem"), ("ratio", "1")];

const SPLIT: &str = "split/packed";
const CACHED: &str = "cached/packed";

const SPLIT_1024: Row = Row {
    seed: "optimistic spin queue: false sharing of the node (2023), 1024 bytes",
    source: "Zeng Heng: locking/osq_lock: Avoid false sharing in optimistic_spin_node, linux-kernel, December 2023",
    figure: "split over packed layout: UnixBench file copy, 1024 bytes, 80 at a time",
    published: 1.227,
    again: None,
    machine: "40-core, 80-thread host",
    pcpus: 80,
    ratio: Some(1.0),
    needs_pcpus: 0,
    experiment: "osq",
    ours: compared(SPLIT, RWSEM_1024),
    on_fewer: None,
    control: Some(Control { ours: Point { comparison: SPLIT, setting: COMPUTE }, published: None }),
    alike: Alike { lock: Other, arrangement: Other, workload: Same },
    why: "The line that the layouts take apart is read by the waiter behind and written by the one in front while a third \
          CPU owns the lock: it takes three CPUs that run at once, and gains with every waiter. Two pCPUs cannot show \
          it. No hypervisor there.",
    page: "docs/studies/osq.md",
};

const CACHED_1024: Row = Row {
    seed: "optimistic spin queue, the other proposal (2023), 1024 bytes",
    source: "the thread of Zeng Heng: locking/osq_lock: Avoid false sharing in optimistic_spin_node, linux-kernel, December 2023",
    figure: "cached over packed layout: UnixBench file copy, 1024 bytes, 80 at a time",
    published: 1.186,
    ours: compared(CACHED, RWSEM_1024),
    control: Some(Control { ours: Point { comparison: CACHED, setting: COMPUTE }, published: Some(0.977) }),
    why: "As above. The study measured this baseline on another day: Dhrystone, which takes no lock, fell by 2.3 % \
          between the two, which is the control.",
    ..SPLIT_1024
};

pub(super) const ROWS: &[Row] = &[
    Row {
        seed: "optimistic spin queue: false sharing of the node (2023), 256 bytes",
        figure: "split over packed layout: UnixBench file copy, 256 bytes, 80 at a time",
        published: 1.212,
        ours: compared(SPLIT, RWSEM_256),
        ..SPLIT_1024
    },
    SPLIT_1024,
    Row {
        seed: "optimistic spin queue: false sharing of the node (2023), 4096 bytes",
        figure: "split over packed layout: UnixBench file copy, 4096 bytes, 80 at a time",
        published: 1.150,
        ours: compared(SPLIT, RWSEM_4096),
        ..SPLIT_1024
    },
    Row {
        seed: "optimistic spin queue (2023), 1024 bytes, under the mutex",
        ours: compared(SPLIT, MUTEX_1024),
        why: "A file copy takes an rwsem. Under a mutex every copy excludes every other, so the queue is used as \
              much as possible.",
        ..SPLIT_1024
    },
    Row {
        seed: "optimistic spin queue, the other proposal (2023), 256 bytes",
        figure: "cached over packed layout: UnixBench file copy, 256 bytes, 80 at a time",
        published: 1.191,
        ours: compared(CACHED, RWSEM_256),
        ..CACHED_1024
    },
    CACHED_1024,
    Row {
        seed: "optimistic spin queue, the other proposal (2023), 4096 bytes",
        figure: "cached over packed layout: UnixBench file copy, 4096 bytes, 80 at a time",
        published: 1.121,
        ours: compared(CACHED, RWSEM_4096),
        ..CACHED_1024
    },
    Row {
        seed: "optimistic spin queue, the other proposal (2023), 1024 bytes, normalised",
        figure: "cached over packed layout, over what Dhrystone lost: UnixBench file copy, 1024 bytes, 80 at a time",
        published: 1.214,
        control: Some(Control { ours: Point { comparison: CACHED, setting: COMPUTE }, published: None }),
        why: "This is 1.186 over 0.977: the gain of split.",
        ..CACHED_1024
    },
    Row {
        seed: "optimistic spin queue, the other proposal (2023), Dhrystone",
        figure: "the second baseline over the first: UnixBench Dhrystone, which takes no lock, 80 at a time",
        published: 0.977,
        ours: compared(CACHED, COMPUTE),
        control: None,
        alike: Alike { workload: Other, ..SPLIT_1024.alike },
        why: "The study's two baselines are from different days. Ours compares two layouts within a block, in a \
              workload that takes no lock.",
        ..CACHED_1024
    },
    Row {
        seed: "optimistic spin queue, the other proposal (2023), Whetstone",
        figure: "the second baseline over the first: UnixBench Whetstone, which takes no lock, 80 at a time",
        published: 0.982,
        ours: compared(CACHED, COMPUTE),
        control: None,
        alike: Alike { workload: Other, ..SPLIT_1024.alike },
        why: "As above.",
        ..CACHED_1024
    },
    Row {
        seed: "optimistic spin queue (2023), share of time in osq_lock",
        figure: "samples in osq_lock, packed layout: UnixBench file copy, 80 at a time",
        published: 0.9425,
        ours: Figure::Share { of: Share::Waiting, arm: "packed", setting: RWSEM_1024 },
        control: None,
        why: "Our share is all of the time spent waiting for the write lock, asleep or not. In the study 79 threads \
              wait for one; here one vCPU waits.",
        ..SPLIT_1024
    },
];
