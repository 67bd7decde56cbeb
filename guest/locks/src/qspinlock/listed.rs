//! The list of a CPU's locks, in which others look for deadlocks.
//!
//! It names a lock before it is taken and until after it is released, so that a look may find one that is neither held nor awaited.

use crate::memory::sync::{AtomicU32, AtomicUsize, MODELLED, Ordering::*, array, const_unless_loom, fence};

/// Locks that a CPU can list; it is not looked for deadlocks over more.
const LISTED: usize = if MODELLED { 3 } else { 31 };

/// The locks that a CPU holds, and at the end the one that it waits for. Written by that CPU only.
#[derive(Debug)]
pub(super) struct List {
    len: AtomicU32,
    /// Addresses; 0: released out of order.
    locks: [AtomicUsize; LISTED],
}

// Relaxed, where nothing else is said: a look from elsewhere may be wrong, see the documentation of the module.
impl List {
    const_unless_loom! {
        pub(super) const fn new() -> Self {
            Self { len: AtomicU32::new(0), locks: array![AtomicUsize::new(0); LISTED] }
        }
    }

    /// Lists `lock`, if there is room.
    #[inline(always)]
    pub(super) fn add(&self, lock: usize) {
        let len = self.len.load(Relaxed);
        if let Some(slot) = self.locks.get(len as usize) {
            self.len.store(len + 1, Relaxed);
            slot.store(lock, Relaxed);
        }
    }

    /// Strikes `lock`, the last one in most cases.
    #[inline(always)]
    pub(super) fn strike(&self, lock: usize) {
        let mut len = self.len.load(Relaxed);
        let Some(at) = (0..len).rev().find(|&at| self.at(at) == lock) else { return };
        self.locks[at as usize].store(0, Relaxed);
        // A list that seems longer than it is must not end with what was there before.
        fence(Release);
        while len > 0 && self.at(len - 1) == 0 {
            len -= 1;
        }
        self.len.store(len, Relaxed);
    }

    fn at(&self, at: u32) -> usize {
        self.locks[at as usize].load(Relaxed)
    }

    /// The locks that its CPU holds for sure, and the last one, which it may wait for.
    pub(super) fn split(&self) -> (impl Iterator<Item = usize>, usize) {
        let len = self.len.load(Acquire);
        let last = if len == 0 { 0 } else { self.at(len - 1) };
        ((0..len.saturating_sub(1)).map(|at| self.at(at)), last)
    }

    pub(super) fn holds(&self, lock: usize) -> bool {
        self.split().0.any(|held| held == lock)
    }

    pub(super) fn len(&self) -> usize {
        self.len.load(Relaxed) as usize
    }
}
