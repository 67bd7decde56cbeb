//! The hash table from a lock to the sleeping head of its queue.
//!
//! Unlock knows the lock, not the queue: nothing points to the head. So a head that goes to sleep stores
//! (lock, node) here and writes SLOW into the lock word, and the unlock that finds SLOW takes the entry out
//! again.
//!
//! Invariant: one entry for each lock whose word is SLOW, or about to be, and none for any other lock. It
//! holds because a queue has one head, and because the head and the owner that registers a head on its behalf
//! agree through the node's state which of them does it (T2 in [`pv`](super::pv)).
//!
//! A search starts at the first of the four entries of the line that the lock's address hashes to, and goes
//! on from there to the end of the table and around. There is always a free entry (see
//! [`QSpinDomain::new`](super::QSpinDomain::new)), and an unlock finds what it looks for, so neither failure
//! can happen in a sound kernel: both panic, with a census of the table.

use core::{fmt, ptr};

use super::domain::Shared;
use crate::{
    Event, Platform,
    mutant::faulty,
    nesting::Code,
    sync::{AtomicU32, AtomicUsize, Ordering::*, array, const_unless_loom},
};

/// Entries in a line.
pub(super) const WIDTH: usize = 4;

/// A cache line of the table.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Line([Entry; WIDTH]);

/// Laid out for those who look at it from outside: see [`Queues`](crate::Queues).
#[derive(Debug)]
#[repr(C)]
struct Entry {
    /// Address of the lock word; 0: the entry is free.
    lock: AtomicUsize,
    /// Code of the head. Belongs to whoever took or may remove the entry.
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
pub(super) struct Table<'a>(&'a [Line]);

impl<'a> Table<'a> {
    pub(super) fn new(lines: &'a [Line]) -> Self {
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

    /// Registers `code` as the head of the queue at `word`.
    pub(super) fn insert<P: Platform>(self, shared: Shared<'_, P>, word: &AtomicU32, code: Code) {
        let lock = ptr::from_ref(word).addr();
        for (hops, entry) in (1..).zip(self.search(lock)) {
            // Acquire: pairs with the release in `remove`, so that the store to `node` below comes after the
            // load of `node` there.
            if entry.lock.compare_exchange(0, lock, Acquire, Relaxed).is_ok() {
                // Relaxed: the unlock that looks for it has first seen SLOW, which is published after this.
                entry.node.store(code.raw(), Relaxed);
                shared.platform.count(Event::PvHashHops, hops);
                return;
            }
        }
        panic!("the table of sleeping queue heads is full\n{}", self.census(shared));
    }

    /// Takes out the head of the queue at `word`.
    pub(super) fn remove<P: Platform>(self, shared: Shared<'_, P>, word: &AtomicU32) -> Code {
        let lock = ptr::from_ref(word).addr();
        for entry in self.search(lock) {
            if faulty!("table-stops-at-a-hole") && entry.lock.load(Relaxed) == 0 {
                break;
            }
            // Relaxed: the caller has acquired from whoever made the entry, or made it itself.
            if entry.lock.load(Relaxed) == lock {
                // Relaxed: as above.
                let code = entry.node.load(Relaxed);
                // Release: pairs with the acquire in `insert`.
                entry.lock.store(0, Release);
                return Code::from_raw(code).expect("an entry names a node");
            }
        }
        panic!(
            "lock {lock:#x} is slow and has no entry in the table of sleeping queue heads\n{}",
            self.census(shared)
        );
    }

    fn census<P>(self, shared: Shared<'a, P>) -> Census<'a, P> {
        Census { table: self, shared }
    }
}

/// Who sleeps at the head of which queue, for the message of a panic.
struct Census<'a, P> {
    table: Table<'a>,
    shared: Shared<'a, P>,
}

impl<P> fmt::Display for Census<'_, P> {
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
            let node = self.shared.node(code);
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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    extern crate std;

    use std::{format, string::String, vec::Vec};

    use super::*;
    use crate::{QSpinDomain, qspinlock::domain::Memory, test_platform::Idle};

    type Domain = QSpinDomain<Idle, 64>;

    const ENTRIES: usize = 64 * WIDTH;

    fn locks(n: usize) -> Vec<AtomicU32> {
        (0..n).map(|_| AtomicU32::new(0)).collect()
    }

    fn panic_message(f: impl FnOnce()) -> String {
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).unwrap_err();
        panic.downcast_ref::<String>().expect("a formatted message").clone()
    }

    #[test]
    fn every_entry_can_be_used_and_found_again_past_holes() {
        let domain = Domain::new(Idle);
        let locks = locks(ENTRIES);
        let code = |i: usize| Code::new(i % 64, i / 64);
        for (i, lock) in locks.iter().enumerate() {
            domain.shared().register(lock, code(i));
        }
        assert_eq!(domain.sleeping_heads(), ENTRIES);
        // Every other one first, so that searches for the rest pass holes.
        for i in (0..ENTRIES).step_by(2).chain((1..ENTRIES).step_by(2)) {
            assert_eq!(domain.shared().deregister(&locks[i]), code(i));
        }
        assert_eq!(domain.sleeping_heads(), 0);
    }

    #[test]
    fn a_full_table_says_who_sleeps() {
        let domain = Domain::new(Idle);
        let locks = locks(ENTRIES + 1);
        let message = panic_message(|| {
            for lock in &locks {
                domain.shared().register(lock, Code::new(5, 3));
            }
        });
        assert!(message.contains("is full") && message.contains("256 of 256 entries in use"), "{message}");
        assert!(
            message.contains(&format!("lock {:#x}, CPU 5, level 3", ptr::from_ref(&locks[0]).addr())),
            "{message}"
        );
    }

    #[test]
    fn a_missing_entry_says_who_sleeps_instead() {
        let domain = Domain::new(Idle);
        let locks = locks(2);
        domain.shared().register(&locks[0], Code::new(7, 0));
        let message = panic_message(|| _ = domain.shared().deregister(&locks[1]));
        assert!(message.contains("has no entry") && message.contains("CPU 7, level 0"), "{message}");
    }
}
