//! Stores on their way from a CPU's buffer to memory, where others see them.

use crate::lines::Need;

use super::buffer::Store;
use super::fabric::Fabric;
use super::slot_state::SlotState;
use super::{Board, Due, FOR_A_STORE, Memory};

impl<M: Memory> Board<M> {
    /// All stores that the CPU of the slot has executed are visible now, as they are when a processor leaves its guest. What
    /// that takes is a part of what the exit costs.
    pub fn drain(&mut self, slot: u32) {
        let at_ps = self.now_ps.max(self.slots[slot as usize].at_ps);
        while let Some(store) = self.fabric.buffers[slot as usize].pop() {
            // First those that are parked, whose last rounds saw what was there before.
            for watcher in self.fabric.lines.seize(slot, store.line()) {
                self.wake_at(watcher, store.line(), at_ps);
            }
            self.fabric.memory.store(store.physical, store.bytes, store.value);
        }
    }

    /// Sees to it that the first store of a slot's buffer, if there is one, is on its way.
    pub(super) fn start_store(&mut self, slot: u32) {
        if self.overlaps() {
            return self.ask_for_all(slot);
        }
        let place = &mut self.slots[slot as usize];
        if place.storing {
            return;
        }
        let Some(&first) = self.fabric.buffers[slot as usize].first() else { return };
        place.storing = true;
        let at_ps = first.at_ps.max(self.now_ps);
        match self.fabric.late_ps(slot, &first) {
            0 => self.request(slot, at_ps, first.line(), Need::Write, FOR_A_STORE),
            late_ps => self.enter(at_ps + late_ps, Due::Store(slot)),
        }
    }

    /// A late store has waited for long enough, unless the buffer has been drained meanwhile.
    pub(super) fn send_store(&mut self, slot: u32, at_ps: u64) {
        match self.fabric.buffers[slot as usize].first().map(Store::line) {
            Some(line) => self.request(slot, at_ps, line, Need::Write, FOR_A_STORE),
            None => self.slots[slot as usize].storing = false,
        }
    }

    /// The line of the first store of a slot's buffer has come: it becomes visible, and with it those to the same line that
    /// follow it at once.
    pub(super) fn store_done(&mut self, slot: u32, line: u64, at_ps: u64) {
        let place = &mut self.slots[slot as usize];
        place.storing = false;
        place.asked.retain(|other| *other != line);
        while self.fabric.buffers[slot as usize].first().is_some_and(|store| store.line() == line) {
            self.commit_first(slot);
        }
        self.fabric.written.push((line, at_ps));
        self.tell_watchers(slot);
        self.go_on_if_stored(slot, at_ps);
        self.start_store(slot);
    }

    /// The first store of a buffer becomes visible. Those who watch its line have to be told.
    pub(super) fn commit_first(&mut self, slot: u32) {
        let now_ps = self.now_ps;
        let Fabric { buffers, memory, written, .. } = &mut self.fabric;
        if let Some(store) = buffers[slot as usize].pop() {
            memory.store(store.physical, store.bytes, store.value);
            written.push((store.line(), store.at_ps.max(now_ps)));
        }
    }

    /// The CPU of a slot goes on at `at_ps`, if it has waited for stores that are visible now.
    pub(super) fn go_on_if_stored(&mut self, slot: u32, at_ps: u64) {
        let buffer = &self.fabric.buffers[slot as usize];
        let (is_empty, has_room) = (buffer.is_empty(), buffer.len() < self.fabric.machine.costs.store_buffer);
        let place = &mut self.slots[slot as usize];
        if place.state == SlotState::Full && has_room || place.state == SlotState::Drain && is_empty {
            place.at_ps = place.at_ps.max(at_ps);
            self.schedule(slot, self.slots[slot as usize].at_ps);
        }
    }
}
