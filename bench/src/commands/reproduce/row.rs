//! The parts of a row of the table.

/// A published figure and ours.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// The thread that it comes from, and its year.
    pub(crate) seed: &'static str,
    /// Publication: author, subject, list and month.
    pub(crate) source: &'static str,
    /// The comparison that was made there, and its measure.
    pub(crate) figure: &'static str,
    /// The published ratio, so that above 1 is better; or the published share.
    pub(crate) published: f64,
    /// The figure from another run there.
    pub(crate) again: Option<f64>,
    /// The machine that it was measured on.
    pub(crate) machine: &'static str,
    /// CPUs of that machine that the guests shared; 0: not published.
    pub(crate) pcpus: u32,
    /// vCPUs, or threads, for each of them; `None`: not published.
    pub(crate) ratio: Option<f64>,
    /// pCPUs without which there is nothing to compare.
    pub(crate) needs_pcpus: u32,
    /// Name of our experiment.
    pub(crate) experiment: &'static str,
    /// Our figure.
    pub(crate) ours: Figure,
    /// The figure to use instead where the host has fewer CPUs than the reference study's, if there is one.
    pub(crate) on_fewer: Option<Figure>,
    /// The comparison in which the same thing must make no difference; `None`: the experiment's A/A pair.
    pub(crate) control: Option<Control>,
    /// Properties that are as they were there.
    pub(crate) alike: Alike,
    /// Why the two figures are alike or not.
    pub(crate) why: &'static str,
    /// The page that has more.
    pub(crate) page: &'static str,
}

/// Values of axes, as many as it takes to pick one point of a grid.
pub(crate) type Setting = &'static [(&'static str, &'static str)];

/// The figure to be taken from an experiment.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Figure {
    /// A comparison that the experiment makes.
    Ratio(Point),
    /// How many times as long as at `over` an arm takes at `at`, in the same block.
    Slowdown { arm: &'static str, at: Setting, over: Setting },
    /// A share of something, of one arm.
    Share { of: Share, arm: &'static str, setting: Setting },
}

/// One comparison of an experiment at one point of its grid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    /// Name of the comparison.
    pub(crate) comparison: &'static str,
    /// The point of the grid.
    pub(crate) setting: Setting,
}

/// The figure of a comparison at a point of its grid.
pub(crate) const fn compared(comparison: &'static str, setting: Setting) -> Figure {
    Figure::Ratio(Point { comparison, setting })
}

/// The whole that a share is of, and its part.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Share {
    /// CPU time of the vCPUs that goes into acquiring and releasing locks.
    LockCpu,
    /// Time of the vCPUs that they wait for the lock, asleep or not.
    Waiting,
    /// One event among the occasions for it.
    Events { of: &'static str, among: &'static str },
}

/// The control, which shows that a difference comes from the reference study's subject.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Control {
    /// A comparison that should be near 1.
    pub(crate) ours: Point,
    /// The published figure, if there is one.
    pub(crate) published: Option<f64>,
}

/// Properties that are as they were there. Whether the ratio is, the runs tell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Alike {
    /// The version of the lock, its threshold included.
    pub(crate) lock: Mark,
    /// The guests that run at the same time, their CPUs, and whose scheduler runs them.
    pub(crate) arrangement: Mark,
    /// The work that is done.
    pub(crate) workload: Mark,
}

/// Whether something is as it was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    Same,
    Other,
    Unknown,
}

pub(crate) use Mark::{Other, Same, Unknown};
