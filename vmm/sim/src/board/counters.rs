//! Registers that a spin loop counts its rounds in, and does nothing else with.
//!
//! Rounds that differ in such registers alone are alike, if each instruction that reads or writes a counter adds to it or subtracts
//! from it a value that depends on no counter, and no instruction reads the flags of that. Then counters decide neither the effects
//! of the loop nor its duration, and each counter grows by the same step in every round.

use crate::cpu::effect::Effect;
use crate::cpu::state::Stand;

/// Counters of a loop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counters(Vec<Counter>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Counter {
    register: u8,
    /// Value that each round adds, in 64 bits.
    step: u64,
    /// Bits of the register that count, once that is known.
    width: u32,
}

impl Counters {
    /// All general registers that differ; `None` if there are none, or more differs.
    pub(super) fn between(last: &Stand, here: &Stand) -> Option<Self> {
        let counters: Vec<_> = here
            .general()
            .iter()
            .zip(last.general())
            .zip(0..)
            .filter(|((now, before), _)| now != before)
            .map(|((now, before), register)| Counter { register, step: now.wrapping_sub(*before), width: 64 })
            .collect();
        let counters = Self(counters);
        (!counters.0.is_empty() && counters.after(last, 1) == *here).then_some(counters)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Registers after `rounds` more rounds.
    pub(super) fn after(&self, stand: &Stand, rounds: u64) -> Stand {
        let mut after = stand.clone();
        for counter in &self.0 {
            let place = &mut after.general_mut()[usize::from(counter.register)];
            *place = place.wrapping_add(counter.step.wrapping_mul(rounds))
                & crate::cpu::flags::mask(counter.width);
        }
        after
    }

    fn bits(&self) -> u16 {
        self.0.iter().fold(0, |bits, counter| bits | 1 << counter.register)
    }

    /// These counters with the widths that they have in a round of these instructions, from PAUSE to PAUSE; `None` if the loop does
    /// anything else with one of them.
    pub(super) fn only_counted(mut self, round: &[Effect]) -> Option<Self> {
        let bits = self.bits();
        let mut widths = [None; 16];
        // Flags that an addition to a counter has left.
        let mut flags = 0;
        for effect in round {
            if effect.flags_read & flags != 0 {
                return None;
            }
            match effect.counts.filter(|counts| bits & 1 << counts.register != 0) {
                Some(counts) => {
                    let others = bits & !(1 << counts.register);
                    let width = *widths[usize::from(counts.register)].get_or_insert(counts.width);
                    if effect.reads & others != 0 || width != counts.width {
                        return None;
                    }
                    flags |= effect.flags_changed;
                }
                None if (effect.reads | effect.writes) & bits != 0 => return None,
                None => flags &= !effect.flags_settled,
            }
        }
        for counter in &mut self.0 {
            counter.width = widths[usize::from(counter.register)]?;
        }
        (flags == 0).then_some(self)
    }
}
