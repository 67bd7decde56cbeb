//! Test-and-test-and-set: one word, no order among waiters.
//!
//! The CPU that turns 0 into 1 owns the lock. Waiters poll with plain loads, so that the line stays shared while the
//! owner works, and race when it becomes free. Unfair without bound; under preemption that is a virtue, for the lock
//! never waits for a waiter that is not running.
//!
//! # The lock that asks before it acquires
//!
//! Test-and-set that asks before it acquires: a CPU that cannot expect to leave the critical section before the end of
//! its slice does not enter it. Teabe et al., "The lock holder and the lock waiter pre-emption problems", EuroSys 2017,
//! ask this question before a waiter gets the lock.
//!
//! The host says when the slice ends ([`Platform::slice_left`]), the kernel how long its sections are
//! ([`Platform::slice_margin`]). A CPU with too little left gives its slice back, and then looks again; it looks only
//! twice, because the slice may never seem to get longer on a host with no other vCPU to run. One that holds another
//! lock already keeps its slice ([`Platform::is_in_section`]): it would be that lock's holder that is off its CPU.

use crate::{
    contract::{Activity, Lock, Platform, poll},
    faults::mutant::mutant,
    memory::{AtomicU32, Ordering::*, fresh},
    waiting::give_up_unless_in_section,
};

/// Test-and-test-and-set lock.
#[derive(Debug)]
pub struct Tas {
    /// 0 free, 1 held.
    word: AtomicU32,
}

fresh!(pub Tas { word: AtomicU32::new(0) });

impl Tas {
    /// Turns 0 into 1; `true` if that took the lock. Acquire: pairs with the release in `unlock`.
    #[inline(always)]
    fn take(&self) -> bool {
        self.word.compare_exchange(0, 1, Acquire, Relaxed).is_ok()
    }

    #[cold]
    #[inline(never)]
    fn lock_slow<P: Platform>(&self, platform: &P) {
        // Relaxed: only a hint when to try; `take` is what acquires.
        poll(platform, || self.word.load(Relaxed) == 0, || self.take());
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

/// Test-and-test-and-set lock that is not taken at the end of a slice.
#[derive(Debug)]
pub struct SliceTas {
    inner: Tas,
}

fresh!(pub SliceTas { inner: Tas::new() });

impl SliceTas {
    #[cold]
    #[inline(never)]
    fn lock_slow<P: Platform>(&self, platform: &P) {
        platform.announce(Activity::Waiter);
        loop {
            platform.pause();
            await_slice(platform);
            if self.inner.try_lock(platform).is_some() {
                return;
            }
        }
    }
}

/// Gives the slice back if what is left of it is too short.
#[inline(always)]
pub(crate) fn await_slice<P: Platform>(platform: &P) {
    if mutant!("gcr-ignore-slice": platform.slice_ends_soon() => false) {
        give_up_unless_in_section(platform);
    }
}

impl<P: Platform> Lock<P> for SliceTas {
    type Token = ();

    #[inline(always)]
    fn lock(&self, platform: &P) {
        await_slice(platform);
        if self.inner.try_lock(platform).is_none() {
            self.lock_slow(platform);
        }
    }

    #[inline(always)]
    fn try_lock(&self, platform: &P) -> Option<()> {
        self.inner.try_lock(platform)
    }

    #[inline(always)]
    fn unlock(&self, platform: &P, (): ()) {
        self.inner.unlock(platform, ());
    }
}
