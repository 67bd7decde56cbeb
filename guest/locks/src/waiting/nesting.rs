//! Which of a CPU's own nodes are in use.
//!
//! A lock that needs its node only while it waits nests like calls do: task, soft interrupt, interrupt, NMI.
//! A counter ([`Nesting`]) says which level this is. A lock that keeps its node until unlock may be released
//! in any order: a mask ([`Slots`]) says which nodes are free.
//!
//! Claiming and giving back need no read-modify-write. Only the CPU itself changes them, and an interrupt leaves them
//! as it found them.

use crate::{
    faults::mutant::mutant,
    memory::sync::{AtomicU32, Ordering::*, compiler_fence, const_unless_loom},
};

/// How deeply one CPU can be nested in slow paths and still queue.
pub const LEVELS: usize = 4;

/// Names the node of a nesting level: (CPU + 1) * [`LEVELS`] + level. The same number stands in a tail and in a link,
/// where 0 is no node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(u32);

impl Code {
    pub(crate) const fn new(cpu: usize, level: usize) -> Self {
        Self(((cpu + 1) * LEVELS + level) as u32)
    }

    /// The node that a tail or a link names, if any.
    pub(crate) fn from_raw(raw: u32) -> Option<Self> {
        (raw != 0).then_some(Self(raw))
    }

    pub(crate) const fn raw(self) -> u32 {
        self.0
    }

    pub(crate) const fn cpu(self) -> usize {
        self.0 as usize / LEVELS - 1
    }

    pub(crate) const fn level(self) -> usize {
        self.0 as usize % LEVELS
    }
}

/// Names one of a CPU's [`SLOTS`] nodes: CPU * [`SLOTS`] + slot + 1. The same number stands in a tail and in a link, where 0 is
/// no node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotCode(pub(crate) u32);

impl SlotCode {
    pub(crate) const fn new(cpu: usize, slot: usize) -> Self {
        Self((cpu * SLOTS + slot + 1) as u32)
    }

    /// The node that a tail or a link names, if any.
    pub(crate) fn from_raw(raw: u32) -> Option<Self> {
        (raw != 0).then_some(Self(raw))
    }

    pub(crate) const fn cpu(self) -> usize {
        (self.0 as usize - 1) / SLOTS
    }

    pub(crate) const fn slot(self) -> usize {
        (self.0 as usize - 1) % SLOTS
    }
}

/// One CPU's nesting depth. Written by this CPU only.
#[derive(Debug)]
pub(crate) struct Nesting(AtomicU32);

impl Nesting {
    const_unless_loom! {
        pub(crate) const fn new() -> Self {
            Self(AtomicU32::new(0))
        }
    }

    /// Enters a slow path; returns how many this CPU was in before.
    pub(crate) fn enter(&self) -> usize {
        // Relaxed, and not one step: see the module documentation.
        let depth = self.0.load(Relaxed);
        self.0.store(depth + mutant!("t6-claim-nothing": 1 => 0), Relaxed);
        // T6: an interrupt from here on finds the node taken. Without the fence the compiler may initialise
        // the node first, and the interrupt would then use it in between.
        compiler_fence(SeqCst);
        depth as usize
    }

    /// Leaves a slow path.
    pub(crate) fn leave(&self) {
        // The last access to the node comes before the count says that it is free.
        compiler_fence(SeqCst);
        // Relaxed: as in `enter`.
        self.0.store(self.0.load(Relaxed) - mutant!("t6-claim-nothing": 1 => 0), Relaxed);
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
        self.claim_where(cpu, |_| true).expect("any free slot will do")
    }

    /// Claims one of the levels that are `usable`; `None` if no free one is, just now.
    pub(crate) fn claim_where(&self, cpu: usize, usable: impl Fn(usize) -> bool) -> Option<usize> {
        // Relaxed, and not one step: see the module documentation.
        let in_use = self.0.load(Relaxed);
        let mut free = (0..SLOTS).filter(|slot| in_use & 1 << slot == 0).peekable();
        assert!(
            free.peek().is_some(),
            "CPU {cpu} holds or waits for more than {SLOTS} queue locks of one kind"
        );
        let slot = free.find(|slot| usable(*slot))?;
        self.0.store(in_use | 1 << slot, Relaxed);
        // T6: as in `Nesting::enter`.
        compiler_fence(SeqCst);
        Some(slot)
    }

    /// Gives back a slot whose node no other CPU looks at.
    pub(crate) fn give_back(&self, slot: usize) {
        compiler_fence(SeqCst);
        // Relaxed: as in `claim`.
        self.0.store(self.0.load(Relaxed) & !(1 << slot), Relaxed);
    }
}
