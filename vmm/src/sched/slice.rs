//! When the slice of a pCPU ends.
//!
//! The deadline is a number in memory. The timer is periodic, and rings at the deadline or before it. Setting a timer costs 8 us on a
//! host that is a virtual machine itself, so where that is dear it is set only if
//! 1. a turn begins whose slice ends before the timer would ring: the vCPU owes time, or nothing was set yet;
//! 2. a turn begins after another one that ended early, and the timer was not set for as long as a slice: waits are rare, and a ring
//!    that comes early would cost another exit;
//! 3. the timer has rung before the deadline, for a turn that ended early.
//!
//! If waits are frequent, turns leave the timer alone, and a pCPU sets it about once a slice. A turn that begins because the
//! one before it used up its slice ends at the timer's next ring. A kick that was under way at some moment comes early, and is
//! known by the clock for what it is.

use std::cell::Cell;
use std::rc::Rc;

use crate::host::signal::KickTimer;

/// Clock that rings at the end of a slice.
pub(super) enum Alarm {
    /// A timer that kicks its thread: setting it costs more than a ring that comes early.
    Kicks(KickTimer),
    /// The timer of a simulated pCPU, which costs nothing to set, but may pass for one that does.
    Simulated { rings: Rings, is_dear: bool },
}

impl Alarm {
    fn is_dear(&self) -> bool {
        !matches!(self, Self::Simulated { is_dear: false, .. })
    }

    /// It rings at `at_ns`, and every `interval_ns` after that. Only the last call counts.
    fn set(&self, at_ns: u64, interval_ns: u64) {
        match self {
            Self::Kicks(timer) => timer.set(at_ns, interval_ns),
            Self::Simulated { rings, .. } => rings.0.set((at_ns, interval_ns)),
        }
    }
}

/// When a simulated timer rings next, and how often after that.
#[derive(Clone, Default)]
pub(super) struct Rings(Rc<Cell<(u64, u64)>>);

impl Rings {
    pub(super) fn next_ns(&self) -> u64 {
        self.0.get().0
    }

    /// It has rung at `now_ns`, and rings again; or something else has rung before it.
    pub(super) fn rang(&self, now_ns: u64) {
        let (at_ns, interval_ns) = self.0.get();
        if now_ns < at_ns {
            return;
        }
        let missed = now_ns.saturating_sub(at_ns).checked_div(interval_ns).unwrap_or(0);
        self.0.set((at_ns + (missed + 1) * interval_ns, interval_ns));
    }
}

/// The slice timer of one runner, which it kicks.
pub(super) struct SliceTimer {
    timer: Alarm,
    slice_ns: u64,
    deadline_ns: u64,
    /// A moment at which the timer rings; it does so every slice after that. `None`: it was never set.
    rings_ns: Option<u64>,
    set_ns: u64,
    /// A slice has just ended, so the next one has just begun.
    fresh: bool,
    /// The timer is set to something before the deadline.
    detour: bool,
}

impl SliceTimer {
    /// Slices of this length, the first of which has not begun.
    pub(super) fn new(timer: Alarm, slice_ns: u64) -> Self {
        Self { timer, slice_ns, deadline_ns: 0, rings_ns: None, set_ns: 0, fresh: false, detour: false }
    }

    /// The timer of a simulated pCPU, and when it rings.
    pub(super) fn simulated(slice_ns: u64, is_dear: bool) -> (Self, Rings) {
        let rings = Rings::default();
        (Self::new(Alarm::Simulated { rings: rings.clone(), is_dear }, slice_ns), rings)
    }

    fn set(&mut self, at_ns: u64) {
        self.rings_ns = Some(at_ns);
        self.timer.set(at_ns, self.slice_ns);
    }

    /// Whether the timer rings neither at the deadline nor between `now_ns` and that.
    fn rings_late(&mut self, now_ns: u64) -> bool {
        let Some(rings_ns) = &mut self.rings_ns else { return true };
        if *rings_ns <= now_ns {
            *rings_ns += ((now_ns - *rings_ns) / self.slice_ns + 1) * self.slice_ns;
        }
        *rings_ns > self.deadline_ns
    }

    /// A turn begins, of a slice shortened by `debt_ns`. Whether the timer had to be set.
    pub(super) fn begin(&mut self, now_ns: u64, debt_ns: u64) -> bool {
        // (The vCPU that had it may have gone on, for want of others, and ended its turn much later.)
        let is_whole = self.deadline_ns.saturating_sub(now_ns) > self.slice_ns / 4 * 3;
        let goes_on = std::mem::take(&mut self.fresh) && is_whole && debt_ns == 0;
        if !goes_on {
            self.deadline_ns = now_ns + self.slice_ns.saturating_sub(debt_ns);
            self.detour = false;
        }
        let is_rare = now_ns.saturating_sub(self.set_ns) >= self.slice_ns;
        let sets =
            if self.timer.is_dear() { self.rings_late(now_ns) || !goes_on && is_rare } else { !goes_on };
        if sets {
            self.set_ns = now_ns;
            self.set(self.deadline_ns);
        }
        sets
    }

