//! The measuring window, in host time, and guests that come and go in it.
//!
//! A guest may be there for a part of its window only (`--vm ...,from=TIME/TIME`): outside these times its vCPUs get no pCPU.
//! Before the window and after it they do, so that the guest boots, warms up and leaves. One that is on a pCPU when its guest goes stays
//! there until its slice ends.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::host::error::Refused;
use crate::host::text::Span;

/// When the window opened and closed, in host time. Read by the schedulers to clip what they account for to the window.
#[derive(Debug)]
pub(crate) struct WindowTimes {
    open_ns: AtomicU64,
    close_ns: AtomicU64,
}

impl WindowTimes {
    pub(crate) const fn new() -> Self {
        Self { open_ns: AtomicU64::new(u64::MAX), close_ns: AtomicU64::new(u64::MAX) }
    }

    #[cfg(any(test, fuzzing))]
    pub(crate) const fn between(open_ns: u64, close_ns: u64) -> Self {
        Self { open_ns: AtomicU64::new(open_ns), close_ns: AtomicU64::new(close_ns) }
    }

    // Relaxed throughout: an accountant that sees the change a moment late misjudges that moment only.

    pub(crate) fn open(&self, now_ns: u64) {
        self.open_ns.store(now_ns, Ordering::Relaxed);
    }

    /// The window is closed from `now_ns` on, unless it is already.
    pub(crate) fn close(&self, now_ns: u64) {
        let _ = self.close_ns.compare_exchange(u64::MAX, now_ns, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Whether it was open and is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.close_ns.load(Ordering::Relaxed) != u64::MAX
    }

    /// The part of `from_ns..to_ns` that lies in the window, in nanoseconds.
    pub(crate) fn overlap_ns(&self, from_ns: u64, to_ns: u64) -> u64 {
        self.clip(from_ns, to_ns).map_or(0, |(from, to)| to - from)
    }

    /// The part of `from_ns..to_ns` that lies in the window, unless that is empty.
    pub(crate) fn clip(&self, from_ns: u64, to_ns: u64) -> Option<(u64, u64)> {
        let [open_ns, close_ns] = self.times();
        let (from, to) = (from_ns.max(open_ns), to_ns.min(close_ns));
        (from < to).then_some((from, to))
    }

    pub(crate) fn contains(&self, at_ns: u64) -> bool {
        let [open_ns, close_ns] = self.times();
        (open_ns..close_ns).contains(&at_ns)
    }

    /// When it opened and closed, in host time; `u64::MAX`: never.
    pub(crate) fn times(&self) -> [u64; 2] {
        [self.open_ns.load(Ordering::Relaxed), self.close_ns.load(Ordering::Relaxed)]
    }

    /// Its length, once closed.
    pub(crate) fn length(&self) -> Duration {
        let [open_ns, close_ns] = self.times();
        Duration::from_nanos(close_ns.saturating_sub(open_ns))
    }
}

/// When a guest is there, from the opening of its window on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Presence {
    /// It comes.
    pub from: Duration,
    /// It goes; `None`: it stays.
    pub until: Option<Duration>,
}

/// How long a window may last beyond its length before a vCPU looks again.
const LOOK_NS: u64 = 1_000_000;

impl Presence {
    /// Refuses times that are none within a window of this length.
    pub(crate) fn check(self, window: Duration) -> Result<(), Refused> {
        let Self { from, until } = self;
        let (comes, lasts) = (Span(from), Span(window));
        let message = format!("{comes} is beyond the window, which lasts {lasts}");
        Refused::when(from >= window, "from", message)?;
        let Some(until) = until else { return Ok(()) };
        let goes = Span(until);
        let message = format!("the guest goes at {goes} and comes at {comes}: give a later time");
        Refused::when(until <= from, "from", message)?;
        Refused::when(until > window, "from", format!("{goes} is beyond the window, which lasts {lasts}"))
    }

    /// The longest time in a window of this length in which the guest is not there.
    pub(crate) fn longest_absence(self, window: Duration) -> Duration {
        self.from.max(self.until.map_or(Duration::ZERO, |until| window.saturating_sub(until)))
    }

    /// When a vCPU that asks for a pCPU at `now_ns` is to ask again; `None`: it gets one. The window was asked to last `length_ns`.
    pub(crate) fn absent_until(self, window: &WindowTimes, length_ns: u64, now_ns: u64) -> Option<u64> {
        if !window.contains(now_ns) {
            return None;
        }
        let [open_ns, _] = window.times();
        let at = |time: Duration| open_ns + time.as_nanos() as u64;
        if now_ns < at(self.from) {
            return Some(at(self.from));
        }
        let gone = self.until.is_some_and(|until| now_ns >= at(until));
        gone.then(|| (open_ns + length_ns).max(now_ns + LOOK_NS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_before_the_window_and_after_it_does_not_count() {
        let window = WindowTimes::between(100, 200);
        for (from_ns, to_ns, inside_ns) in
            [(0, 50, 0), (50, 150, 50), (120, 130, 10), (150, 250, 50), (200, 250, 0)]
        {
            assert_eq!(window.overlap_ns(from_ns, to_ns), inside_ns, "{from_ns} to {to_ns}");
        }
        assert!(!window.contains(99) && window.contains(100) && !window.contains(200));
        let never = WindowTimes::new();
        assert!(never.overlap_ns(0, u64::MAX) == 0 && !never.contains(u64::MAX - 1));
    }
}
