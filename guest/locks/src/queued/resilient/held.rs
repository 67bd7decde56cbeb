//! Table of the locks that a CPU holds or asks for, in the order in which it asked.

use crate::{
    faults::mutant::mutant,
    memory::sync::{AtomicUsize, MODELLED, Ordering::*, array, compiler_fence, const_unless_loom},
};

/// Locks that a table has room for; deeper ones are not watched.
const MOST: usize = if MODELLED { 2 } else { 31 };

/// One CPU's table. Written by this CPU only; interrupts leave it as they found it.
#[derive(Debug)]
#[cfg_attr(not(any(loom, shuttle)), repr(C, align(64)))]
pub(super) struct Held {
    /// Locks held or asked for. Entries from here on are 0.
    count: AtomicUsize,
    /// Addresses of lock words; 0: the entry is not made yet, or no longer.
    entries: [AtomicUsize; MOST],
}

#[cfg(not(any(loom, shuttle, liveness)))]
const _: () = assert!(usize::BITS < 64 || size_of::<Held>() == 256);

impl Held {
    const_unless_loom! {
        pub(super) const fn new() -> Self {
            Self { count: AtomicUsize::new(0), entries: array![AtomicUsize::new(0); MOST] }
        }
    }

    /// Entries in use, as this CPU sees it.
    pub(super) fn len(&self) -> usize {
        // Relaxed: own data.
        self.count.load(Relaxed)
    }

    /// Release: pairs with the scan in `wait_in_a_circle`. A scan that sees this count sees the entries as they were then, or newer: not an
    /// old lock under a new count (RQ10).
    #[inline(always)]
    fn set_len(&self, count: usize) {
        self.count.store(count, mutant!("rq-relaxed-count": Release => Relaxed));
    }

    /// E: adds a lock, before it is asked for.
    #[inline(always)]
    pub(super) fn enter(&self, lock: usize) {
        let count = self.len();
        self.set_len(count + 1);
        // An interrupt from here on uses the next entry.
        compiler_fence(SeqCst);
        if let Some(entry) = self.entries.get(count) {
            // Relaxed: a scan that misses it finds it next time.
            entry.store(lock, Relaxed);
        }
        // An interrupt from here on, and so before the lock is taken, finds the entry (RQ2).
        compiler_fence(SeqCst);
    }

    /// X, U: removes the last lock, after its release.
    #[inline(always)]
    pub(super) fn leave(&self) {
        // An interrupt up to here finds the entry, though the lock may be free (RQ2).
        compiler_fence(SeqCst);
        let count = self.len() - 1;
        if let Some(entry) = self.entries.get(count) {
            // Relaxed: ordered by the count.
            entry.store(0, Relaxed);
        }
        compiler_fence(SeqCst);
        self.set_len(count + mutant!("rq-keep-entry": 0 => 1));
    }

    /// AA: whether this CPU had the lock before the last one in its table.
    pub(super) fn held_before_the_last(&self, lock: usize) -> bool {
        self.is_below(lock, self.len())
    }

    /// The lock that another CPU's table ends with, if it holds `lock` below; `None` says nothing.
    pub(super) fn asked_while_holding(&self, lock: usize) -> Option<usize> {
        // Acquire: pairs with `set_len`.
        let count = self.count.load(Acquire);
        if !(2..=MOST).contains(&count) {
            return None;
        }
        // Relaxed, here and in `is_below`: the count orders what is older.
        let last = self.entries[count - 1].load(Relaxed);
        (last != 0 && self.is_below(lock, count)).then_some(last)
    }

    fn is_below(&self, lock: usize, count: usize) -> bool {
        let below = &self.entries[..count.saturating_sub(1).min(MOST)];
        below.iter().any(|entry| entry.load(Relaxed) == lock)
    }
}
