//! June 2010: the unfair spinlock.

use crate::commands::reproduce::row::{Alike, Control, Figure, Other, Point, Row, Same, compared};

const ALONE: Option<Control> = Some(Control {
    ours: Point { comparison: "unfair/ticket alone at ratio 1", setting: &[] },
    published: Some(1.004),
});

const fn lead(comparison: &'static str) -> Figure {
    compared(comparison, &[])
}

const LEAD: Row = Row {
    seed: "unfair spinlock (2010)",
    source: "Gleb Natapov: use unfair spinlock when running on hypervisor, linux-kernel, June 2010",
    figure: "a guest with unfair locks next to one with ticket locks, 16 vCPUs each, building kernels: time of the second over \
             that of the first",
    published: 1.44,
    again: Some(1.46),
    machine: "host of 16 logical CPUs, as its times on bare metal say",
    pcpus: 16,
    ratio: Some(2.0),
    needs_pcpus: 0,
    experiment: "unfair",
    ours: lead("the winner's lead at total ratio 2"),
    on_fewer: None,
    control: ALONE,
    alike: Alike { lock: Same, arrangement: Same, workload: Other },
    why: "A ticket lock waits for the one vCPU whose turn it is, for as long as that vCPU has no pCPU; any running \
          vCPU may take an unfair lock. Here each guest has a vCPU for each pCPU, as in the study. In the study the \
          slower guest ran alone for the last six minutes, so 1.44 understates the lead. Whether the study's host \
          ended long spins by PAUSE exits was not published. The study's control was bare metal, where the patch \
          changes nothing but which code is patched in; ours is one guest alone.",
    page: "docs/studies/unfair.md",
};

const CPU: Row = Row {
    seed: "unfair spinlock (2010), CPU time",
    figure: "system time of the guest with ticket locks over that of its neighbour with unfair ones; here CPU time in lock \
             code",
    published: 2.82,
    again: Some(2.65),
    ours: lead("the winner's lead at total ratio 2, CPU time in locks"),
    control: None,
    why: "The study's system time contains all of the kernel's work; ours contains only acquiring and releasing \
          locks, so the ratio is not diluted.",
    ..LEAD
};

pub(super) const ROWS: &[Row] = &[
    LEAD,
    CPU,
    Row {
        seed: "unfair spinlock (2010), 16 vCPUs on whatever CPUs there are",
        ours: lead("the winner's lead"),
        alike: Alike { arrangement: Other, ..LEAD.alike },
        why: "As many vCPUs as in the study, on the few pCPUs of this host: the vCPU whose turn it is waits for all \
              the others.",
        ..LEAD
    },
    Row {
        seed: "unfair spinlock (2010), 16 vCPUs on whatever CPUs there are, CPU time",
        ours: lead("the winner's lead, CPU time in locks"),
        alike: Alike { arrangement: Other, ..LEAD.alike },
        why: "As above.",
        ..CPU
    },
];
