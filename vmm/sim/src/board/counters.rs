//! Registers that a spin loop counts its rounds in.
//!
//! The sums after any number of rounds are those of one, so many times.

use crate::cpu::flags::mask;
use crate::cpu::state::Stand;

/// Counters of a loop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counters(Vec<Counter>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counter {
    pub(super) register: u8,
    /// Sum of what is added in each round.
    pub(super) step: u64,
    /// Bits of the register that count; the others are zero.
    pub(super) width: u32,
}

impl Counters {
    /// Most bytes of the counters of a loop, beside themselves.
    pub(super) const MOST_BYTES: usize = 16 * size_of::<Counter>();

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Stand of a CPU that is at `stand`, after so many rounds more.
    pub(super) fn after(&self, stand: &Stand, rounds: u64) -> Stand {
        let mut after = stand.clone();
        self.count(&mut after, rounds);
        after
    }

    /// Counts so many rounds more.
    pub(super) fn count(&self, stand: &mut Stand, rounds: u64) {
        for counter in &self.0 {
            let place = &mut stand.general_mut()[usize::from(counter.register)];
            *place = place.wrapping_add(counter.step.wrapping_mul(rounds)) & mask(counter.width);
        }
    }
}

impl Counters {
    /// Whether some number of rounds leads from `from` to `to`, but for flags: forwards or backwards.
    pub(super) fn lead(&self, from: &Stand, to: &Stand) -> bool {
        let bits = self.0.iter().fold(0, |bits, counter| bits | 1 << counter.register);
        let by = |counter: &Counter| {
            let [from, to] = [from, to].map(|stand| stand.general()[usize::from(counter.register)]);
            to.wrapping_sub(from)
        };
        // What all counters of one step have in common; those of several steps are not looked into.
        let is_one = |counter: &Counter| {
            let first = &self.0[0];
            (counter.step, counter.width) == (first.step, first.width) && by(counter) == by(first)
        };
        from.differs_in(to).is_some_and(|differ| differ & !bits == 0) && self.0.iter().all(is_one)
    }
}

impl FromIterator<Counter> for Counters {
    fn from_iter<I: IntoIterator<Item = Counter>>(counters: I) -> Self {
        Self(counters.into_iter().collect())
    }
}
