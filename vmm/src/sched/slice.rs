//! When the slice of a pCPU ends.
//!
//! The timer is periodic, so that a turn that begins because the one before it used up its slice needs no system call:
//! setting a timer costs 8 us on a host that is a virtual machine itself. Any other turn sets it anew. A kick that was
//! under way at that moment comes early, and is known by the clock for what it is.

/// What rings at the end of a slice.
pub(super) trait Timer {
    /// It rings at `at_ns`, and every `interval_ns` after that. Only the last call counts.
    fn set(&self, at_ns: u64, interval_ns: u64);
}

/// The slice timer of one runner, which it kicks.
pub(super) struct SliceTimer<T> {
    timer: T,
    slice_ns: u64,
    /// When it will kick next.
    deadline_ns: u64,
    /// A slice has just ended, so the next one has just begun.
    fresh: bool,
    /// The timer is set to something before the deadline.
    detour: bool,
}

impl<T: Timer> SliceTimer<T> {
    /// Slices of this length, the first of which has not begun.
    pub(super) fn new(timer: T, slice_ns: u64) -> Self {
        Self { timer, slice_ns, deadline_ns: 0, fresh: false, detour: false }
    }

    /// A turn begins, of a slice shortened by `debt_ns`. Whether the timer had to be set.
    pub(super) fn begin(&mut self, now_ns: u64, debt_ns: u64) -> bool {
        let sets = !std::mem::take(&mut self.fresh) || debt_ns > 0;
        if sets {
            self.deadline_ns = now_ns + self.slice_ns.saturating_sub(debt_ns);
            self.detour = false;
            self.timer.set(self.deadline_ns, self.slice_ns);
        }
        sets
    }

    /// When it ends.
    pub(super) fn deadline_ns(&self) -> u64 {
        self.deadline_ns
    }

    /// The slice that has just ended goes on until `until_ns`.
    pub(super) fn extend(&mut self, until_ns: u64) {
        (self.fresh, self.detour, self.deadline_ns) = (false, false, until_ns);
        self.timer.set(until_ns, self.slice_ns);
    }

    /// Kicks at `at_ns` too, if the slice has not ended by then. Only the last call counts. Whether the timer had to be set.
    pub(super) fn also_at(&mut self, at_ns: u64) -> bool {
        let detour = at_ns < self.deadline_ns;
        let sets = detour || self.detour;
        if sets {
            self.detour = detour;
            self.timer.set(at_ns.min(self.deadline_ns), self.slice_ns);
        }
        sets
    }

    /// Whether the slice is over. If so, the next one has begun.
    pub(super) fn ended(&mut self, now_ns: u64) -> bool {
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
