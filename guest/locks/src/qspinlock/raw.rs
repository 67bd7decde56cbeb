//! The queue spinlock as a raw mutex of the crate `lock_api`, which has the values and the guards.
//!
//! ```
//! use haltkick_locks::{Event, Home, Platform, QSpinDomain, RawQSpinLock};
//!
//! struct Kernel;
//! impl Platform for Kernel {
//!     fn cpu(&self) -> usize { 0 }
//!     fn pause(&self) { core::hint::spin_loop() }
//!     fn now(&self) -> u64 { 0 }
//!     fn ticks(&self, nanoseconds: u64) -> u64 { nanoseconds }
//!     fn spin_threshold(&self) -> u64 { 20_000 }
//!     fn wait(&self, _still: impl Fn() -> bool) {}
//!     fn kick(&self, _cpu: usize) {}
//!     fn is_preempted(&self, _cpu: usize) -> bool { false }
//!     fn yield_to(&self, _cpu: Option<usize>) {}
//!     fn count(&self, _event: Event, _n: u64) {}
//! }
//!
//! // SAFETY: this kernel has one CPU and one task; the static has no other name.
//! unsafe impl Home for Kernel {
//!     type Domain = QSpinDomain<Kernel, 64>;
//!     unsafe fn domain() -> &'static Self::Domain {
//!         static QUEUES: QSpinDomain<Kernel, 64> = QSpinDomain::new(Kernel);
//!         &QUEUES
//!     }
//! }
//!
//! static NAMES: lock_api::Mutex<RawQSpinLock<Kernel>, Vec<&str>> = lock_api::Mutex::new(Vec::new());
//!
//! let mut names = NAMES.lock();
//! names.push("name");
//! assert!(NAMES.is_locked() && NAMES.try_lock().is_none());
//! drop(names);
//! assert!(!NAMES.is_locked() && NAMES.try_lock().is_some_and(|names| names.len() == 1));
//! assert!(!NAMES.is_locked());
//! ```
#![expect(unsafe_code, reason = "the raw trait hands the promise on")]

use core::marker::PhantomData;

use lock_api::{GuardNoSend, RawMutex};

use super::{Mode, QSpinLock, domain::Memory, pv::Pv, word::LOCKED_MASK};
use crate::{contract::Lock, memory::Ordering::Relaxed};

/// A type that names the domain of raw locks.
///
/// # Safety
///
/// [`domain`](Home::domain) returns the same domain each time, and there is no other way to a reference to it. No method of its
/// platform unwinds, and [`cpu`](crate::Platform::cpu) is the number of the calling CPU, which no other CPU has. Code that asks for a
/// lock stays on that CPU until the lock has been released; only interrupts run there meanwhile, and each is over before what it
/// interrupted goes on.
pub unsafe trait Home: 'static {
    /// Domain shared by the locks.
    type Domain: Memory + 'static;

    /// That domain.
    ///
    /// # Safety
    ///
    /// For [`RawQSpinLock`] alone: locks share nodes, so that an `unlock` too many of one may let two CPUs into another.
    unsafe fn domain() -> &'static Self::Domain;
}

/// A queue spinlock that waits as `M` says, on the domain that `H` names.
pub struct RawQSpinLock<H, M = Pv> {
    lock: QSpinLock<M>,
    home: PhantomData<fn() -> H>,
}

// SAFETY: "Why it excludes" in the documentation of `qspinlock`, for every mode (they are sealed), by the promise of `Home`. An
// owner has no node: a lock that it has may move or go.
unsafe impl<H: Home, M: Mode> RawMutex for RawQSpinLock<H, M> {
    const INIT: Self = Self { lock: QSpinLock::new(), home: PhantomData };

    type Guard = GuardNoSend;

    #[inline(always)]
    fn lock(&self) -> GuardNoSend {
        // SAFETY: `RawQSpinLock` asks, and hands the domain to nothing else.
        self.lock.lock(unsafe { H::domain() });
        GuardNoSend::new()
    }

    #[inline(always)]
    fn try_lock(&self) -> Option<GuardNoSend> {
        // SAFETY: as above.
        self.lock.try_lock(unsafe { H::domain() }).map(|()| GuardNoSend::new())
    }

    #[inline(always)]
    unsafe fn unlock(&self, _: GuardNoSend) {
        // SAFETY: as above, and the caller has it.
        self.lock.unlock(unsafe { H::domain() }, ());
    }

    #[inline]
    fn is_locked(&self) -> bool {
        // Relaxed: a snapshot.
        self.lock.word.load(Relaxed) & LOCKED_MASK != 0
    }
}
