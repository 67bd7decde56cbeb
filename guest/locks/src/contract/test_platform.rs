//! A platform for tests that never wait.

use super::{Event, Platform};

/// One CPU, on which nothing sleeps.
pub(crate) struct Scripted {
    pub pause: fn(),
    pub now: fn() -> u64,
}

/// A platform on which no time passes.
pub(crate) const IDLE: Scripted = Scripted { pause: || (), now: || 0 };

impl Platform for Scripted {
    fn cpu(&self) -> usize {
        0
    }

    fn pause(&self) {
        (self.pause)();
    }

    fn now(&self) -> u64 {
        (self.now)()
    }

    fn spin_threshold(&self) -> u64 {
        0
    }

    fn wait(&self, _: impl Fn() -> bool) {}

    fn kick(&self, _: usize) {}

    fn is_preempted(&self, _: usize) -> bool {
        false
    }

    fn ticks(&self, nanoseconds: u64) -> u64 {
        nanoseconds
    }

    fn yield_to(&self, _: Option<usize>) {}

    fn count(&self, _: Event, _: u64) {}
}
