//! The system's allocator, which says in a line that there is no memory and ends the process: Rust's own ends it with SIGABRT.
#![expect(
    unsafe_code,
    reason = "an allocator that gives up, or counts, has the contract of the one that it calls"
)]

use std::alloc::{GlobalAlloc, Layout, System};

use crate::host::error::MEMORY_LIMITS;

/// The allocator.
#[derive(Debug)]
pub struct OrGivesUp {
    /// The code with which the process ends.
    pub exit: i32,
}

impl OrGivesUp {
    #[inline(always)]
    fn given(&self, pointer: *mut u8) -> *mut u8 {
        // A constant-initialised cell without a destructor, which allocates nothing.
        #[cfg(test)]
        counted::count(counted::Counted::Allocation);
        if pointer.is_null() { self.give_up() } else { pointer }
    }

    /// Allocates nothing itself.
    #[cold]
    fn give_up(&self) -> ! {
        for text in ["haltkick: there is no memory left: see ", MEMORY_LIMITS, "\n"] {
            // A failure cannot be told: this is the last word.
            _ = rustix::io::write(rustix::stdio::stderr(), text.as_bytes());
        }
        // SAFETY: ends the process at once; what the allocator's caller holds is not looked at again.
        unsafe { libc::_exit(self.exit) }
    }
}

// SAFETY: every call goes to the system's allocator as it came, and what it returns is returned, unless it is null.
unsafe impl GlobalAlloc for OrGivesUp {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        self.given(unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        self.given(unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        self.given(unsafe { System.realloc(pointer, layout, size) })
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Counts of what the calling thread does that costs time on a hot path: tests hold a scheduler to them.
#[cfg(test)]
pub(crate) mod counted {
    use std::cell::Cell;

    /// Kind of event that is counted. Its number is its place among the counts.
    pub(crate) enum Counted {
        Mutex,
        /// A reading of CLOCK_MONOTONIC.
        Clock,
        /// A reading of the time stamp counter.
        Counter,
        Allocation,
    }

    thread_local! {
        static COUNTED: Cell<[u64; 4]> = const { Cell::new([0; 4]) };
    }

    pub(crate) fn count(one: Counted) {
        let mut counted = COUNTED.get();
        counted[one as usize] += 1;
        COUNTED.set(counted);
    }

    pub(crate) fn by_this_thread() -> [u64; 4] {
        COUNTED.get()
    }

    #[global_allocator]
    static COUNTING: super::OrGivesUp = super::OrGivesUp { exit: 1 };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::sandbox::tests::apart;

    #[test]
    fn a_process_without_memory_says_so_and_ends_with_its_code() {
        let gives_up = |_: &str| {
            let more_than_there_is = Layout::from_size_align(1 << 60, 8).unwrap();
            // SAFETY: the layout is not empty, and nothing is done with what is returned.
            let memory = unsafe { OrGivesUp { exit: 4 }.alloc(more_than_there_is) };
            // A compiler that optimizes leaves out an allocation whose result is not used.
            std::hint::black_box(memory);
        };
        let Some((code, said)) = apart("gives up", &gives_up) else { unreachable!("it returned") };
        assert_eq!(code, Some(4), "{said}");
        assert!(said.contains("there is no memory left: see the limits on memory: ulimit -v"), "{said}");
    }
}
