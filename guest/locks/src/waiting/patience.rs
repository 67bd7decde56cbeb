//! How long a waiter spins before it sleeps.

use crate::{contract::Platform, memory::sync::MODELLED};

/// Rounds between two looks at the clock.
///
/// A round is one pause instruction, 40 to 140 cycles on current x86; reading the clock each time would make
/// the rounds longer, and rarer looks would blur a threshold of a few microseconds.
const CLOCK_EVERY: u32 = if MODELLED { 1 } else { 16 };

/// Rounds are counted up to here, and then anew: few where a model checker compares states.
const ROUNDS: u32 = if MODELLED { 4 } else { 1 << 31 };

/// One bounded spin: patience lasts [`Platform::spin_threshold`] ticks, or [`Platform::spin_rounds`] rounds.
///
/// The bound is a time, unless rounds are asked for, because the length of a round varies by a factor of four
/// between processors, while what it is weighed against (a halt, a kick, a slice) does not.
pub(crate) struct Patience<'a, P> {
    platform: &'a P,
    /// [`Platform::off_ticks`] at its start.
    off: u64,
    since: u64,
    rounds: u32,
}

impl<'a, P: Platform> Patience<'a, P> {
    /// Starts the clock.
    pub(crate) fn new(platform: &'a P) -> Self {
        Self { platform, off: platform.off_ticks(), since: platform.now(), rounds: 0 }
    }

    /// Ticks that it has taken of the CPU's time. The order of the readings here and above makes them too few, if the CPU is
    /// taken away between them.
    pub(crate) fn spent(&self) -> u64 {
        let ticks = self.platform.now().wrapping_sub(self.since);
        ticks.saturating_sub(self.platform.off_ticks().wrapping_sub(self.off))
    }

    /// Whether this is one of every `n` rounds, the first included.
    pub(crate) fn every(&self, n: u32) -> bool {
        self.rounds.is_multiple_of(n)
    }

    /// Pauses for one round, or returns `false` at once if patience is over.
    pub(crate) fn pause(&mut self) -> bool {
        self.rounds = if self.rounds == ROUNDS - 1 { 0 } else { self.rounds + 1 };
        if self.is_over() {
            return false;
        }
        self.platform.pause();
        true
    }

    fn is_over(&self) -> bool {
        match self.platform.spin_rounds() {
            0 => {
                self.every(CLOCK_EVERY)
                    && self.platform.now().wrapping_sub(self.since) >= self.platform.spin_threshold()
            }
            most => self.rounds > most,
        }
    }
}
