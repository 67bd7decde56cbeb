//! `spin`'s mutex as a lock object: plain (`--pv off`), and with a relax hook that halts (`--pv on`).
#![no_std]

#[path = "../../../include/haltkick.rs"]
mod haltkick;

use core::mem::forget;
use core::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering::*, fence};

use haltkick::{CPUS_MOST, RawLock, State, VERSION};
use spin::{RelaxStrategy, mutex::SpinMutex};

/// Spins, as the crate does by default. Haltkick hears that the vCPU waits.
pub struct Spin;

impl RelaxStrategy for Spin {
    #[inline]
    fn relax() {
        haltkick::pause();
    }
}

// SAFETY: the crate excludes. A free mutex is a `false`, and a unit: zeros.
unsafe impl RawLock for SpinMutex<(), Spin> {
    #[inline]
    fn lock(&self) {
        forget(self.lock());
    }

    #[inline]
    fn try_lock(&self) -> bool {
        self.try_lock().map(forget).is_some()
    }

    #[inline]
    unsafe fn unlock(&self) {
        // SAFETY: the caller holds it.
        unsafe { self.force_unlock() };
    }
}

/// Spins for a while, then sleeps until an unlock.
///
/// The crate's hook has no arguments. So the lock leaves in [`WAITERS`] what the hook needs to know.
pub struct Halt;

/// A vCPU that waits for a lock.
#[repr(align(128))]
struct Waiter {
    /// Address of the lock that it asks for.
    lock: AtomicUsize,
    /// When it began to spin, in ticks; 0: not yet.
    since: AtomicU64,
    /// 1: it sleeps, or is about to. An unlock that makes this 0 kicks it.
    sleeps: AtomicU8,
}

static WAITERS: [Waiter; CPUS_MOST] =
    [const { Waiter { lock: AtomicUsize::new(0), since: AtomicU64::new(0), sleeps: AtomicU8::new(0) } };
        CPUS_MOST];

impl RelaxStrategy for Halt {
    fn relax() {
        // Relaxed, here and below: only this vCPU writes `lock` and `since`.
        let waiter = &WAITERS[haltkick::cpu()];
        let since = waiter.since.load(Relaxed);
        if since == 0 {
            haltkick::announce(State::Waiter);
            waiter.since.store(haltkick::now().max(1), Relaxed);
        } else if haltkick::now().wrapping_sub(since) < haltkick::spin_threshold() {
            haltkick::pause();
        } else if waiter.sleeps.load(Relaxed) == 0 {
            // Release: pairs with `wake_one`, for `lock`.
            waiter.sleeps.store(1, Release);
            // Pairs with the fence in `wake_one`: either the crate's next look finds the lock free, or the unlock finds this vCPU.
            fence(SeqCst);
        } else {
            haltkick::wait(&waiter.sleeps, 1);
        }
    }
}

/// Kicks a vCPU that sleeps until the lock at this address is released. The first is the next after the calling one.
///
/// If that vCPU takes the lock, it wakes the next at its own unlock. If another one has taken it, that one will.
#[inline]
fn wake_one(lock: usize) {
    // The lock was released before; pairs with the fence in `relax`.
    fence(SeqCst);
    let (cpu, cpus) = (haltkick::cpu(), haltkick::cpus());
    for other in (cpu + 1..cpus).chain(0..cpu) {
        let waiter = &WAITERS[other];
        // Acquire: pairs with `relax`, for `lock`.
        if waiter.sleeps.load(Acquire) == 1
            && waiter.lock.load(Relaxed) == lock
            && waiter.sleeps.compare_exchange(1, 0, Relaxed, Relaxed).is_ok()
        {
            haltkick::announce(State::Other);
            return haltkick::kick(other);
        }
    }
}

// SAFETY: as above.
unsafe impl RawLock for SpinMutex<(), Halt> {
    #[inline]
    fn lock(&self) {
        if let Some(guard) = self.try_lock() {
            return forget(guard);
        }
        let waiter = &WAITERS[haltkick::cpu()];
        waiter.since.store(0, Relaxed);
        waiter.lock.store(core::ptr::from_ref(self).addr(), Relaxed);
        forget(self.lock());
        // It no longer waits: an unlock must not wake it in the place of one that sleeps.
        waiter.sleeps.store(0, Relaxed);
    }

    #[inline]
    fn try_lock(&self) -> bool {
        self.try_lock().map(forget).is_some()
    }

    #[inline]
    unsafe fn unlock(&self) {
        let address = core::ptr::from_ref(self).addr();
        // SAFETY: the caller holds it.
        unsafe { self.force_unlock() };
        wake_one(address);
    }
}

haltkick_lock!(SpinMutex<(), Spin>, pv SpinMutex<(), Halt>);

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    haltkick::fail(c"the lock has panicked")
}
