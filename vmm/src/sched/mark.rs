//! What the VMM has told by a vCPU's `preempted` flag.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::host::clock::Clock;

/// What the VMM has told by a vCPU's flag, for comparison with what others have read.
#[derive(Debug, Default)]
pub(crate) struct Mark {
    /// TSC since when it has told what it tells; `u64::MAX` while that changes.
    since_tsc: AtomicU64,
    set: AtomicBool,
}

impl Mark {
    /// Does `write`, which makes the flag say `set`. One thread at a time: the one that has the vCPU.
    pub(crate) fn change(&self, clock: &Clock, set: bool, write: impl FnOnce()) {
        // SeqCst: in this order, to every reader. Partner: `at`.
        self.since_tsc.store(u64::MAX, Ordering::SeqCst);
        write();
        self.set.store(set, Ordering::SeqCst);
        self.since_tsc.store(clock.tsc(), Ordering::SeqCst);
    }

    /// What the flag has said from `tsc` until now, if it was the same all the time.
    pub(crate) fn at(&self, tsc: u64) -> Option<bool> {
        // SeqCst: partner of `change`. If `since_tsc` is the same before and after, `set` belongs to it.
        let since_tsc = self.since_tsc.load(Ordering::SeqCst);
        let set = self.set.load(Ordering::SeqCst);
        (since_tsc < tsc && self.since_tsc.load(Ordering::SeqCst) == since_tsc).then_some(set)
    }
}
