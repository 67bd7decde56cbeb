//! The rows of `haltkick reproduce`: what was published, and which of our comparisons stands beside it.
//!
//! To add a figure, add a [`Row`]. Its experiment must be built in ([`crate::experiment::BUILT_IN`]), its comparison one
//! of that file's `[[compare]]`, and its setting must pick exactly one point of that file's `[grid]`: a test holds every
//! row to that. The page is where the difference is explained at length. Nothing else is needed: `just reproduce` runs each
//! experiment that a row names, once.

/// A published figure and ours.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// The thread that it comes from, and its year.
    pub(crate) seed: &'static str,
    /// Where it was published: author, subject, list and month.
    pub(crate) source: &'static str,
    /// What was compared there, by which measure.
    pub(crate) figure: &'static str,
    /// The ratio that was published, so that above 1 is better.
    pub(crate) published: f64,
    /// Where that was measured.
    pub(crate) machine: &'static str,
    /// CPUs of that machine that the guests shared; 0: nobody says.
    pub(crate) pcpus: u32,
    /// Name of our experiment.
    pub(crate) experiment: &'static str,
    /// Our figure.
    pub(crate) ours: Point,
    /// Where the same thing must make no difference; `None`: the experiment's A/A pair.
    pub(crate) control: Option<Control>,
    /// Why the two figures are alike or not.
    pub(crate) why: &'static str,
    /// The page that has more.
    pub(crate) page: &'static str,
}

/// One comparison of an experiment at one point of its grid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    /// Name of the comparison.
    pub(crate) comparison: &'static str,
    /// As many axes with their values as it takes to pick one point.
    pub(crate) setting: &'static [(&'static str, &'static str)],
}

/// What shows that a difference comes from what the seed is about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Control {
    /// A comparison that should be near 1.
    pub(crate) ours: Point,
    /// What was published of it, if anything was.
    pub(crate) published: Option<f64>,
}

