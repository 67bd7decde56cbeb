//! A platform for tests that never wait.

use super::{Event, Platform};

pub(crate) struct Idle;

impl Platform for Idle {
    fn cpu(&self) -> usize {
        0
    }

    fn pause(&self) {}

    fn now(&self) -> u64 {
        0
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
