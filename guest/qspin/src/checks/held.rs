//! The locks that a CPU holds or asks for.
//!
//! Written by that CPU and its interrupts, which leave it as they found it. A CPU that releases a lock of another one, which is a fault,
//! removes it there.
#![expect(unsafe_code, reason = "places are kept as pointers, which atomics can hold")]

use core::{
    panic::Location,
    ptr,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::*, compiler_fence},
};

use crate::faults::mutant::mutant;

/// Most locks of one CPU that are known.
const MOST_HELD: usize = 16;

/// One CPU's locks.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Held {
    locks: [Entry; MOST_HELD],
    /// Locks that found no room.
    more: AtomicUsize,
}

/// `lock`: no lock.
const FREE: usize = 0;
/// `lock`: about to be written. An interrupt that comes meanwhile takes another entry.
const CLAIMED: usize = 1;

#[derive(Debug)]
struct Entry {
    /// Address of the lock, [`FREE`] or [`CLAIMED`].
    lock: AtomicUsize,
    place: AtomicPtr<Location<'static>>,
    shared: AtomicBool,
}

impl Entry {
    const fn new() -> Self {
        Self {
            lock: AtomicUsize::new(FREE),
            place: AtomicPtr::new(ptr::null_mut()),
            shared: AtomicBool::new(false),
        }
    }

    /// Place at which the lock was asked for.
    fn place(&self) -> Option<&'static Location<'static>> {
        // Relaxed: the lock's address, which is stored after it and released, was acquired, or is this CPU's own.
        // SAFETY: only `push` stores, and what it stores lives forever.
        unsafe { self.place.load(Relaxed).as_ref() }
    }
}

impl Held {
    pub(super) const fn new() -> Self {
        Self { locks: [const { Entry::new() }; MOST_HELD], more: AtomicUsize::new(0) }
    }

    /// Adds a lock; `false`: there is no room.
    pub(super) fn push(&self, lock: usize, place: &'static Location<'static>, shared: bool) -> bool {
        // Relaxed: only this CPU writes, here and below.
        let Some(entry) = self.locks.iter().find(|entry| entry.lock.load(Relaxed) == FREE) else {
            self.more.store(self.more.load(Relaxed) + 1, Relaxed);
            return false;
        };
        entry.lock.store(CLAIMED, Relaxed);
        compiler_fence(SeqCst);
        entry.place.store(ptr::from_ref(place).cast_mut(), Relaxed);
        entry.shared.store(shared, Relaxed);
        // Release: pairs with `since` on another CPU.
        entry.lock.store(lock, Release);
        // An interrupt from here on finds it.
        compiler_fence(SeqCst);
        true
    }

    /// Removes a lock once; `false`: this CPU does not have it.
    pub(super) fn remove(&self, lock: usize) -> bool {
        compiler_fence(SeqCst);
        if self.remove_known(lock) {
            return true;
        }
        // It may be one of those that found no room.
        let more = self.more.load(Relaxed);
        self.more.store(more.saturating_sub(1), Relaxed);
        mutant!("checked-miss-the-rest": more > 0 => false)
    }

    /// As [`remove`](Self::remove), of locks that found room; also for other CPUs, which release a lock of this one.
    pub(super) fn remove_known(&self, lock: usize) -> bool {
        let entry = self.locks.iter().find(|entry| entry.lock.load(Relaxed) == lock);
        entry.inspect(|entry| entry.lock.store(FREE, Relaxed)).is_some()
    }

    /// Place at which this CPU asked for a lock that it has. `counts` says whether one that is shared, or is not, counts.
    pub(super) fn since(
        &self,
        lock: usize,
        counts: impl Fn(bool) -> bool,
    ) -> Option<&'static Location<'static>> {
        // Acquire: pairs with `push`, where another CPU asks.
        let mut found = self.locks.iter().filter(|entry| entry.lock.load(Acquire) == lock);
        found.find(|entry| counts(entry.shared.load(Relaxed)))?.place()
    }

    /// Calls `tell` with each lock of this CPU, and where it was asked for.
    pub(super) fn each(&self, mut tell: impl FnMut(usize, &'static Location<'static>)) {
        for entry in &self.locks {
            let lock = entry.lock.load(Relaxed);
            if let Some(place) = entry.place().filter(|_| lock > CLAIMED) {
                tell(lock, place);
            }
        }
    }
}
