//! Stores that wait in a buffer: when they ask for their lines. [`Ownership::Overlap`] asks for all of them at once.

use crate::lines::Need;
use crate::machine::{MOST_LATE_PS, Ownership, Stores};

use super::buffer::Store;
use super::fabric::Fabric;
use super::{Board, FOR_A_STORE, Memory};

impl<M: Memory> Board<M> {
    /// Whether the stores of a buffer ask for their lines at once.
    pub(super) fn overlaps(&self) -> bool {
        self.fabric.machine.model.ownership == Ownership::Overlap
    }

    /// Asks for the lines of all stores in the slot's buffer that are neither here nor on their way.
    pub(super) fn ask_for_all(&mut self, slot: u32) {
        self.store_to_owned(slot);
        let waiting: Vec<_> = self.fabric.buffers[slot as usize].iter().copied().collect();
        for store in waiting {
            let asked = &mut self.slots[slot as usize].asked;
            if !asked.contains(&store.line()) && !self.fabric.owns(slot, store.line()) {
                asked.push(store.line());
                self.request(slot, store.at_ps.max(self.now_ps), store.line(), Need::Write, FOR_A_STORE);
            }
        }
    }

    /// The first stores of a buffer become visible, as long as the core owns their lines.
    pub(super) fn store_to_owned(&mut self, slot: u32) {
        while let Some(&first) = self.fabric.buffers[slot as usize].first()
            && self.fabric.owns(slot, first.line())
        {
            self.fabric.lines.hit(slot, first.line(), Need::Write);
            self.commit_first(slot);
        }
        self.tell_watchers(slot);
        self.go_on_if_stored(slot, self.now_ps);
    }
}

impl<M: Memory> Fabric<M> {
    /// Whether a plain store to the line becomes visible at once.
    pub(super) fn owns(&self, cpu: u32, line: u64) -> bool {
        let own = self.machine.model.ownership == Ownership::Serial || self.lines.is_as_read(cpu, line);
        own && self.lines.has(cpu, line, Need::Write)
    }

    /// Whether stores to the line wait in the buffer even if it is here.
    pub(super) fn is_late(&self, line: u64) -> bool {
        self.machine.model.stores == Stores::Late && !self.lines.is_private(line)
    }

    /// How long the first store of a buffer waits before its line is asked for.
    pub(super) fn late_ps(&self, cpu: u32, store: &Store) -> u64 {
        if !self.is_late(store.line()) {
            return 0;
        }
        self.lines.draw([u64::from(cpu), store.at_ps, store.physical]) % (MOST_LATE_PS + 1)
    }
}
