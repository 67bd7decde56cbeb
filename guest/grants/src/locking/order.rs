//! The lock order, and a check of it in test builds.
//!
//! ```text
//! a kernel's own  ->  table (by address, where two are held)  ->  active entry (by reference)  ->  maptrack list, never two
//! ```
//!
//! A vCPU that acquires only upwards in this order cannot be part of a deadlock. The check knows which locks
//! each vCPU holds and panics at the first step down, whether or not another vCPU is there to make a deadlock
//! of it: one thread is enough to find ABBA. It is there in builds with debug assertions; elsewhere it is
//! empty.

use core::cell::Cell;

/// Kinds of locks, in the order in which they may be acquired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    Kernel,
    Table,
    Entry,
    Maptrack,
}

/// Whether the order is checked. Not under the model checker, which is to find what happens without.
const CHECKED: bool = cfg!(debug_assertions) && !cfg!(shuttle);
/// Most locks that one vCPU holds: two tables, two entries, a list.
const DEPTH: usize = 5;

type Lock = (Class, usize);

/// Locks that one vCPU holds.
#[derive(Debug)]
pub(crate) struct Order {
    held: [Cell<Option<Lock>>; DEPTH],
}

/// Held until dropped.
pub(crate) struct Held<'a>(Option<&'a Cell<Option<Lock>>>);

impl Order {
    pub(crate) const fn new() -> Self {
        Self { held: [const { Cell::new(None) }; DEPTH] }
    }

    /// Notes that the lock `class` at `address` is about to be acquired. `name` is for the message.
    #[inline(always)]
    pub(crate) fn acquire(&self, class: Class, address: usize, name: u32) -> Held<'_> {
        if CHECKED { self.check(class, address, name) } else { Held(None) }
    }

    fn check(&self, class: Class, address: usize, name: u32) -> Held<'_> {
        let lock = (class, address);
        if let Some(held) = self.held.iter().filter_map(Cell::get).find(|held| *held >= lock) {
            let how = if held == lock { "is held already" } else { "comes before a lock that is held" };
            panic!("lock order: {class:?} {name} {how} ({:?})", held.0);
        }
        assert!(
            class != Class::Maptrack
                || self.held.iter().all(|held| held.get().is_none_or(|it| it.0 != class)),
            "lock order: two maptrack lists at a time"
        );
        let free = self.held.iter().find(|held| held.get().is_none()).expect("five locks at most");
        free.set(Some(lock));
        Held(Some(free))
    }

    /// Whether anything is held.
    pub(crate) fn holds_nothing(&self) -> bool {
        self.held.iter().all(|held| held.get().is_none())
    }
}

impl Drop for Held<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(held) = self.0 {
            held.set(None);
        }
    }
}
