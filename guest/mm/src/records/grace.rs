//! The areas that wait for a grace period, and how far that is: the state that `address_space/deferred.rs` changes.

use haltkick_locks::CachePadded;

use super::record::List;
use super::sync::{AtomicU32, Ordering::Relaxed};

/// The phases are described in a table of `address_space/deferred.rs`.
pub(crate) const IDLE: u32 = 0;
pub(crate) const BEGUN: u32 = 1;
pub(crate) const FLIPPED: u32 = 2;

/// Slots that wait, and how far their grace period is.
#[derive(Debug)]
pub(crate) struct Deferred {
    /// Which counter newcomers use. On a line of its own: every fault reads it.
    pub(crate) index: CachePadded<AtomicU32>,
    /// 1: a CPU is at it, which may change `phase` and `index`.
    pub(crate) busy: AtomicU32,
    pub(crate) phase: AtomicU32,
    /// Slots whose grace period goes on, and slots that wait for the next. Under the memory's lock.
    pub(crate) waiting: List,
    pub(crate) next: List,
}

impl Deferred {
    pub(crate) fn new() -> Self {
        Self {
            index: CachePadded::new(AtomicU32::new(0)),
            busy: AtomicU32::new(0),
            phase: AtomicU32::new(IDLE),
            waiting: List::new(),
            next: List::new(),
        }
    }

    /// Slots that wait. Exact while no CPU unmaps.
    pub(crate) fn slots(&self) -> u32 {
        self.waiting.length.load(Relaxed) + self.next.length.load(Relaxed)
    }
}
