//! Accesses that cross into another line.
//!
//! A CPU that waits for one line while others come for the other would never have both. So the second one is its own as soon
//! as the first has come, as if it had locked the bus: an instruction that has waited is carried out.

use crate::cpu::bus::{Access, Bus as _, Moment};
use crate::lines::{LINE_BYTES, Need};

use super::fabric::Fabric;
use super::{Board, Memory};

impl<M: Memory> Fabric<M> {
    /// The instruction at hand is about to access both lines, of these physical addresses.
    #[cold]
    pub(super) fn note_crossing(&mut self, now: Moment, lines: [u64; 2], access: Access) {
        self.running.crossed = Some((now.instructions, lines.map(|line| line / LINE_BYTES)));
        if access == Access::Atomic && !self.running.dry {
            // No cache can hold both parts: they go to memory.
            self.charge(now, self.machine.costs.line.memory_ps);
        }
    }

    /// The other line of the access at hand to `line`, if it has one.
    pub(super) fn other_line(&self, now: Moment, line: u64) -> Option<u64> {
        let (_, lines) =
            self.running.crossed.filter(|(instructions, _)| *instructions == now.instructions)?;
        lines.contains(&line).then(|| if lines[0] == line { lines[1] } else { lines[0] })
    }

    /// A part in each, so that each becomes visible with its own line.
    #[cold]
    pub(super) fn store_to_two_lines(&mut self, physical: u64, bytes: usize, value: u64) {
        let first = (LINE_BYTES - physical % LINE_BYTES) as usize;
        self.store(physical, first, value);
        self.store(physical + first as u64, bytes - first, value >> (8 * first));
    }
}

impl<M: Memory> Board<M> {
    /// A line has come, for an instruction that needs another one in the same way.
    #[cold]
    pub(super) fn seize_other(&mut self, slot: u32, other: u64, need: Need) {
        // A reader sees the memory as it is, wherever the line is.
        if need == Need::Read || !self.fabric.lines.exists(other) {
            return;
        }
        for watcher in self.fabric.lines.seize(slot, other) {
            self.wake(watcher, other);
        }
    }
}
