//! Properties of the guests, and of the scheduler that runs them.

use crate::sched::Share;
use crate::sched::core::Queues;

pub(super) const SLICE_NS: u64 = 1_000_000;
/// The number of the guest that means no harm.
pub(super) const HONEST: usize = 0;

/// Properties of the guests and of the scheduler.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) share: Share,
    pub(crate) pcpus: usize,
    pub(crate) queues: Queues,
    /// How many guests mean harm.
    pub(crate) hostile: usize,
    /// vCPUs of each guest.
    pub(crate) vcpus: u32,
    pub(crate) grace: bool,
    pub(crate) kick_yields: bool,
    /// The behaviour of hostile vCPUs.
    pub(crate) attack: Attack,
}

/// The behaviour of hostile vCPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attack {
    /// Whatever the script says.
    Anything,
    /// The first yields to the second as soon as it runs, and that runs as long as it may.
    FeedOne,
    /// All yield to each other in turn, each after a moment.
    PassAround,
    /// The first kicks the second awake as soon as it runs; that runs as long as it may but for a moment, then sleeps.
    KickOne,
    /// All say forever that they hold a lock and have not started.
    Lie,
    /// All but the last yield to the second as soon as they run, which runs as long as it may, and so does the last.
    WaitForOne,
    /// Every other one kicks its neighbour awake again and again, which runs for a moment, then sleeps.
    WakeEachOther,
    /// All but the last yield to each other in turn, each after a moment. The last runs as long as it may.
    PassAroundOne,
}
