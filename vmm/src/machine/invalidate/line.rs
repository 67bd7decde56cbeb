//! One vCPU's word between doorbells and the thread that runs the vCPU; `tests/models.rs` checks it.

use super::sync::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

/// A line of its own (two, since CPUs fetch pairs): other vCPUs' runners write to theirs at every entry.
#[repr(align(128))]
pub(super) struct Line {
    pending: AtomicBool,
    inside: AtomicBool,
    /// The thread that runs the vCPU, or did last; 0: none did.
    thread: AtomicU64,
}

/// Place of the vCPU when a doorbell rang.
pub(super) enum Rung {
    /// Inside, and `pending` from an earlier doorbell, which has kicked it, or before the way in, which is about to look.
    Waits,
    /// Inside: this thread runs it and must be kicked.
    Inside(u64),
    /// Outside: it looks on its way in.
    Outside,
}

impl Line {
    pub(super) fn new() -> Self {
        Self { pending: AtomicBool::new(false), inside: AtomicBool::new(false), thread: AtomicU64::new(0) }
    }

    /// `thread` is about to run the vCPU.
    pub(super) fn runs_on(&self, thread: u64) {
        // Relaxed: `inside` is set after it. Partner: `ring` loads this after it has seen `inside`, and so finds this thread
        // or one that has run the vCPU since, whose way in acknowledges.
        self.thread.store(thread, Relaxed);
    }

    /// Before KVM_RUN: whether the vCPU must drop its translations first.
    pub(super) fn enter(&self) -> bool {
        self.inside.store(true, SeqCst);
        self.take_pending()
    }

    /// After KVM_RUN: whether a doorbell waits. It stays pending for the next way in.
    pub(super) fn leave(&self) -> bool {
        self.inside.store(false, SeqCst);
        self.pending.load(SeqCst)
    }

    pub(super) fn take_pending(&self) -> bool {
        self.pending.swap(false, SeqCst)
    }

    pub(super) fn ring(&self) -> Rung {
        let was_pending = self.pending.swap(true, SeqCst);
        match self.inside.load(SeqCst) {
            true if was_pending => Rung::Waits,
            // Relaxed: ordered by `inside`. Partner: `runs_on`.
            true => Rung::Inside(self.thread.load(Relaxed)),
            false => Rung::Outside,
        }
    }
}
