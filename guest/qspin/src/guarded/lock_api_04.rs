//! The raw locks of `lock_api` 0.4, for kernels that use its guards already.
//!
//! Version 0.4 hands nothing from `lock` to `unlock`, so this is for locks without a token: not for those whose node stays queued while
//! they are held, such as MCS locks.
//!
//! ```
//! # mod threads { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/host/threads.rs")); }
//! # use threads::Threads;
//! use haltkick_qspin::{Pv, QSpinDomain, QSpinLock, guarded::TokenlessLock, home};
//!
//! home! { Queues: QSpinDomain<Threads, 64> = QSpinDomain::new(Threads); }
//!
//! type Mutex<T> = lock_api_04::Mutex<TokenlessLock<QSpinLock<Pv>, Queues>, T>;
//!
//! static NAMES: Mutex<Vec<&str>> = Mutex::new(Vec::new());
//!
//! NAMES.lock().push("name");
//! assert_eq!(NAMES.lock().len(), 1);
//! ```
#![expect(unsafe_code, reason = "the raw traits hand the promise on")]

use core::{fmt, marker::PhantomData};

use ::lock_api_04::{GuardNoSend, RawMutex, RawRwLock};

use super::{
    check::{self, Kind},
    free::Free,
    home::{Home, platform},
    rw_lock::crowded,
};
use crate::contract::{Exclusive, ExclusiveWriter, Lock, RwLock, TrustedCpu};

/// A lock of this crate as one of `lock_api` 0.4: an `L` whose domain `H` names.
pub struct TokenlessLock<L, H> {
    lock: L,
    home: PhantomData<fn() -> H>,
}

impl<L, H> fmt::Debug for TokenlessLock<L, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenlessLock").finish_non_exhaustive()
    }
}

impl<L, H: Home> TokenlessLock<L, H> {
    /// Calls `acquire`, which waits, on a pinned CPU.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    fn acquire(&self, kind: Kind, acquire: impl FnOnce(&L, &'static H::Domain)) {
        platform::<H>().pin();
        check::asks(platform::<H>(), &self.lock, kind);
        // SAFETY: as in `try_acquire`.
        acquire(&self.lock, unsafe { H::domain() });
    }

    /// Calls `acquire` on a pinned CPU, which stays pinned if `acquire` gets the lock.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    fn try_acquire(&self, kind: Kind, acquire: impl FnOnce(&L, &'static H::Domain) -> Option<()>) -> bool {
        platform::<H>().pin();
        check::tries(platform::<H>(), &self.lock, kind);
        // SAFETY: the lock is this one's own, which passes one domain to it.
        let acquired = acquire(&self.lock, unsafe { H::domain() }).is_some();
        if acquired {
            check::got(platform::<H>(), &self.lock, kind);
        } else {
            platform::<H>().unpin();
        }
        acquired
    }

    /// Releases it again, and unpins the CPU.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    fn release(&self, release: impl FnOnce(&L, &'static H::Domain)) {
        check::releases(platform::<H>(), &self.lock);
        // SAFETY: as in `acquire`.
        release(&self.lock, unsafe { H::domain() });
        platform::<H>().unpin();
    }
}

// SAFETY: `Exclusive`; the pin keeps the caller on its CPU, and its guards are not `Send`.
unsafe impl<L, H: Home> RawMutex for TokenlessLock<L, H>
where
    L: Exclusive<H::Domain> + Lock<H::Domain, Token = ()> + Free,
{
    const INIT: Self = Self { lock: L::FREE, home: PhantomData };

    type GuardMarker = GuardNoSend;

    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    fn lock(&self) {
        self.acquire(Kind::ALONE, |lock, domain| lock.lock(domain));
    }

    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    fn try_lock(&self) -> bool {
        self.try_acquire(Kind::ALONE, |lock, domain| lock.try_lock(domain))
    }

    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    unsafe fn unlock(&self) {
        self.release(|lock, domain| lock.unlock(domain, ()));
    }
}

// SAFETY: `ExclusiveWriter`; the pin keeps the caller on its CPU, and its guards are not `Send`.
unsafe impl<L, H: Home> RawRwLock for TokenlessLock<L, H>
where
    L: ExclusiveWriter<H::Domain> + RwLock<H::Domain, ReadToken = (), WriteToken = ()> + Free,
{
    const INIT: Self = Self { lock: L::FREE, home: PhantomData };

    type GuardMarker = GuardNoSend;

    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    fn lock_shared(&self) {
        self.acquire(Kind::reader::<L, H::Domain>(), |lock, domain| lock.read(domain));
        self.assert_counted();
    }

    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    fn try_lock_shared(&self) -> bool {
        let acquired = self.try_acquire(Kind::reader::<L, H::Domain>(), |lock, domain| lock.try_read(domain));
        if acquired {
            self.assert_counted();
        }
        acquired
    }

    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    unsafe fn unlock_shared(&self) {
        self.release(|lock, domain| lock.read_unlock(domain, ()));
    }

    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    fn lock_exclusive(&self) {
        self.acquire(Kind::ALONE, |lock, domain| lock.write(domain));
    }

    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    fn try_lock_exclusive(&self) -> bool {
        self.try_acquire(Kind::ALONE, |lock, domain| lock.try_write(domain))
    }

    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    unsafe fn unlock_exclusive(&self) {
        self.release(|lock, domain| lock.write_unlock(domain, ()));
    }
}

impl<L, H: Home> TokenlessLock<L, H>
where
    L: ExclusiveWriter<H::Domain> + RwLock<H::Domain, ReadToken = (), WriteToken = ()>,
{
    /// As `RwLock::read`: no more readers than the lock can count. Called by a reader.
    #[inline(always)]
    fn assert_counted(&self) {
        if self.lock.is_crowded() {
            self.release(|lock, domain| lock.read_unlock(domain, ()));
            crowded();
        }
    }
}
