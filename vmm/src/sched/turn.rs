//! How a vCPU's turn on a pCPU ends.

use crate::guest::activity::Activity;
use crate::observe::trace::Why;
use crate::sched::queue::Task;

/// Why a vCPU's turn ended.
pub(super) enum Turn<'a> {
    /// Its slice is over and another vCPU is ready.
    SliceEnded,
    /// It is descheduled on purpose for so many nanoseconds.
    Injected(u64),
    /// It sleeps until kicked.
    Waits,
    /// It has halted in KVM's hands.
    Halts,
    /// It gives up its slice, and somebody else is ready.
    Yields,
    /// It hands its pCPU to this vCPU.
    HandsOver(Box<Task<'a>>),
    /// It has nothing more to do, or may not be entered again.
    Left,
    /// The run is over.
    Stopped,
}

impl Turn<'_> {
    /// Why a vCPU that was in `activity` is off its pCPU now, for a trace.
    pub(super) fn why(&self, activity: Activity) -> Why {
        match self {
            Self::SliceEnded => Why::Preempted(activity),
            Self::Injected(_) => Why::Injected(activity),
            Self::Waits | Self::Halts => Why::Waits,
            Self::Yields | Self::HandsOver(_) => Why::Yields,
            Self::Left | Self::Stopped => Why::Left,
        }
    }
}
