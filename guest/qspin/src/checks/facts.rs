//! A table of what has happened: this lock was asked for under that one, or a lock was used in that way.
//!
//! Open addressing, without waiting: an interrupt that comes while its CPU inserts may insert, too. Two CPUs may insert one fact twice, which
//! does no harm. SeqCst, but for hints: of two CPUs that insert, and then look for the other's fact, one finds it.
#![expect(unsafe_code, reason = "places are kept as pointers, which atomics can hold")]

use core::{
    ops::Range,
    panic::Location,
    ptr,
    sync::atomic::{
        AtomicPtr, AtomicUsize,
        Ordering::{Relaxed, SeqCst},
    },
};

use crate::faults::mutant::mutant;

/// `from`: there was never anything here, so that a search ends.
const EMPTY: usize = 0;
/// `from`: it was forgotten.
const FORGOTTEN: usize = 1;
/// `from`: it is being forgotten, and no other CPU touches it.
const GOING: usize = 2;
/// `to`: not written yet.
const PENDING: usize = 0;

/// The greatest note that may stand in `to`, in place of a lock: none has so small an address.
const LAST_NOTE: usize = 7;

/// Most locks that a search for a circle goes through.
const MOST_LOCKS: usize = 64;

/// One fact, with the place of the code that made it first.
#[derive(Debug)]
pub(super) struct Pair {
    /// Address of the lock that was held, or used.
    from: AtomicUsize,
    /// Address of the lock that was asked for, or a note.
    to: AtomicUsize,
    place: AtomicPtr<Location<'static>>,
}

impl Pair {
    pub(super) const fn new() -> Self {
        Self {
            from: AtomicUsize::new(EMPTY),
            to: AtomicUsize::new(PENDING),
            place: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Whether it is free, and now this caller's.
    fn claim(&self, from: usize) -> bool {
        // A look first: a failed exchange would take the line from others.
        let seen = self.from.load(SeqCst);
        seen <= FORGOTTEN && self.from.compare_exchange(seen, from, SeqCst, SeqCst).is_ok()
    }

    /// `to` and the place, if it is about `from` and complete.
    fn about(&self, from: usize) -> Option<(usize, &'static Location<'static>)> {
        // `from` first and last: the rest belongs to it, and it was not forgotten meanwhile.
        if mutant!("checked-look-once": self.from.load(SeqCst) != from => false) {
            return None;
        }
        let (to, place) = (self.to.load(SeqCst), self.place.load(SeqCst));
        meanwhile();
        if to == PENDING || self.from.load(SeqCst) != from {
            return None;
        }
        // SAFETY: only `insert` stores, and what it stores lives forever.
        Some((to, unsafe { place.as_ref() }?))
    }

    /// Forgets it, if it is about memory that `is_gone`. `true`: it was, and this call has forgotten it.
    fn forget(&self, is_gone: impl Fn(usize) -> bool) -> bool {
        let is_gone = |from, to| is_gone(from) || to > LAST_NOTE && is_gone(to);
        let (from, to) = (self.from.load(SeqCst), self.to.load(SeqCst));
        if from <= GOING || to == PENDING || !is_gone(from, to) {
            return false;
        }
        meanwhile();
        // One of several that forget it wins. Another CPU may have made a fact here since the loads, with one lock of the old fact.
        if mutant!("checked-forget-blindly": self.from.compare_exchange(from, GOING, SeqCst, SeqCst).is_err() => false)
        {
            return false;
        }
        let to = self.to.load(SeqCst);
        let goes = mutant!("checked-forget-blindly": to != PENDING && is_gone(from, to) => true);
        if goes {
            // In this order: what claims it next finds it without a `to`.
            self.to.store(PENDING, SeqCst);
        }
        let gone = mutant!("checked-forget-the-rest": FORGOTTEN => EMPTY);
        self.from.store(if goes { gone } else { from }, SeqCst);
        goes
    }
}

/// Whether a table has room: even while it may have, odd once a fact found none. A table that is full costs a lock one load.
#[derive(Debug)]
pub(super) struct Room(AtomicUsize);

impl Room {
    pub(super) const fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    pub(super) fn is_none(&self) -> bool {
        // Relaxed: a hint. A CPU that sees it late searches once more, or not for a while.
        !self.0.load(Relaxed).is_multiple_of(2)
    }

    /// A search that began at `since` has found no room. If some was made meanwhile, it may have passed that.
    fn ends(&self, since: usize) {
        meanwhile();
        let since = mutant!("checked-full-for-ever": since => self.0.load(SeqCst));
        _ = self.0.compare_exchange(since, since | 1, SeqCst, SeqCst);
    }

    /// Facts have been forgotten.
    fn begins(&self) {
        // To the next even number. The exchange is tried again until it succeeds, and fails only if another one succeeds.
        _ = self.0.fetch_update(SeqCst, SeqCst, |room| Some((room | 1).wrapping_add(1)));
    }
}

/// A table of any size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts<'a> {
    pub(super) pairs: &'a [Pair],
    pub(super) room: &'a Room,
}

/// Route from a lock to another one, by locks that were asked for under it.
pub(super) enum Route {
    /// No facts make one.
    None,
    /// The place of the last step; `is_direct`: it is the first, too.
    Last { place: &'static Location<'static>, is_direct: bool },
    /// Too many locks to say.
    TooLong,
}

impl<'a> Facts<'a> {
    /// All facts, in the order in which a search visits them.
    fn search(self, from: usize, to: usize) -> impl Iterator<Item = &'a Pair> {
        // As in the table of the queue spinlock: multiplication by 2^64 / phi spreads addresses.
        let hash = (from.rotate_left(16) ^ to) as u64;
        let hash = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let (before, after) = self.pairs.split_at(hash as usize % self.pairs.len());
        after.iter().chain(before)
    }

