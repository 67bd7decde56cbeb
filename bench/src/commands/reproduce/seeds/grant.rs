//! November 2013: grant tables.

use crate::commands::reproduce::row::{Alike, Other, Row, Same, Setting, Unknown, compared};

const EACH_ITS_OWN: Setting = &[("ratio", "1")];
const OVERCOMMITTED: Setting = &[("ratio", "8")];

const SPLIT: Row = Row {
    seed: "Grant table locking, split (2013)",
    source: "Matt Wilson: gnttab: refactor locking for better scalability, xen-devel, November 2013, and its thread",
    figure: "split locks over one lock: 24 disks that stream 2 MiB writes, MB/s",
    published: 2.14,
    again: None,
    machine: "Xen host of unknown size",
    pcpus: 0,
    ratio: None,
    needs_pcpus: 0,
    experiment: "grant",
    ours: compared("split/single", EACH_ITS_OWN),
    on_fewer: None,
    control: None,
    alike: Alike { lock: Same, arrangement: Unknown, workload: Other },
    why: "In the study many CPUs met at one lock; here, only as many as there are pCPUs. Here a request moves one \
          sector of each page.",
    page: "docs/studies/grant-tables.md",
};

pub(super) const ROWS: &[Row] = &[
    SPLIT,
    Row {
        seed: "Grant table locking, split (2013), eight vCPUs for each pCPU",
        ours: compared("split/single", OVERCOMMITTED),
        alike: Alike { arrangement: Other, ..SPLIT.alike },
        why: "The result depends on how often a vCPU is preempted while it holds what all others need.",
        ..SPLIT
    },
    Row {
        seed: "Grant table locking, split and tuned (2013)",
        figure: "split locks with each disk served by one vCPU, over one lock: 24 disks that stream 2 MiB writes, MB/s",
        published: 2.57,
        ours: compared("bound without/single with kernel lock", EACH_ITS_OWN),
        why: "A part of the tuning was to avoid a second global lock, in the granter's own kernel; the baseline here \
              has one. 24 such disks write 3,600 MB/s, so the disks may limit the study's last figure.",
        ..SPLIT
    },
];
