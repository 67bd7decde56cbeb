//! Alarms: a CPU is stopped at a time, wherever it is.

use super::{Board, Due, Happening, Memory, Slot, SlotState, What};

impl<M: Memory> Board<M> {
    /// [`What::Alarm`] happens to the CPU of the slot at `at_ps`, or as soon as it can after that. The last call counts.
    pub fn set_alarm(&mut self, slot: u32, at_ps: u64) {
        let place = &mut self.slots[slot as usize];
        // A driver sets it again after each exit: there may be any number of them before it rings.
        if place.alarm_is_due && place.alarm_ps == at_ps {
            return;
        }
        place.forget_alarm();
        (place.alarm_ps, place.alarm_is_due) = (at_ps, true);
        let due = Due::Alarm { slot, token: place.alarm_token };
        self.enter(at_ps.max(self.now_ps), due);
    }

    /// [`Self::set_alarm`], unless it rings before that.
    pub fn set_alarm_by(&mut self, slot: u32, at_ps: u64) {
        let place = &self.slots[slot as usize];
        let is_soon = place.alarm_rang || place.alarm_is_due && place.alarm_ps <= at_ps;
        if !is_soon {
            self.set_alarm(slot, at_ps);
        }
    }

    pub(super) fn alarm(&mut self, slot: u32, at_ps: u64) -> Option<Happening> {
        let place = &mut self.slots[slot as usize];
        place.alarm_is_due = false;
        match place.state {
            // It rings as soon as the CPU comes to an end of what it waits for.
            SlotState::Still | SlotState::Line | SlotState::Drain | SlotState::Full => {
                place.alarm_rang = place.cpu.is_some();
                return None;
            }
            SlotState::Parked => {
                self.unpark_before(slot, at_ps);
                self.slots[slot as usize].at_ps = at_ps;
            }
            SlotState::Due => {}
        }
        let place = &mut self.slots[slot as usize];
        (place.state, place.token, place.alarm_ps) = (SlotState::Still, place.token + 1, u64::MAX);
        let at_ps = place.at_ps.max(at_ps);
        self.spend_here(slot, false, at_ps);
        Some(Happening { cpu: slot, at_ps, what: What::Alarm })
    }
}

impl Slot {
    /// Takes back what is due of its alarm.
    pub(super) fn forget_alarm(&mut self) {
        self.alarm_token += 1;
        (self.alarm_rang, self.alarm_is_due) = (false, false);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::machine::presets;

    #[test]
    fn the_last_call_for_an_alarm_counts_unless_one_rings_before() {
        let machine = Arc::new(presets()[0].machine());
        let mut board = Board::new(machine, vec![0_u8; 1 << 12], &[]);
        (0..10_000).for_each(|_| board.set_alarm(0, 1_000_000));
        assert_eq!(board.due.len(), 1);
        board.set_alarm(0, 2_000_000);
        board.set_alarm(0, 1_000_000);
        assert_eq!(board.due.len(), 3, "only calls for another time take memory");
        board.set_alarm_by(0, 2_000_000);
        assert_eq!(board.slots[0].alarm_ps, 1_000_000);
        board.set_alarm_by(0, 500_000);
        assert_eq!(board.slots[0].alarm_ps, 500_000);
    }
}
