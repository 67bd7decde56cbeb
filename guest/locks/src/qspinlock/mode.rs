//! Operations that differ between the kinds of this lock: how to wait, and how to release.

use super::{domain::Memory, word::Word};
use crate::memory::sync::AtomicU32;

/// How a queue spinlock waits and releases.
pub trait Mode: sealed::Sealed + 'static {
    /// Acquires a lock whose word was `seen` when it was not free.
    fn lock_slow<W: Word, D: Memory>(word: &AtomicU32, domain: &D, seen: u32);

    /// Before an attempt: whether this is the time for one.
    #[inline(always)]
    fn before_lock<D: Memory>(domain: &D) {
        _ = domain;
    }

    /// Releases a held lock.
    fn unlock<W: Word, D: Memory>(word: &AtomicU32, domain: &D);
}

pub(super) mod sealed {
    /// Keeps [`Mode`](super::Mode) to the protocols that have been checked.
    pub trait Sealed {}
}
