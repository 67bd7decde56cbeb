//! When a waiter gives up: it would wait for itself, or has waited for too long.

use super::{View, fallible::LockError};
use crate::{
    contract::Platform,
    faults::mutant::mutant,
    memory::sync::{AtomicU32, MODELLED, Ordering::*},
    qspinlock::parts::LOCKED_MASK,
};

/// Rounds of spinning between two looks at the clock.
const CLOCK_EVERY: u32 = if MODELLED { 1 } else { 16 };
/// Checks for a circle of two CPUs in the time that a head waits.
const CHECKS: u64 = 500;

/// One bounded wait.
pub(super) struct Check<'a, P> {
    view: View<'a, P>,
    word: &'a AtomicU32,
    /// Divisor of [`Platform::lock_limit`]: the wait is over after the quotient.
    part: u64,
    rounds: u32,
    /// When the wait began, and the last look, in ticks.
    since: u64,
    last: u64,
}

impl<'a, P: Platform> Check<'a, P> {
    /// Starts the clock.
    pub(super) fn new(view: View<'a, P>, word: &'a AtomicU32, part: u64) -> Self {
        let since = view.shared.platform.now();
        Self { view, word, part, rounds: 0, since, last: since }
    }

    /// Pauses for one round, or says why there is no use in waiting.
    pub(super) fn pause(&mut self) -> Result<(), LockError> {
        self.rounds += 1;
        if self.rounds >= CLOCK_EVERY {
            self.rounds = 0;
            self.look()?;
        }
        self.view.shared.platform.pause();
        Ok(())
    }

    fn look(&mut self) -> Result<(), LockError> {
        let platform = self.view.shared.platform;
        let (limit, now) = (platform.lock_limit(), platform.now());
        if now.wrapping_sub(self.since) >= limit / self.part {
            return Err(LockError::TimedOut);
        }
        if now.wrapping_sub(self.last) < limit / CHECKS {
            return Ok(());
        }
        self.last = now;
        if self.is_in_a_circle() { Err(LockError::Deadlock) } else { Ok(()) }
    }

    /// ABBA: whether the holder waits for a lock that this CPU holds. Looks at all CPUs, since the word does not name the holder. Circles of
    /// three CPUs end by time.
    fn is_in_a_circle(&self) -> bool {
        let own = &self.view.held[self.view.cpu];
        for cpu in (0..self.view.held.len()).filter(|cpu| *cpu != self.view.cpu) {
            // Acquire: pairs with unlock; if it was released meanwhile, what its last holder asks for does not matter.
            if self.word.load(Acquire) & LOCKED_MASK == 0 {
                return false;
            }
            if let Some(asked) = self.view.held[cpu].asked_while_holding(self.lock()) {
                return mutant!("rq-no-circle": own.held_before_the_last(asked) => false);
            }
        }
        false
    }

    fn lock(&self) -> usize {
        core::ptr::from_ref(self.word).addr()
    }
}
