//! The raw locks of the crate `lock_api`, for kernels that use its guards already.
//!
//! ```
//! # mod threads { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/host/threads.rs")); }
//! # use threads::Threads;
//! use haltkick_qspin::{FairRwLock, Native, QSpinDomain, QSpinLock, guarded::RawLock, home};
//!
//! home! { Queues: QSpinDomain<Threads, 64> = QSpinDomain::new(Threads); }
//!
//! type Mutex<T> = lock_api::Mutex<RawLock<QSpinLock<Native>, Queues>, T>;
//! type RwLock<T> = lock_api::RwLock<RawLock<FairRwLock<QSpinLock<Native>>, Queues>, T>;
//!
//! static NAMES: Mutex<Vec<&str>> = Mutex::new(Vec::new());
//! static TOTAL: RwLock<u64> = RwLock::new(1);
//!
//! NAMES.lock().push("name");
//! *TOTAL.write() += 1;
//! assert_eq!((NAMES.lock().len(), *TOTAL.read()), (1, 2));
//! ```
#![expect(unsafe_code, reason = "the raw traits hand the promise on")]

use core::{fmt, marker::PhantomData};

use super::{
    check::{self, Kind},
    free::Free,
    home::{Home, platform},
    rw_lock::crowded,
};
use crate::contract::{Exclusive, ExclusiveWriter, TrustedCpu};

/// A lock of this crate as one of `lock_api`: an `L` whose domain `H` names.
pub struct RawLock<L, H> {
    lock: L,
    home: PhantomData<fn() -> H>,
}

/// State that an unlock needs: the token of the acquisition, which stays on its CPU.
#[derive(Debug)]
pub struct Held<T> {
    token: T,
    not_send: PhantomData<*mut ()>,
}

impl<T> Held<T> {
    #[inline(always)]
    fn new(token: T) -> Self {
        Self { token, not_send: PhantomData }
    }
}

// SAFETY: nothing can be done with a reference to one.
unsafe impl<T> Sync for Held<T> {}

impl<L, H> fmt::Debug for RawLock<L, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawLock").finish_non_exhaustive()
    }
}

impl<L, H: Home> RawLock<L, H> {
    /// Calls `acquire`, which waits, on a pinned CPU.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    fn acquire<T>(&self, kind: Kind, acquire: impl FnOnce(&L, &'static H::Domain) -> T) -> Held<T> {
        platform::<H>().pin();
        check::asks(platform::<H>(), &self.lock, kind);
        // SAFETY: as in `try_acquire`.
        Held::new(acquire(&self.lock, unsafe { H::domain() }))
    }

    /// Calls `acquire` on a pinned CPU, which stays pinned if `acquire` gets the lock.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    fn try_acquire<T>(
        &self,
        kind: Kind,
        acquire: impl FnOnce(&L, &'static H::Domain) -> Option<T>,
    ) -> Option<Held<T>> {
        platform::<H>().pin();
        check::tries(platform::<H>(), &self.lock, kind);
        // SAFETY: the lock is this one's own, which passes one domain to it, and who calls unlock owes it the token.
        let token = acquire(&self.lock, unsafe { H::domain() });
        match token {
            Some(_) => check::got(platform::<H>(), &self.lock, kind),
            None => platform::<H>().unpin(),
        }
        token.map(Held::new)
    }

    /// Calls `release` with the token, and unpins the CPU.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    fn release<T>(&self, held: Held<T>, release: impl FnOnce(&L, &'static H::Domain, T)) {
        check::releases(platform::<H>(), &self.lock);
        // SAFETY: as in `acquire`.
        release(&self.lock, unsafe { H::domain() }, held.token);
        platform::<H>().unpin();
    }
}

// SAFETY: `Exclusive`; the pin keeps the caller on its CPU, and the token is not `Send`.
unsafe impl<L: Exclusive<H::Domain> + Free, H: Home> ::lock_api::RawMutex for RawLock<L, H> {
    const INIT: Self = Self { lock: L::FREE, home: PhantomData };

    type Guard = Held<L::Token>;

    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    fn lock(&self) -> Self::Guard {
        self.acquire(Kind::ALONE, |lock, domain| lock.lock(domain))
    }

    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    fn try_lock(&self) -> Option<Self::Guard> {
        self.try_acquire(Kind::ALONE, |lock, domain| lock.try_lock(domain))
    }

    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    unsafe fn unlock(&self, guard: Self::Guard) {
        self.release(guard, |lock, domain, token| lock.unlock(domain, token));
    }

    /// Takes the lock for a moment, if it can.
    #[inline]
    fn is_locked(&self) -> bool {
        // SAFETY: it has just been taken.
        self.try_lock().map(|guard| unsafe { self.unlock(guard) }).is_none()
    }
}

// SAFETY: `ExclusiveWriter`; the pin keeps the caller on its CPU, and the tokens are not `Send`.
unsafe impl<L: ExclusiveWriter<H::Domain> + Free, H: Home> ::lock_api::RawRwLock for RawLock<L, H> {
    const INIT: Self = Self { lock: L::FREE, home: PhantomData };

    type SharedGuard = Held<L::ReadToken>;
    type ExclusiveGuard = Held<L::WriteToken>;

    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    fn lock_shared(&self) -> Self::SharedGuard {
        let held = self.acquire(Kind::reader::<L, H::Domain>(), |lock, domain| lock.read(domain));
        self.counted(held)
    }

    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    fn try_lock_shared(&self) -> Option<Self::SharedGuard> {
        let held = self.try_acquire(Kind::reader::<L, H::Domain>(), |lock, domain| lock.try_read(domain))?;
        Some(self.counted(held))
    }

    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    unsafe fn unlock_shared(&self, guard: Self::SharedGuard) {
        self.release(guard, |lock, domain, token| lock.read_unlock(domain, token));
    }

    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    fn lock_exclusive(&self) -> Self::ExclusiveGuard {
        self.acquire(Kind::ALONE, |lock, domain| lock.write(domain))
    }

    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    fn try_lock_exclusive(&self) -> Option<Self::ExclusiveGuard> {
        self.try_acquire(Kind::ALONE, |lock, domain| lock.try_write(domain))
    }

    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    unsafe fn unlock_exclusive(&self, guard: Self::ExclusiveGuard) {
        self.release(guard, |lock, domain, token| lock.write_unlock(domain, token));
    }

    /// Takes the lock for a moment, if it can.
    #[inline]
    fn is_locked(&self) -> bool {
        // SAFETY: it has just been taken.
        self.try_lock_exclusive().map(|guard| unsafe { self.unlock_exclusive(guard) }).is_none()
    }

    /// Takes the lock for a moment, if it can. Also true while a writer waits, if that stops readers.
    #[inline]
    fn is_locked_exclusive(&self) -> bool {
        // SAFETY: it has just been taken.
        self.try_lock_shared().map(|guard| unsafe { self.unlock_shared(guard) }).is_none()
    }
}

impl<L: ExclusiveWriter<H::Domain>, H: Home> RawLock<L, H> {
    /// As `RwLock::read`: no more readers than the lock can count.
    #[inline(always)]
    fn counted(&self, held: Held<L::ReadToken>) -> Held<L::ReadToken> {
        if self.lock.is_crowded() {
            self.release(held, |lock, domain, token| lock.read_unlock(domain, token));
            crowded();
        }
        held
    }
}
