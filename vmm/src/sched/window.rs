//! The measuring window, in host time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// When the window opened and closed, in host time. Read by the schedulers to clip what they account for to the window.
#[derive(Debug)]
pub(crate) struct WindowTimes {
    open_ns: AtomicU64,
    close_ns: AtomicU64,
}

impl WindowTimes {
    /// Not open yet.
    pub(crate) const fn new() -> Self {
        Self { open_ns: AtomicU64::new(u64::MAX), close_ns: AtomicU64::new(u64::MAX) }
    }

    /// One that was open from `open_ns` to `close_ns`.
    #[cfg(any(test, fuzzing))]
    pub(crate) const fn between(open_ns: u64, close_ns: u64) -> Self {
        Self { open_ns: AtomicU64::new(open_ns), close_ns: AtomicU64::new(close_ns) }
    }

    // Relaxed throughout: an accountant that sees the change a moment late misjudges that moment only.

    /// The window is open from `now_ns` on.
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
        let from = from_ns.max(self.open_ns.load(Ordering::Relaxed));
        let to = to_ns.min(self.close_ns.load(Ordering::Relaxed));
        (from < to).then_some((from, to))
    }

    /// Whether `at_ns` lies in the window.
    pub(crate) fn contains(&self, at_ns: u64) -> bool {
        self.open_ns.load(Ordering::Relaxed) <= at_ns && at_ns < self.close_ns.load(Ordering::Relaxed)
    }

    /// When it opened and closed, in host time; `u64::MAX`: never.
    pub(crate) fn times(&self) -> [u64; 2] {
        [self.open_ns.load(Ordering::Relaxed), self.close_ns.load(Ordering::Relaxed)]
    }

    /// Its length, once closed.
    pub(crate) fn length(&self) -> Duration {
        let length =
            self.close_ns.load(Ordering::Relaxed).saturating_sub(self.open_ns.load(Ordering::Relaxed));
        Duration::from_nanos(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_before_the_window_and_after_it_does_not_count() {
        let window = WindowTimes { open_ns: AtomicU64::new(100), close_ns: AtomicU64::new(200) };
        assert_eq!(window.overlap_ns(0, 50), 0);
        assert_eq!(window.overlap_ns(50, 150), 50);
        assert_eq!(window.overlap_ns(120, 130), 10);
        assert_eq!(window.overlap_ns(150, 250), 50);
        assert_eq!(window.overlap_ns(200, 250), 0);
        assert!(!window.contains(99) && window.contains(100) && !window.contains(200));
    }

    #[test]
    fn a_window_that_never_opened_contains_nothing() {
        let window = WindowTimes::new();
        assert_eq!(window.overlap_ns(0, u64::MAX), 0);
        assert!(!window.contains(u64::MAX - 1));
    }
}
