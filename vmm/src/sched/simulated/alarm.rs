//! The timer of a simulated pCPU, which costs nothing to set.

use std::cell::Cell;
use std::rc::Rc;

use crate::sched::slice::Timer;

/// An alarm for the end of a slice: when it rings next, and how often after that.
#[derive(Clone, Default)]
pub(super) struct Alarm(Rc<Cell<(u64, u64)>>);

impl Timer for Alarm {
    const IS_DEAR: bool = false;

    fn set(&self, at_ns: u64, interval_ns: u64) {
        self.0.set((at_ns, interval_ns));
    }
}

impl Alarm {
    /// When it rings next.
    pub(super) fn rings_at(&self) -> u64 {
        self.0.get().0
    }

    /// It has rung at `now_ns`, and rings again.
    pub(super) fn rang(&self, now_ns: u64) {
        let (at_ns, interval_ns) = self.0.get();
        let missed = now_ns.saturating_sub(at_ns).checked_div(interval_ns).unwrap_or(0);
        self.0.set((at_ns + (missed + 1) * interval_ns, interval_ns));
    }
}
