//! What a row of the table is made of.

/// A published figure and ours.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// The thread that it comes from, and its year.
    pub(crate) seed: &'static str,
    /// Where it was published: author, subject, list and month.
    pub(crate) source: &'static str,
    /// What was compared there, by which measure.
    pub(crate) figure: &'static str,
    /// The published ratio, so that above 1 is better; or the published share.
    pub(crate) published: f64,
    /// The same from another run there.
    pub(crate) again: Option<f64>,
    /// Where that was measured.
    pub(crate) machine: &'static str,
    /// CPUs of that machine that the guests shared; 0: nobody says.
    pub(crate) pcpus: u32,
    /// vCPUs, or threads, for each of them; `None`: nobody says.
    pub(crate) ratio: Option<f64>,
    /// pCPUs without which there is nothing to compare.
    pub(crate) needs_pcpus: u32,
    /// Name of our experiment.
    pub(crate) experiment: &'static str,
    /// Our figure.
    pub(crate) ours: Figure,
    /// What stands in for it where the host has fewer CPUs than the seed's, if anything does.
    pub(crate) on_fewer: Option<Figure>,
    /// Where the same thing must make no difference; `None`: the experiment's A/A pair.
    pub(crate) control: Option<Control>,
    /// What is as it was there.
    pub(crate) alike: Alike,
    /// Why the two figures are alike or not.
    pub(crate) why: &'static str,
    /// The page that has more.
    pub(crate) page: &'static str,
}

/// Values of axes, as many as it takes to pick one point of a grid.
pub(crate) type Setting = &'static [(&'static str, &'static str)];

/// What is to be taken from an experiment.
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
    /// Where.
    pub(crate) setting: Setting,
}

/// What shares are of.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Share {
    /// CPU time of the vCPUs that goes into acquiring and releasing locks.
    LockCpu,
    /// Time of the vCPUs that they wait for the lock, asleep or not.
    Waiting,
    /// One event among the occasions for it.
    Events { of: &'static str, among: &'static str },
}

/// What shows that a difference comes from what the seed is about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Control {
    /// A comparison that should be near 1.
    pub(crate) ours: Point,
    /// What was published of it, if anything was.
    pub(crate) published: Option<f64>,
}

/// What is as it was there. Whether the ratio is, the runs tell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Alike {
    /// The version of the lock, its threshold included.
    pub(crate) lock: Mark,
    /// What runs beside what, on which CPUs, under whose scheduler.
    pub(crate) arrangement: Mark,
    /// What is done.
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
