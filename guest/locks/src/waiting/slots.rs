//! Nodes of a CPU that a lock keeps until unlock, and so may be released in any order: a mask ([`Slots`]) says which are free.
//!
//! Claiming and giving back need no read-modify-write, as for nodes of a level (`waiting::nesting`).

use crate::memory::sync::{AtomicU32, Ordering::*, compiler_fence, const_unless_loom};

/// Names one of a CPU's [`SLOTS`] nodes: CPU * [`SLOTS`] + slot + 1. The same number stands in a tail and in a link, where 0 is
/// no node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotCode(pub(crate) u32);

impl SlotCode {
    pub(crate) const fn new(cpu: usize, slot: usize) -> Self {
        Self((cpu * SLOTS + slot + 1) as u32)
    }

    pub(crate) const fn cpu(self) -> usize {
        (self.0 as usize - 1) / SLOTS
    }

    pub(crate) const fn slot(self) -> usize {
        (self.0 as usize - 1) % SLOTS
    }
}

/// Nodes of a CPU that are not tied to a level: four interrupt levels, two locks each.
pub(crate) const SLOTS: usize = 8;

/// Which of one CPU's [`SLOTS`] are in use. Written by this CPU only.
#[derive(Debug)]
pub(crate) struct Slots(AtomicU32);

impl Slots {
    const_unless_loom! {
        pub(crate) const fn new() -> Self {
            Self(AtomicU32::new(0))
        }
    }

    /// Claims a free slot of CPU `cpu`, the calling one.
    pub(crate) fn claim(&self, cpu: usize) -> usize {
        // Relaxed, and not one step: see the module documentation.
        let in_use = self.0.load(Relaxed);
        let slot = (0..SLOTS).find(|slot| in_use & 1 << slot == 0);
        let slot = slot.unwrap_or_else(|| {
            panic!("CPU {cpu} holds or waits for more than {SLOTS} queue locks of one kind")
        });
        self.0.store(in_use | 1 << slot, Relaxed);
        // T6: as where a level is entered.
        compiler_fence(SeqCst);
        slot
    }

    /// Gives back a slot whose node no other CPU looks at.
    pub(crate) fn give_back(&self, slot: usize) {
        compiler_fence(SeqCst);
        // Relaxed: as in `claim`.
        self.0.store(self.0.load(Relaxed) & !(1 << slot), Relaxed);
    }
}
