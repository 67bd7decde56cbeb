//! Which of a CPU's own nodes are in use.
//!
//! A lock that needs its node only while it waits nests like calls do: task, soft interrupt, interrupt, NMI.
//! A counter ([`Nesting`]) says which level this is.
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
pub struct Code(u32);

impl Code {
    pub const fn new(cpu: usize, level: usize) -> Self {
        Self(((cpu + 1) * LEVELS + level) as u32)
    }

    /// The node that a tail or a link names, if any.
    pub fn from_raw(raw: u32) -> Option<Self> {
        (raw != 0).then_some(Self(raw))
    }

    pub const fn raw(self) -> u32 {
        self.0
    }

    pub const fn cpu(self) -> usize {
        self.0 as usize / LEVELS - 1
    }

    pub const fn level(self) -> usize {
        self.0 as usize % LEVELS
    }
}

/// One CPU's nesting depth. Written by this CPU only.
#[derive(Debug)]
pub struct Nesting(AtomicU32);

impl Nesting {
    const_unless_loom! {
        /// A CPU that is in no slow path.
        pub const fn new() -> Self {
            Self(AtomicU32::new(0))
        }
    }

    /// Enters a slow path; returns how many this CPU was in before.
    pub fn enter(&self) -> usize {
        // Relaxed, and not one step: see the module documentation.
        let depth = self.0.load(Relaxed);
        self.0.store(depth + mutant!("t6-claim-nothing": 1 => 0), Relaxed);
        // T6: an interrupt from here on finds the node taken. Without the fence the compiler may initialise
        // the node first, and the interrupt would then use it in between.
        compiler_fence(SeqCst);
        depth as usize
    }

    /// Leaves a slow path.
    pub fn leave(&self) {
        // The last access to the node comes before the count says that it is free.
        compiler_fence(SeqCst);
        // Relaxed: as in `enter`.
        self.0.store(self.0.load(Relaxed) - mutant!("t6-claim-nothing": 1 => 0), Relaxed);
    }
}