    /// Place at which that fact was made.
    pub(super) fn place(self, from: usize, to: usize) -> Option<&'static Location<'static>> {
        let made = self.search(from, to).take_while(|fact| fact.from.load(SeqCst) != EMPTY);
        made.filter_map(|fact| fact.about(from)).find(|about| about.0 == to).map(|about| about.1)
    }

    /// Adds a fact; `false`: the table is full.
    pub(super) fn insert(self, from: usize, to: usize, place: &'static Location<'static>) -> bool {
        let room = self.room.0.load(SeqCst);
        let Some(fact) = self.search(from, to).find(|fact| fact.claim(from)) else {
            self.room.ends(room);
            return false;
        };
        fact.place.store(ptr::from_ref(place).cast_mut(), SeqCst);
        fact.to.store(to, SeqCst);
        true
    }

    /// Searches for a route from one lock to another one.
    pub(super) fn route(self, from: usize, to: usize) -> Route {
        let mut locks = [from; MOST_LOCKS];
        let (mut known, mut next, mut too_many) = (1, 0, false);
        while next < known {
            let here = locks[next];
            next += 1;
            for (there, place) in self.pairs.iter().filter_map(|fact| fact.about(here)) {
                if there == to && mutant!("checked-pairs-only": true => here == from) {
                    return Route::Last { place, is_direct: here == from };
                }
                if there <= LAST_NOTE || locks[..known].contains(&there) {
                    continue;
                }
                // All that is left of `here` is looked at all the same: an opposite order is found.
                if known == MOST_LOCKS {
                    too_many = true;
                    continue;
                }
                locks[known] = there;
                known += 1;
            }
        }
        if too_many { Route::TooLong } else { Route::None }
    }

    /// Removes all facts about locks in these addresses.
    pub(super) fn forget(self, memory: &Range<usize>) {
        let forgotten = self.pairs.iter().filter(|fact| fact.forget(|lock| memory.contains(&lock)));
        if forgotten.count() != 0 {
            self.room.begins();
        }
    }
}

