//! Test-and-test-and-set: one word, no order among waiters.
//!
//! The CPU that turns 0 into 1 owns the lock. Waiters poll with plain loads, so that the line stays shared while the
//! owner works, and race when it becomes free. Unfair without bound; under preemption that is a virtue, for the lock
//! never waits for a waiter that is not running.

use crate::{
    contract::{Activity, Lock, Platform},
    memory::sync::{AtomicU32, Ordering::*, const_unless_loom},
};

/// Test-and-test-and-set lock.
#[derive(Debug)]
pub struct Tas {
    /// 0 free, 1 held.
    word: AtomicU32,
}

impl Tas {
    const_unless_loom! {
        /// A free lock.
        pub const fn new() -> Self {
            Self { word: AtomicU32::new(0) }
        }
    }

    /// Turns 0 into 1; `true` if that took the lock. Acquire: pairs with the release in `unlock`.
    #[inline(always)]
    fn take(&self) -> bool {
        self.word.compare_exchange(0, 1, Acquire, Relaxed).is_ok()
    }

    #[cold]
    #[inline(never)]
    fn lock_slow<P: Platform>(&self, platform: &P) {
        platform.announce(Activity::Waiter);
        loop {
            // Relaxed: only a hint when to try; `take` is what acquires.
            while self.word.load(Relaxed) != 0 {
                platform.pause();
            }
            if self.take() {
                return;
            }
        }
    }
}

impl<P: Platform> Lock<P> for Tas {
    type Token = ();

    #[inline(always)]
    fn lock(&self, platform: &P) {
        if !self.take() {
            self.lock_slow(platform);
        }
    }

    #[inline(always)]
    fn try_lock(&self, _: &P) -> Option<()> {
        // Relaxed: failing needs no ordering, and spares the line when the lock is held.
        (self.word.load(Relaxed) == 0 && self.take()).then_some(())
    }

    #[inline(always)]
    fn unlock(&self, _: &P, (): ()) {
        // Release: the critical section is over before the next owner can turn the 0 into 1.
        self.word.store(0, Release);
    }
}
