//! Lines of stores that wait: [`Ownership::Overlap`] asks for all of them at once.

use crate::lines::Need;
use crate::machine::Ownership;

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
