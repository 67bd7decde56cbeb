//! How a vCPU's turn on a pCPU ends.

use crate::guest::activity::Activity;
use crate::observe::whereabouts::Where;
use crate::sched::queue::Task;

/// Why a vCPU's turn ended.
pub(super) enum Turn<'a> {
    /// Its slice is over and another vCPU is ready.
    SliceEnded,
    /// It is descheduled on purpose for this many nanoseconds.
    Injected(u64),
    /// It sleeps until kicked.
    Waits,
    /// It has halted in KVM's hands.
    Halts,
    /// It gives up its slice, and another vCPU is ready.
    Yields,
    /// It hands its pCPU to this vCPU.
    HandsOver(Box<Task<'a>>),
    /// It has started, and waits for the others.
    Started,
    /// It has nothing more to do, or may not be entered again.
    Left,
    /// The run is over.
    Stopped,
}

impl Turn<'_> {
    /// Returns the place of a vCPU that was in `activity`, for a trace.
    pub(super) fn leads_to(&self, activity: Activity) -> Where {
        match self {
            Self::SliceEnded => Where::Preempted(activity),
            Self::Injected(_) => Where::KeptOut(activity),
            Self::Waits | Self::Halts => Where::Asleep,
            Self::Yields | Self::HandsOver(_) | Self::Started => Where::Ready,
            Self::Left | Self::Stopped => Where::Left,
        }
    }
}
