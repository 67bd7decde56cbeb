//! When the slice of a pCPU ends.
//!
//! The timer is periodic, so that a turn that begins because the one before it used up its slice needs no system call:
//! setting a timer costs 8 us on a host that is a virtual machine itself. Any other turn sets it anew. A kick that was
//! under way at that moment comes early, and is known by the clock for what it is.

use std::io;

use crate::host::signal::KickTimer;

/// The slice timer of one runner, which it kicks.
pub(crate) struct SliceTimer {
    timer: KickTimer,
    slice_ns: u64,
    /// When it will kick next.
    deadline_ns: u64,
    /// A slice has just ended, so the next one has just begun.
    fresh: bool,
    /// The timer is set to something before the deadline.
    detour: bool,
}

impl SliceTimer {
    /// A timer for the calling thread, not set yet.
    pub(crate) fn new(slice_ns: u64) -> io::Result<Self> {
        Ok(Self { timer: KickTimer::new()?, slice_ns, deadline_ns: 0, fresh: false, detour: false })
    }

    /// A turn begins, of a slice shortened by `debt_ns`.
    pub(crate) fn begin(&mut self, now_ns: u64, debt_ns: u64) {
        if !std::mem::take(&mut self.fresh) || debt_ns > 0 {
            self.deadline_ns = now_ns + self.slice_ns.saturating_sub(debt_ns);
            self.detour = false;
            self.timer.set(self.deadline_ns, self.slice_ns);
        }
    }

    /// When it ends.
    pub(crate) fn deadline_ns(&self) -> u64 {
        self.deadline_ns
    }

    /// The slice that has just ended goes on until `until_ns`.
    pub(crate) fn extend(&mut self, until_ns: u64) {
        (self.fresh, self.detour, self.deadline_ns) = (false, false, until_ns);
        self.timer.set(until_ns, self.slice_ns);
    }

    /// Kicks at `at_ns` too, if the slice has not ended by then. Only the last call counts.
    pub(crate) fn also_at(&mut self, at_ns: u64) {
        let detour = at_ns < self.deadline_ns;
        if detour || self.detour {
            self.detour = detour;
            self.timer.set(at_ns.min(self.deadline_ns), self.slice_ns);
        }
    }

    /// Whether the slice is over. If so, the next one has begun.
    pub(crate) fn ended(&mut self, now_ns: u64) -> bool {
        let ended = now_ns >= self.deadline_ns;
        if ended {
            let missed = (now_ns - self.deadline_ns) / self.slice_ns;
            self.deadline_ns += (missed + 1) * self.slice_ns;
            // After a detour the timer ticks out of step.
            self.fresh = !self.detour;
        }
        ended
    }
}
