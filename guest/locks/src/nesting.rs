//! How deeply a CPU is nested in slow paths: task, soft interrupt, interrupt, NMI.
//!
//! Each level has a queue node, or a slot, of its own. Interrupts nest like calls, so a counter says which ones
//! are in use.

use crate::{
    mutant::mutant,
    sync::{AtomicU32, Ordering::*, compiler_fence, const_unless_loom},
};

/// How deeply one CPU can be nested in slow paths and still queue.
pub const LEVELS: usize = 4;

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
        // Relaxed, and not one step: only this CPU writes it, and an interrupt in between leaves it as it found it.
        let depth = self.0.load(Relaxed);
        self.0.store(depth + mutant!("t6-claim-nothing": 1 => 0), Relaxed);
        // T6: an interrupt from here on finds the node taken. Without the fence the compiler may initialise the node
        // first, and the interrupt would then use it in between.
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
