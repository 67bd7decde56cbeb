//! Test-and-set on the word of a queue spinlock: what a guest does that knows it is one, and that its
//! hypervisor offers nothing.

use super::{
    domain::Memory,
    mode::{Mode, sealed},
    word::{Word, try_lock},
};
use crate::{
    contract::{Activity, Platform},
    memory::sync::{AtomicU32, Ordering::*},
};

/// A lock without queue or fairness, so no CPU ever waits for a waiter that is not running.
#[derive(Debug)]
pub enum VirtTas {}

impl sealed::Sealed for VirtTas {}

impl Mode for VirtTas {
    /// N0: (0,0,0) -> (0,0,1), as soon as that is possible.
    #[cold]
    #[inline(never)]
    fn lock_slow<W: Word, D: Memory>(word: &AtomicU32, domain: &D, _: u32) {
        let platform = domain.shared().platform;
        platform.announce(Activity::Waiter);
        loop {
            // Relaxed: only a hint when to try; `try_lock` is what acquires.
            while word.load(Relaxed) != 0 {
                platform.pause();
            }
            if try_lock(word) {
                return;
            }
        }
    }

    #[inline(always)]
    fn unlock<W: Word, D: Memory>(word: &AtomicU32, _: &D) {
        W::unlock(word);
    }
}