/// All rows, in the order of the table.
pub(crate) const ROWS: &[Row] = &[
    Row {
        seed: "qspinlock with PV support, v16 (2015)",
        source: "Waiman Long: qspinlock: a 4-byte queue spinlock with PV support, v16, linux-kernel, April 2015",
        figure: "PV qspinlock over PV ticket lock: kernel build, 32 vCPUs that float",
        published: 2.01,
        machine: "32-core KVM host",
        pcpus: 32,
        experiment: "qspinlock",
        ours: Point {
            comparison: "PV/PV ticket",
            setting: &[("sched", "host"), ("ratio", "4"), ("think", "5us")],
        },
        control: Some(Control {
            ours: Point {
                comparison: "PV/PV ticket",
                setting: &[("sched", "vmm"), ("ratio", "1"), ("think", "5us")],
            },
            published: Some(0.997),
        }),
        why: "There, a vCPU per CPU, which the host's scheduler moved about now and then; here, four, so that somebody is \
              preempted all the time. The PV ticket lock hands over to a sleeping vCPU each time its queue is not empty; \
              today's PV qspinlock lets the running one steal. Work outside locks, most of a kernel build, dilutes the \
              ratio there. The control is pinned.",
        page: "docs/qspinlock.md",
    },
    Row {
        seed: "qspinlock with PV support, v16 (2015), overcommitted",
        source: "Waiman Long: qspinlock: a 4-byte queue spinlock with PV support, v16, linux-kernel, April 2015",
        figure: "PV qspinlock over PV ticket lock: kernel build, 60 vCPUs",
        published: 1.03,
        machine: "32-core KVM host",
        pcpus: 32,
        experiment: "qspinlock",
        ours: Point {
            comparison: "PV/PV ticket",
            setting: &[("sched", "host"), ("ratio", "2"), ("think", "100us")],
        },
        control: Some(Control {
            ours: Point {
                comparison: "PV/PV ticket",
                setting: &[("sched", "vmm"), ("ratio", "1"), ("think", "100us")],
            },
            published: Some(0.997),
        }),
        why: "Two vCPUs per CPU and locks that hardly anybody wants: neither lock costs anything that shows. With less work \
              outside they part, the earlier the more vCPUs share a CPU.",
        page: "docs/qspinlock.md",
    },
    Row {
        seed: "Speculative page faults, v10 (2018)",
        source: "Laurent Dufour: Speculative page faults, v10, linux-mm, April 2018",
        figure: "speculative faults over mmap_sem: ebizzy -mRTp (map a page, touch it, unmap it), records/s",
        published: 7.34,
        machine: "16-CPU x86 VM",
        pcpus: 16,
        experiment: "fault",
        ours: Point {
            comparison: "speculative/mmap-sem",
            setting: &[("workload", "fault-map-touch"), ("ratio", "1")],
        },
        control: Some(Control {
            ours: Point {
                comparison: "speculative/mmap-sem",
                setting: &[("workload", "fault-private"), ("ratio", "1")],
            },
            published: Some(1.007),
        }),
        why: "Map and unmap hold mmap_sem for writing under every scheme, and most of a record is spent there. What the \
              fault path wins is not having to queue behind as many writers as there are CPUs: sixteen there, as many \
              as there are pCPUs here. The control's published figure is a kernel build by single-threaded processes.",
        page: "docs/page-faults.md",
    },
    Row {
        seed: "Grant table locking, split (2013)",
        source: "Matt Wilson: gnttab: refactor locking for better scalability, xen-devel, November 2013, and its thread",
        figure: "split locks over one lock: 24 disks that stream 2 MiB writes, MB/s",
        published: 2.14,
        machine: "Xen host of unknown size",
        pcpus: 0,
        experiment: "grant",
        ours: Point { comparison: "split/single", setting: &[("ratio", "8")] },
        control: None,
        why: "There, many CPUs that met at one lock; here, two, where what counts is how often a vCPU is preempted while \
              it holds what all others need. At ratio 1 the split is worth less; a request's data are a sector a page.",
        page: "docs/grant-tables.md",
    },
    Row {
        seed: "optimistic spin queue: false sharing of the node (2023)",
        source: "Zeng Heng: locking/osq_lock: Avoid false sharing in optimistic_spin_node, linux-kernel, December 2023",
        figure: "split over packed layout: UnixBench file copy, 1024 bytes, 80 at a time",
        published: 1.227,
        machine: "40-core, 80-thread host",
        pcpus: 80,
        experiment: "osq",
        ours: Point { comparison: "split/packed", setting: &[("workload", "copy-1024"), ("ratio", "8")] },
        control: Some(Control {
            ours: Point { comparison: "split/packed", setting: &[("workload", "compute"), ("ratio", "8")] },
            published: None,
        }),
        why: "The line that the layouts take apart is read by the waiter behind and written by the one in front while a third \
          CPU owns the lock: it takes three CPUs that run at once, and gains with every waiter. Two pCPUs cannot show \
          it. A simulation of 80 CPUs (just simulate) puts the queue's gain at 1.17.",
        page: "docs/osq.md",
    },
    Row {
        seed: "optimistic spin queue, the other proposal (2023)",
        source: "the thread of Zeng Heng: locking/osq_lock: Avoid false sharing in optimistic_spin_node, linux-kernel, December 2023",
        figure: "cached over packed layout: UnixBench file copy, 1024 bytes, 80 at a time",
        published: 1.186,
        machine: "40-core, 80-thread host",
        pcpus: 80,
        experiment: "osq",
        ours: Point { comparison: "cached/packed", setting: &[("workload", "copy-1024"), ("ratio", "8")] },
        control: Some(Control {
            ours: Point { comparison: "cached/packed", setting: &[("workload", "compute"), ("ratio", "8")] },
            published: None,
        }),
        why: "As above. The simulation has 1.18 for this one.",
        page: "docs/osq.md",
    },
    Row {
        seed: "unfair spinlock (2010)",
        source: "Gleb Natapov: use unfair spinlock when running on hypervisor, linux-kernel, June 2010",
        figure: "unfair over ticket lock: two 16-vCPU guests that build kernels at the same time, time of each",
        published: 1.46,
        machine: "host of unknown size",
        pcpus: 0,
        experiment: "unfair",
        ours: Point { comparison: "unfair/ticket", setting: &[] },
        control: Some(Control {
            ours: Point { comparison: "unfair/ticket alone at ratio 1", setting: &[] },
            published: Some(1.004),
        }),
        why: "A ticket lock waits for the one vCPU whose turn it is, for as long as that has no pCPU; an unfair one is taken by \
          whoever runs. Sixteen vCPUs per pCPU here, fewer there, and no PAUSE exits here that cut spins short.",
        page: "docs/unfair.md",
    },
    Row {
        seed: "unfair spinlock (2010), CPU time",
        source: "Gleb Natapov: use unfair spinlock when running on hypervisor, linux-kernel, June 2010",
        figure: "ticket over unfair lock: system time of the same two builds, here CPU time in lock code",
        published: 2.65,
        machine: "host of unknown size",
        pcpus: 0,
        experiment: "unfair",
        ours: Point { comparison: "unfair/ticket, CPU time in locks", setting: &[] },
        control: None,
        why: "System time there has all of the kernel in it; ours has only what acquiring and releasing locks takes, so that \
          the ratio is not diluted.",
        page: "docs/unfair.md",
    },
];
