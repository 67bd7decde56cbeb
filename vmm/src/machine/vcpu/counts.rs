//! How often a vCPU came back, by kind of exit: counted by whoever runs it, looked at by anyone.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::machine::exits::Exit;

/// The counts of one vCPU, on lines of their own: whoever looks at them takes those lines from nobody else.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct ExitCounts([AtomicU64; Exit::KINDS]);

impl ExitCounts {
    /// The vCPU came back. The caller has the vCPU, which one thread at a time has.
    pub(super) fn count(&self, exit: Exit) {
        let count = &self.0[exit.kind()];
        // Relaxed, and two steps: nobody else writes, and what hands the vCPU on to another thread orders these as well.
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