    pub(super) fn deadline_ns(&self) -> u64 {
        self.deadline_ns
    }

    /// The slice that has just ended goes on until `until_ns`.
    pub(super) fn extend(&mut self, until_ns: u64) {
        (self.fresh, self.detour, self.deadline_ns) = (false, false, until_ns);
        self.set(until_ns);
    }

    /// Kicks at `at_ns` too, if the slice has not ended by then. Only the last call counts. Whether the timer had to be set.
    pub(super) fn also_at(&mut self, at_ns: u64) -> bool {
        let detour = at_ns < self.deadline_ns;
        let sets = detour || self.detour;
        if sets {
            self.detour = detour;
            self.set(at_ns.min(self.deadline_ns));
        }
        sets
    }

    /// The timer has rung at `now_ns`, or may have: whether the slice is over. If so, the next one has begun.
    pub(super) fn ended(&mut self, now_ns: u64) -> bool {
        let ended = now_ns >= self.deadline_ns;
        if ended {
            let missed = (now_ns - self.deadline_ns) / self.slice_ns;
            self.deadline_ns += (missed + 1) * self.slice_ns;
            // After a detour the timer ticks out of step, unless it is set anew below.
            self.fresh = self.timer.is_dear() || !self.detour;
        }
        if self.timer.is_dear() && self.rings_late(now_ns) {
            self.set_ns = now_ns;
            self.set(self.deadline_ns);
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::random::SplitMix;

    const SLICE: u64 = 1000;

    /// Lets time pass until it rings.
    fn ring(rings: &Rings) -> u64 {
        let at_ns = rings.next_ns();
        rings.rang(at_ns);
        at_ns
    }

    #[test]
    fn full_slices_follow_each_other_and_a_wait_begins_a_new_one() {
        let (mut slice, rings) = SliceTimer::simulated(SLICE, true);
        slice.begin(1, 0);
        for ended_ns in (1..6).map(|slices| slices * SLICE + 1) {
            assert_eq!(ring(&rings), ended_ns);
            assert!(slice.ended(ended_ns));
            assert_eq!(rings.next_ns(), ended_ns + SLICE);
            assert!(!slice.begin(ended_ns + 1, 0), "its slice began when the last one ended");
        }
        let waited_ns = 5 * SLICE + SLICE / 2;
        assert!(slice.begin(waited_ns, 0));
        assert_eq!(rings.next_ns(), waited_ns + SLICE, "there is no early ring");
        assert!(!slice.begin(waited_ns + SLICE / 10, 0), "a short turn leaves the timer alone");
    }

    #[test]
    fn a_turn_after_a_slice_that_went_on_has_a_whole_one() {
        for is_dear in [true, false] {
            let (mut slice, _) = SliceTimer::simulated(SLICE, is_dear);
            slice.begin(1, 0);
            assert!(slice.ended(SLICE + 1), "and goes on, for want of others");
            slice.begin(SLICE * 9 / 5, 0);
            assert_eq!(slice.deadline_ns(), SLICE * 14 / 5, "dear: {is_dear}");
        }
    }

    #[test]
    fn whatever_turns_do_the_timer_rings_by_the_deadline() {
        let ((mut slice, rings), mut random) = (SliceTimer::simulated(SLICE, true), SplitMix::new(1));
        let mut now_ns = 1;
        slice.begin(now_ns, 0);
        for _ in 0..100_000 {
            match random.next() % 8 {
                0 => _ = slice.begin(now_ns, random.next() % SLICE),
                1 => _ = slice.also_at(now_ns + random.next() % (2 * SLICE)),
                2 => _ = slice.begin(now_ns, 0),
                3 => {
                    // Idle, or busy elsewhere: it rings unnoticed.
                    now_ns += random.next() % (5 * SLICE);
                    rings.rang(now_ns);
                    slice.begin(now_ns, 0);
                }
                _ => {
                    now_ns = ring(&rings).max(now_ns);
                    slice.ended(now_ns);
                }
            }
            let (rings_ns, deadline_ns) = (rings.next_ns(), slice.deadline_ns());
            assert!(
                rings_ns <= deadline_ns.max(now_ns),
                "at {now_ns} it rings at {rings_ns}, not by {deadline_ns}"
            );
        }
    }
}
