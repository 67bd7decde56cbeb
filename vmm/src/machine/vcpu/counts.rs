//! Exits of a vCPU by kind: counted by its runner, readable by any thread.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::machine::exits::Exit;

/// The counts of one vCPU, on lines of their own: reading them disturbs no other data.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct ExitCounts([AtomicU64; Exit::KINDS]);

impl ExitCounts {
    /// The vCPU came back. The caller has the vCPU, which one thread at a time has.
    pub(super) fn count(&self, exit: Exit) {
        let count = &self.0[exit.kind()];
        // Relaxed, and two steps: there is no other writer, and the handoff of the vCPU to another thread orders these
        // as well.
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// How often it came back so, by [`Exit::kind`].
    pub(crate) fn of(&self, kind: usize) -> u64 {
        // Relaxed: a figure.
        self.0[kind].load(Ordering::Relaxed)
    }

    /// How often it came back.
    pub(crate) fn total(&self) -> u64 {
        (0..Exit::KINDS).map(|kind| self.of(kind)).sum()
    }
}