/// Another CPU may do something here: a test says what.
#[inline(always)]
fn meanwhile() {
    #[cfg(test)]
    tests::meanwhile();
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::{boxed::Box, cell::Cell, thread_local};

    use super::*;

    thread_local! {
        static MEANWHILE: Cell<Option<Box<dyn FnOnce()>>> = const { Cell::new(None) };
    }

    pub(super) fn meanwhile() {
        // Taken out first: what the other CPU does passes such places, too.
        if let Some(act) = MEANWHILE.take() {
            act();
        }
    }

    /// A table of `N` facts, which lives as long as the other CPU of a test may need it.
    fn table<const N: usize>() -> Facts<'static> {
        Facts {
            pairs: Box::leak(Box::new([const { Pair::new() }; N])),
            room: Box::leak(Box::new(Room::new())),
        }
    }

    const LOCKS: [usize; 4] = [0x1000, 0x2000, 0x3000, 0x4000];

    fn forget(facts: Facts<'_>, lock: usize) {
        facts.forget(&(lock..lock + 4));
    }

    /// One fact is forgotten, and its place taken by a fact about another lock, while a CPU reads it.
    #[test]
    fn a_fact_is_not_told_of_the_lock_that_follows_it() {
        let ([a, b, c, d], facts, here) = (LOCKS, table::<1>(), Location::caller());
        assert!(facts.insert(a, b, here));
        MEANWHILE.set(Some(Box::new(move || {
            forget(facts, a);
            assert!(facts.insert(c, d, here));
        })));
        assert_eq!(facts.place(c, b), None);
        assert!(MEANWHILE.take().is_some() || facts.place(c, d).is_some());
    }

    /// The memory of both locks of one fact is freed at once, and that of one is used anew before the slower CPU goes on.
    #[test]
    fn a_fact_that_is_made_while_another_is_forgotten_stays() {
        let ([a, b, c, d], here) = (LOCKS, Location::caller());
        for (from, to) in [(c, d), (c, b), (a, d), (a, b)] {
            let facts = table::<1>();
            assert!(facts.insert(a, b, here));
            MEANWHILE.set(Some(Box::new(move || {
                forget(facts, b);
                assert!(facts.insert(from, to, here));
            })));
            // The lock at `a` is new too where the fact names it, and its CPU has forgotten the old one already.
            forget(facts, a);
            assert_eq!(facts.place(from, to).is_some(), from != a, "{from:#x} {to:#x}");
        }
    }

    #[test]
    fn a_full_table_has_room_once_a_fact_is_forgotten() {
        let ([a, b, c, d], facts, here) = (LOCKS, table::<1>(), Location::caller());
        assert!(facts.insert(a, b, here) && !facts.room.is_none());
        assert!(!facts.insert(c, d, here) && facts.room.is_none());
        forget(facts, c);
        assert!(facts.room.is_none(), "no fact was about it");
        forget(facts, a);
        assert!(!facts.room.is_none() && facts.insert(c, d, here));
        // Room is made after the search has passed it.
        MEANWHILE.set(Some(Box::new(move || forget(facts, c))));
        assert!(!facts.insert(a, b, here) && !facts.room.is_none());
    }

    /// A fact's place among others follows from its addresses, so several are tried.
    #[test]
    fn an_opposite_order_is_found_behind_any_number_of_others() {
        let (lock, here) = (0x1000, Location::caller());
        for other in (0x2000..0x4000).step_by(0x200) {
            let facts = table::<{ 4 * MOST_LOCKS }>();
            for follower in 0..2 * MOST_LOCKS {
                assert!(facts.insert(lock, 0x10_0000 + 0x100 * follower, here));
            }
            assert!(matches!(facts.route(lock, other), Route::TooLong));
            assert!(facts.insert(lock, other, here));
            assert!(matches!(facts.route(lock, other), Route::Last { is_direct: true, .. }), "{other:#x}");
        }
    }

    /// Each fact of a full table is forgotten in turn, and made anew in its place.
    #[test]
    fn facts_are_found_past_holes() {
        let here = Location::caller();
        let (facts, locks) = (table::<8>(), [0x1000, 0x2000, 0x3000, 0x4000, 0x5000, 0x6000, 0x7000, 0x8000]);
        assert!(locks.iter().all(|lock| facts.insert(*lock, 0x9000, here)));
        assert!(!facts.insert(0xa000, 0x9000, here), "full");
        for gone in locks {
            forget(facts, gone);
            let found = locks.iter().filter(|lock| facts.place(**lock, 0x9000).is_some()).count();
            assert_eq!((found, facts.place(gone, 0x9000)), (7, None));
            assert!(facts.insert(gone, 0x9000, here));
        }
        facts.forget(&(0x9000..0x9001));
        assert!(locks.iter().all(|lock| facts.place(*lock, 0x9000).is_none()));
    }
}
