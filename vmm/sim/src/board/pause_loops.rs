//! Exits of pause loops: a CPU that executes PAUSE for longer than its driver allows leaves the guest.
//!
//! A CPU that is parked executes no PAUSE. Its rounds are alike, so the PAUSE that exits is known when it is parked, and is due.

use super::slot_state::SlotState;
use super::{Board, Happening, Memory, What};
use crate::machine::PauseLimits;

impl<M: Memory> Board<M> {
    /// Limits pause loops in the slot, from the next [`Self::put`] or [`Self::resume`] on.
    pub fn limit_pauses(&mut self, slot: u32, limits: Option<PauseLimits>) {
        self.fabric.filters[slot as usize].limit(limits);
    }

    /// Whether the CPU of the slot is parked, and comes at `at_ps` to a PAUSE that leaves the guest.
    pub(super) fn exits_at(&self, slot: u32, at_ps: u64) -> bool {
        self.slots[slot as usize].parked.as_ref().is_some_and(|parked| parked.exits_ps == Some(at_ps))
    }

    /// The CPU of the slot stands behind a PAUSE that has left the guest.
    pub(super) fn pause_loop(&mut self, slot: u32) -> Option<Happening> {
        let place = &mut self.slots[slot as usize];
        (place.state, place.token) = (SlotState::Still, place.token + 1);
        Some(Happening { cpu: slot, at_ps: place.at_ps, what: What::PauseLoop })
    }
}
