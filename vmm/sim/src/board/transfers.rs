//! Lines on their way to CPUs, and the stores that wait for them in buffers on their way to memory, where others see them.
//!
//! All stores of a buffer ask for their lines at once. Of [late](Stores::Late) ones, the first asks alone.
//!
//! *Accesses that cross into another line.* A CPU that waits for one line while others come for the other would never have both. So
//! the second one is its own as soon as the first has come, as if it had locked the bus: an instruction that has waited is carried
//! out.

use std::sync::atomic::AtomicBool;

use crate::lines::Need;
use crate::machine::Stores;

use super::fabric::{Fabric, Store};
use super::{Board, Due, Happening, Memory, SlotState};

impl<M: Memory> Board<M> {
    /// Asks for a line, for a store of the slot's buffer or else for an instruction.
    pub(super) fn request(&mut self, slot: u32, now_ps: u64, (line, need): (u64, Need), for_store: bool) {
        if let Some(completes_ps) = self.fabric.lines.request(now_ps, (slot, line, need), for_store) {
            self.enter(completes_ps, Due::Line(line));
        }
    }

    /// The transfer of a line has come to its end.
    pub(super) fn line_comes(
        &mut self,
        line: u64,
        at_ps: u64,
        until_ps: u64,
        stop: &AtomicBool,
    ) -> Option<Happening> {
        let (served, next) = self.fabric.lines.complete(at_ps, line);
        if let Some(completes_ps) = next {
            self.enter(completes_ps, Due::Line(line));
        }
        if served.need == Need::Write {
            for watcher in self.fabric.lines.take_watchers(line, served.cpu) {
                self.wake(watcher, line, self.now_ps);
            }
        }
        if served.for_store {
            self.store_done(served.cpu, line, at_ps);
            return None;
        }
        let place = &mut self.slots[served.cpu as usize];
        place.at_ps = place.at_ps.max(at_ps);
        let other = place.other.take();
        // It has come for an instruction that needs another one in the same way. A reader sees the memory as it is, wherever that is.
        if let Some(other) = other
            && served.need == Need::Write
            && self.fabric.lines.exists(other)
        {
            for watcher in self.fabric.lines.seize(self.now_ps, served.cpu, other) {
                self.wake(watcher, other, self.now_ps);
            }
        }
        self.execute(served.cpu, [Some(line), other], until_ps, stop)
    }

    /// Wakes the CPUs that are parked on lines which `writer` has just written. Returns whether there were any.
    pub(super) fn tell_watchers(&mut self, writer: u32) -> bool {
        if self.fabric.written.is_empty() {
            return false;
        }
        let mut told = false;
        for (line, at_ps) in std::mem::take(&mut self.fabric.written) {
            for watcher in self.fabric.lines.take_watchers(line, writer) {
                self.wake(watcher, line, at_ps);
                told = true;
            }
        }
        told
    }

    /// All stores that the CPU of the slot has executed are visible now, as they are when a processor leaves its guest. What
    /// that takes is a part of what the exit costs.
    pub fn drain(&mut self, slot: u32) {
        let at_ps = self.now_ps.max(self.slots[slot as usize].at_ps);
        while let Some(store) = self.fabric.buffers[slot as usize].pop_front() {
            // First those that are parked, whose last rounds saw what was there before.
            for watcher in self.fabric.lines.seize(at_ps, slot, store.line()) {
                self.wake(watcher, store.line(), at_ps);
            }
            self.fabric.memory.store(store.physical, store.bytes, store.value);
        }
    }

    /// Sees to it that stores of a slot's buffer are on their way.
    pub(super) fn start_store(&mut self, slot: u32) {
        if self.fabric.machine.model.stores == Stores::Prompt {
            return self.ask_for_all(slot);
        }
        let place = &mut self.slots[slot as usize];
        if place.storing {
            return;
        }
        let Some(&first) = self.fabric.buffers[slot as usize].front() else { return };
        place.storing = true;
        let at_ps = first.at_ps.max(self.now_ps);
        match self.fabric.late_ps(slot, &first) {
            0 => self.request(slot, at_ps, (first.line(), Need::Write), true),
            late_ps => self.enter(at_ps + late_ps, Due::Store(slot)),
        }
    }

    /// A late store has waited for long enough, unless the buffer has been drained meanwhile.
    pub(super) fn send_store(&mut self, slot: u32, at_ps: u64) {
        match self.fabric.buffers[slot as usize].front().map(Store::line) {
            Some(line) => self.request(slot, at_ps, (line, Need::Write), true),
            None => self.slots[slot as usize].storing = false,
        }
    }

    /// A line has come for a store of a slot's buffer. If that store is the first, it becomes visible, and with it those to the same
    /// line that follow it at once.
    pub(super) fn store_done(&mut self, slot: u32, line: u64, at_ps: u64) {
        let place = &mut self.slots[slot as usize];
        place.storing = false;
        place.asked.retain(|other| *other != line);
        while self.fabric.buffers[slot as usize].front().is_some_and(|store| store.line() == line) {
            self.commit_first(slot);
        }
        self.fabric.written.push((line, at_ps));
        self.tell_watchers(slot);
        self.go_on_if_stored(slot, at_ps);
        self.start_store(slot);
    }

    /// Makes the first store of a buffer visible. CPUs that watch its line have to be told.
    pub(super) fn commit_first(&mut self, slot: u32) {
        let now_ps = self.now_ps;
        let Fabric { buffers, memory, lines, written, .. } = &mut self.fabric;
        if let Some(store) = buffers[slot as usize].pop_front() {
            memory.store(store.physical, store.bytes, store.value);
            if lines.is_watched(slot, store.line()) {
                written.push((store.line(), store.at_ps.max(now_ps)));
            }
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

    /// The first stores of the slot's buffer become visible, as long as the core owns their lines. Asks for the lines of all others
    /// that are neither here nor on their way.
    fn ask_for_all(&mut self, slot: u32) {
        while let Some(&first) = self.fabric.buffers[slot as usize].front()
            && self.fabric.owns(self.now_ps, slot, first.line())
        {
            self.fabric.lines.hit(self.now_ps, slot, first.line(), Need::Write);
            self.commit_first(slot);
        }
        self.tell_watchers(slot);
        self.go_on_if_stored(slot, self.now_ps);
        let waiting: Vec<_> = self.fabric.buffers[slot as usize].iter().copied().collect();
        for store in waiting {
            let asked = &mut self.slots[slot as usize].asked;
            if !asked.contains(&store.line()) && !self.fabric.owns(self.now_ps, slot, store.line()) {
                asked.push(store.line());
                self.request(slot, store.at_ps.max(self.now_ps), (store.line(), Need::Write), true);
            }
        }
    }
}
