//! Records of pages and areas, which never move, and the sequence counts and lists that are made of them.

mod sequence;
pub(crate) mod vma;

use self::Ordering::*;
use haltkick_locks::CachePadded;

pub(crate) use sequence::Sequence;
pub use vma::{Protection, Vma};

// The atomics of this crate: the real ones, or shuttle's.
#[cfg(not(shuttle))]
pub use core::sync::atomic::{AtomicU32, AtomicU64};
#[cfg(not(shuttle))]
pub(crate) use core::sync::atomic::{Ordering, fence};
#[cfg(shuttle)]
pub use shuttle::sync::atomic::{AtomicU32, AtomicU64};
#[cfg(shuttle)]
pub(crate) use shuttle::sync::atomic::{Ordering, fence};

/// No page, no area.
pub(crate) const NONE: u32 = u32::MAX;

/// Record of a page.
#[derive(Debug)]
#[repr(align(64))]
pub struct Page<S> {
    /// As a page table: its `ptl`.
    pub(crate) lock: S,
    /// Next in the list that the page is in.
    pub(crate) next: AtomicU32,
    /// [`FREE`] or [`USED`]: finds pages that are freed twice.
    pub(crate) state: AtomicU32,
}

pub(crate) const FREE: u32 = 0;
pub(crate) const USED: u32 = 1;

impl<S> Page<S> {
    /// A page in no list.
    pub const fn new(lock: S) -> Self {
        Self { lock, next: AtomicU32::new(NONE), state: AtomicU32::new(USED) }
    }
}

/// All records that there are.
#[derive(Debug)]
pub struct Records<S: 'static> {
    /// One per page that can be handed out.
    pub pages: &'static [Page<S>],
    /// One per area that there can be.
    pub vmas: &'static [Vma],
    /// One per CPU.
    pub cpus: &'static [CpuList],
}

/// Data of one CPU: free pages, which only this CPU touches while it runs, and counts of its faults.
#[derive(Debug)]
pub struct CpuList {
    pub(crate) pages: CachePadded<List>,
    pub(crate) faults: CachePadded<Faults>,
}

/// Pages or areas, linked.
#[derive(Debug)]
pub(crate) struct List {
    pub(crate) first: AtomicU32,
    pub(crate) length: AtomicU32,
}

impl List {
    pub(crate) const fn new() -> Self {
        Self { first: AtomicU32::new(NONE), length: AtomicU32::new(0) }
    }

    // Relaxed, here and below: a list belongs to a CPU or is under the lock.

    pub(crate) fn length(&self) -> u32 {
        self.length.load(Relaxed)
    }

    /// Puts `item`, whose link to the next is `next`, in front.
    pub(crate) fn push(&self, item: u32, next: &AtomicU32) {
        next.store(self.first.load(Relaxed), Relaxed);
        self.first.store(item, Relaxed);
        self.length.store(self.length.load(Relaxed) + 1, Relaxed);
    }

    /// Takes the first; `next` finds the link of an item.
    pub(crate) fn pop<'a>(&self, next: impl Fn(u32) -> &'a AtomicU32) -> Option<u32> {
        let item = self.first.load(Relaxed);
        if item == NONE {
            return None;
        }
        self.first.store(next(item).load(Relaxed), Relaxed);
        self.length.store(self.length.load(Relaxed) - 1, Relaxed);
        Some(item)
    }
}

impl CpuList {
    /// An empty list.
    #[expect(clippy::new_without_default, reason = "made in tables, never by default")]
    pub const fn new() -> Self {
        Self { pages: CachePadded::new(List::new()), faults: CachePadded::new(Faults::new()) }
    }
}

/// A CPU's faults, by counter: how many have begun, how many are over. Written by that CPU alone.
#[derive(Debug)]
pub(crate) struct Faults {
    pub(crate) entered: [AtomicU32; 2],
    pub(crate) left: [AtomicU32; 2],
}

impl Faults {
    pub(crate) const fn new() -> Self {
        Self { entered: [const { AtomicU32::new(0) }; 2], left: [const { AtomicU32::new(0) }; 2] }
    }
}

// The areas that wait for a grace period, and how far that is: the state that `address_space/deferred.rs` changes.

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
        self.waiting.length() + self.next.length()
    }
}
