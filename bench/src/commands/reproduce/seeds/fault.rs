//! April 2018: speculative page faults.

use crate::commands::reproduce::row::{
    Alike, Control, Figure, Other, Point, Row, Same, Setting, Share, compared,
};

const RECORD: Setting = &[("workload", "fault-map-touch"), ("ratio", "1")];
const READ_MOSTLY: Setting = &[("workload", "fault-read-mostly"), ("ratio", "1")];
const PRIVATE: Setting = &[("workload", "fault-private"), ("ratio", "1")];
/// The two schemes of the reference study, with the rwsem of its time.
const THEN: &str = "speculative-2018/mmap-sem-2018";

const X86: Row = Row {
    seed: "Speculative page faults, v10 (2018)",
    source: "Laurent Dufour: Speculative page faults, v10, linux-mm, April 2018",
    figure: "speculative faults over mmap_sem: ebizzy -mRTp (map a page, touch it, unmap it), records/s",
    published: 7.34,
    again: None,
    machine: "16-CPU x86 VM",
    pcpus: 16,
    ratio: None,
    needs_pcpus: 0,
    experiment: "fault",
    ours: compared(THEN, RECORD),
    on_fewer: None,
    control: Some(Control { ours: Point { comparison: THEN, setting: PRIVATE }, published: Some(1.007) }),
    alike: Alike { lock: Same, arrangement: Other, workload: Same },
    why: "Map and unmap hold mmap_sem for writing under every scheme, and take most of the time of a record. The \
          fault path gains by not having to queue behind as many writers as there are CPUs: the study had sixteen \
          CPUs with two threads each; here there is a writer for each pCPU. The control's published figure is a \
          kernel build by single-threaded processes.",
    page: "docs/studies/page-faults.md",
};

/// How a speculative fault ended there.
const fn ending(seed: &'static str, figure: &'static str, published: f64, event: &'static str) -> Row {
    Row {
        seed,
        figure,
        published,
        ours: Figure::Share {
            of: Share::Events { of: event, among: "pgfault" },
            arm: "speculative-2018",
            setting: RECORD,
        },
        control: None,
        why: "Which change a fault meets depends on how many CPUs map and unmap at the same time. A first fault in \
              an area counts as spf_vma_noanon here; the study counted it as notsup.",
        ..X86
    }
}

/// The row on the other machine.
const fn on_p8(row: Row, seed: &'static str, published: f64) -> Row {
    Row { seed, published, machine: "80-CPU Power8 node", pcpus: 80, ..row }
}

const SERVED: Row = ending(
    "Speculative page faults, v10 (2018), served so",
    "faults served speculatively over all: ebizzy -mRTp",
    0.996,
    "speculative_pgfault",
);
const PTE_LOCK: Row = ending(
    "Speculative page faults, v10 (2018), given up: pte_lock",
    "given up since the page-table lock was taken, over all faults: ebizzy -mRTp",
    0.000_33,
    "spf_pte_lock",
);
const VMA_CHANGED: Row = ending(
    "Speculative page faults, v10 (2018), given up: vma_changed",
    "given up since the area changed, over all faults: ebizzy -mRTp",
    0.001_75,
    "spf_vma_changed",
);
const NOTSUP: Row = ending(
    "Speculative page faults, v10 (2018), given up: notsup",
    "given up since the area or its page table would not do, over all faults: ebizzy -mRTp",
    0.000_08,
    "spf_vma_notsup",
);

pub(super) const ROWS: &[Row] = &[
    X86,
    on_p8(X86, "Speculative page faults, v10 (2018), Power8", 2.01),
    Row {
        seed: "Speculative page faults (2018), today's rwsem",
        figure: "the same figure beside what they would gain over today's mmap_sem",
        ours: compared("speculative/mmap-sem", RECORD),
        control: Some(Control {
            ours: Point { comparison: "speculative/mmap-sem", setting: PRIVATE },
            published: Some(1.007),
        }),
        alike: Alike { lock: Other, ..X86.alike },
        why: "Readers overtake sleepers today, and sleepers are promised the lock: faults wait less behind writers.",
        ..X86
    },
    Row {
        seed: "Speculative page faults, v6 (2018), a database",
        figure: "speculative faults over mmap_sem: an in-memory database, transactions/s",
        published: 1.30,
        machine: "176-CPU Power system",
        pcpus: 176,
        ours: compared(THEN, READ_MOSTLY),
        alike: Alike { workload: Other, ..X86.alike },
        why: "No database runs here. Instead, seven eighths of the vCPUs are readers that fault, and the others map \
              and unmap.",
        ..X86
    },
    Row {
        seed: "Speculative page faults, first form (2017), under SRCU",
        figure: "areas freed after a grace period over areas with references: about 20 % were lost",
        published: 0.8,
        machine: "not said with the figure",
        pcpus: 0,
        ours: compared("srcu/reference", RECORD),
        control: None,
        why: "Here a vCPU that unmaps looks for the end of the grace period itself, every 16 areas; in the study \
              callbacks did so, later and on another CPU's time.",
        ..X86
    },
    SERVED,
    PTE_LOCK,
    VMA_CHANGED,
    NOTSUP,
    on_p8(SERVED, "Speculative page faults, v10 (2018), Power8, served so", 0.968),
    on_p8(PTE_LOCK, "Speculative page faults, v10 (2018), Power8, given up: pte_lock", 0.022),
    on_p8(VMA_CHANGED, "Speculative page faults, v10 (2018), Power8, given up: vma_changed", 0.0095),
    on_p8(NOTSUP, "Speculative page faults, v10 (2018), Power8, given up: notsup", 0.0004),
];
