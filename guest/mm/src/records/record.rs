//! Records of pages and data of each CPU, which never move, and lists of them.

use haltkick_locks::CachePadded;

use super::NONE;
use super::sync::AtomicU32;

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
    pub const fn new(lock: S) -> Self
    where
        AtomicU32: Sized,
    {
        Self { lock, next: AtomicU32::new(NONE), state: AtomicU32::new(USED) }
    }
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
