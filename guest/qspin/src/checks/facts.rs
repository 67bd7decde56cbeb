//! A table of what has happened: this lock was asked for under that one, or a lock was used in that way.
//!
//! Open addressing, without waiting: an interrupt that comes while its CPU inserts may insert, too. Two CPUs may insert one fact twice, which
//! does no harm. SeqCst throughout: of two CPUs that insert, and then look for the other's fact, one finds it.
#![expect(unsafe_code, reason = "places are kept as pointers, which atomics can hold")]

use core::{
    ops::Range,
    panic::Location,
    ptr,
    sync::atomic::{AtomicPtr, AtomicUsize, Ordering::SeqCst},
};

use crate::faults::mutant::mutant;

/// `from`: there was never anything here, so that a search ends.
const EMPTY: usize = 0;
/// `from`: it was forgotten.
const FORGOTTEN: usize = 1;
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
        if self.from.load(SeqCst) != from {
            return None;
        }
        let (to, place) = (self.to.load(SeqCst), self.place.load(SeqCst));
        if to == PENDING || self.from.load(SeqCst) != from {
            return None;
        }
        // SAFETY: only `insert` stores, and what it stores lives forever.
        Some((to, unsafe { place.as_ref() }?))
    }
}

/// A table of any size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts<'a>(pub(super) &'a [Pair]);

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
        let (before, after) = self.0.split_at(hash as usize % self.0.len());
        after.iter().chain(before)
    }

    /// Place at which that fact was made.
    pub(super) fn place(self, from: usize, to: usize) -> Option<&'static Location<'static>> {
        let made = self.search(from, to).take_while(|fact| fact.from.load(SeqCst) != EMPTY);
        made.filter_map(|fact| fact.about(from)).find(|about| about.0 == to).map(|about| about.1)
    }

    /// Adds a fact; `false`: the table is full.
    pub(super) fn insert(self, from: usize, to: usize, place: &'static Location<'static>) -> bool {
        let Some(fact) = self.search(from, to).find(|fact| fact.claim(from)) else { return false };
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
            for (there, place) in self.0.iter().filter_map(|fact| fact.about(here)) {
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
        for fact in self.0 {
            let (from, to) = (fact.from.load(SeqCst), fact.to.load(SeqCst));
            let is_made = from > FORGOTTEN && to != PENDING;
            let is_there = is_made && (memory.contains(&from) || to > LAST_NOTE && memory.contains(&to));
            // In this order: what claims it next finds it without a `to`. Of several that forget it one does.
            if is_there && fact.to.compare_exchange(to, PENDING, SeqCst, SeqCst).is_ok() {
                fact.from.store(mutant!("checked-forget-the-rest": FORGOTTEN => EMPTY), SeqCst);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fact's place among others follows from its addresses, so several are tried.
    #[test]
    fn an_opposite_order_is_found_behind_any_number_of_others() {
        let (lock, here) = (0x1000, Location::caller());
        for other in (0x2000..0x4000).step_by(0x200) {
            let pairs = [const { Pair::new() }; 4 * MOST_LOCKS];
            let facts = Facts(&pairs);
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
        let (pairs, here) = ([const { Pair::new() }; 8], Location::caller());
        let (facts, locks) =
            (Facts(&pairs), [0x1000, 0x2000, 0x3000, 0x4000, 0x5000, 0x6000, 0x7000, 0x8000]);
        assert!(locks.iter().all(|lock| facts.insert(*lock, 0x9000, here)));
        assert!(!facts.insert(0xa000, 0x9000, here), "full");
        for gone in locks {
            facts.forget(&(gone..gone + 4));
            let found = locks.iter().filter(|lock| facts.place(**lock, 0x9000).is_some()).count();
            assert_eq!((found, facts.place(gone, 0x9000)), (7, None));
            assert!(facts.insert(gone, 0x9000, here));
        }
        facts.forget(&(0x9000..0x9001));
        assert!(locks.iter().all(|lock| facts.place(*lock, 0x9000).is_none()));
    }
}
