//! The hash table from a lock to the sleeping head of its queue.
//!
//! Unlock knows the lock, not the queue: nothing points to the head. So a head that goes to sleep stores
//! (lock, node) here and writes SLOW into the lock word, and the unlock that finds SLOW takes the entry out
//! again.
//!
//! Invariant: one entry for each lock whose word is SLOW, or about to be, and none for any other lock. It
//! holds because a queue has one head, and because the head and the owner that registers a head on its behalf
//! agree through the node's state which of them does it (T2).
//!
//! A search starts at the first of the four entries of the line that the lock's address hashes to, and goes
//! on from there to the end of the table and around. There is always a free entry (see
//! [`QSpinDomain::new`](super::QSpinDomain::new)), and an unlock finds what it looks for, so neither failure
//! can happen in a sound kernel: the domain panics at both, with a census of the table.

use core::{fmt, ptr};

use super::node::Node;
use crate::{
    memory::sync::{AtomicU32, AtomicUsize, Ordering::*, array, const_unless_loom},
    waiting::nesting::Code,
};

/// Entries in a line.
pub(super) const WIDTH: usize = 4;

/// A cache line of the table.
#[derive(Debug)]
#[repr(align(64))]
pub struct Line([Entry; WIDTH]);

/// Laid out for those who look at it from outside: see [`Queues`](crate::Queues).
#[derive(Debug)]
#[repr(C)]
struct Entry {
    /// Address of the lock word; 0: the entry is free.
    lock: AtomicUsize,
    /// Code of the head. Belongs to the CPU that took the entry or may remove it.
    node: AtomicU32,
}

#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<Line>() == 64);

impl Line {
    const_unless_loom! {
        pub(super) const fn new() -> Self {
            Self(array![Entry { lock: AtomicUsize::new(0), node: AtomicU32::new(0) }; WIDTH])
        }
    }
}

/// A table of any size.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a>(&'a [Line]);

impl<'a> Table<'a> {
    /// A table in these lines.
    pub fn new(lines: &'a [Line]) -> Self {
        Self(lines)
    }

    /// Entries in use. Relaxed: a snapshot of what other CPUs go on changing.
    pub(super) fn len(self) -> usize {
        self.0.iter().flat_map(|line| &line.0).filter(|entry| entry.lock.load(Relaxed) != 0).count()
    }

    /// All entries, in the order in which a search for `lock` visits them.
    fn search(self, lock: usize) -> impl Iterator<Item = &'a Entry> {
        // Multiplication by 2^64 / phi spreads addresses that differ in few bits over the upper half.
        let hash = (lock as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let (before, after) = self.0.split_at(hash as usize % self.0.len());
        after.iter().chain(before).flat_map(|line| &line.0)
    }

    /// Registers `code` as the head of the queue at `word`. At how many entries it has looked; `None`: all are in use.
    pub(super) fn insert(self, word: &AtomicU32, code: Code) -> Option<u64> {
        let lock = ptr::from_ref(word).addr();
        for (hops, entry) in (1..).zip(self.search(lock)) {
            // Acquire: pairs with the release in `remove`, so that the store to `node` below comes after the
            // load of `node` there.
            if entry.lock.compare_exchange(0, lock, Acquire, Relaxed).is_ok() {
                // Relaxed: the unlock that looks for it has first seen SLOW, which is published after this.
                entry.node.store(code.raw(), Relaxed);
                return Some(hops);
            }
        }
        None
    }

    /// Takes out the head of the queue at `word`, if it stands here.
    pub(super) fn remove(self, word: &AtomicU32) -> Option<Code> {
        let lock = ptr::from_ref(word).addr();
        for entry in self.search(lock) {
            // Relaxed: the caller has acquired from the CPU that made the entry, or made it itself.
            if entry.lock.load(Relaxed) == lock {
                // Relaxed: as above.
                let code = entry.node.load(Relaxed);
                // Release: pairs with the acquire in `insert`.
                entry.lock.store(0, Release);
                return Some(Code::from_raw(code).expect("an entry names a node"));
            }
        }
        None
    }

    /// Lists the CPU that sleeps at the head of each queue.
    pub(super) fn census<N: Fn(Code) -> &'a Node>(self, node: N) -> impl fmt::Display {
        Census { table: self, node }
    }
}

/// List of the CPUs that sleep at the head of each queue, for the message of a panic.
struct Census<'a, N> {
    table: Table<'a>,
    node: N,
}

impl<'a, N: Fn(Code) -> &'a Node> fmt::Display for Census<'a, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.table.0.iter().flat_map(|line| &line.0);
        let mut used = 0;
        // Relaxed, here and below: a snapshot of what other CPUs go on changing.
        for (slot, entry) in entries.clone().enumerate().filter(|(_, entry)| entry.lock.load(Relaxed) != 0) {
            used += 1;
            let lock = entry.lock.load(Relaxed);
            let Some(code) = Code::from_raw(entry.node.load(Relaxed)) else {
                writeln!(f, "entry {slot}: lock {lock:#x}, being made")?;
                continue;
            };
            let node = (self.node)(code);
            writeln!(
                f,
                "entry {slot}: lock {lock:#x}, CPU {}, level {}, state {}, head {}",
                code.cpu(),
                code.level(),
                node.state.load(Relaxed),
                node.locked.load(Relaxed),
            )?;
        }
        write!(f, "{used} of {} entries in use", entries.count())
    }
}
