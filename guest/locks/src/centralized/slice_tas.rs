//! Test-and-set that asks before it acquires: a CPU that cannot expect to leave the critical section before the end of
//! its slice does not enter it. Teabe et al., "The lock holder and the lock waiter pre-emption problems", EuroSys 2017,
//! ask this question before a waiter gets the lock.
//!
//! The host says when the slice ends ([`Platform::slice_left`]), the kernel how long its sections are
//! ([`Platform::slice_margin`]). A CPU with too little left gives its slice back, and then looks again; it looks only
//! twice, because the slice may never seem to get longer on a host with no other vCPU to run. One that holds another
//! lock already keeps its slice ([`Platform::is_in_section`]): it would be that lock's holder that is off its CPU.

use crate::{
    centralized::Tas,
    contract::{Activity, Lock, Platform},
    faults::mutant::mutant,
    memory::sync::const_unless_loom,
    waiting::slice::give_up_unless_in_section,
};

/// Test-and-test-and-set lock that is not taken at the end of a slice.
#[derive(Debug)]
pub struct SliceTas {
    inner: Tas,
}

impl SliceTas {
    const_unless_loom! {
        /// A free lock.
        pub const fn new() -> Self {
            Self { inner: Tas::new() }
        }
    }

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
