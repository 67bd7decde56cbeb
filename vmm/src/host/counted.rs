//! Counts of what the calling thread does that costs time on a hot path: tests hold a scheduler to them.
#![expect(unsafe_code, reason = "an allocator that counts has the contract of the one that it calls")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ops::Sub;

/// Counts of one thread, so far or between two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    /// Mutexes locked.
    pub(crate) mutexes: u64,
    /// Readings of CLOCK_MONOTONIC.
    pub(crate) clocks: u64,
    /// Readings of the time stamp counter.
    pub(crate) counters: u64,
    /// Memory allocated.
    pub(crate) allocations: u64,
}

impl Sub for Counted {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            mutexes: self.mutexes - before.mutexes,
            clocks: self.clocks - before.clocks,
            counters: self.counters - before.counters,
            allocations: self.allocations - before.allocations,
        }
    }
}

thread_local! {
    static COUNTED: Cell<Counted> = const {
        Cell::new(Counted { mutexes: 0, clocks: 0, counters: 0, allocations: 0 })
    };
}

/// Changes the calling thread's counts.
pub(crate) fn count(change: impl FnOnce(&mut Counted)) {
    let mut counted = COUNTED.get();
    change(&mut counted);
    COUNTED.set(counted);
}

/// The calling thread's counts.
pub(crate) fn by_this_thread() -> Counted {
    COUNTED.get()
}

/// The system's allocator, which counts.
struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: every call goes to the system's allocator as it came. The count is a constant-initialised cell without a destructor,
// which allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(|counted| counted.allocations += 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(|counted| counted.allocations += 1);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
