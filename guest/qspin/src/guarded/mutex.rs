//! A value under a lock.
#![expect(unsafe_code, reason = "the value is lent out by the lock's promise")]

use core::{
    cell::UnsafeCell,
    fmt,
    marker::PhantomData,
    mem::ManuallyDrop,
    ops::{Deref, DerefMut},
};

#[cfg(not(loom))]
use super::free::Free;
use super::{
    check::{self, Kind},
    home::{Home, PlatformOf, platform},
    interrupts::Off,
};
use crate::contract::{Exclusive, Interrupts, Lock, TrustedCpu};

/// A value that only the holder of its lock can reach: a `T` under an `L` whose domain `H` names.
///
/// It is as large as both: a domain is a type here, not a pointer.
pub struct Mutex<T: ?Sized, L, H> {
    lock: L,
    home: PhantomData<fn() -> H>,
    value: UnsafeCell<T>,
}

// SAFETY: it lends the value to one CPU at a time, so that to share it is to send the value.
unsafe impl<T: ?Sized + Send, L: Sync, H> Sync for Mutex<T, L, H> {}

#[cfg(not(loom))]
impl<T, L: Free, H> Mutex<T, L, H> {
    /// A value whose lock is free.
    pub const fn new(value: T) -> Self {
        Self { lock: L::FREE, home: PhantomData, value: UnsafeCell::new(value) }
    }
}

impl<T, L, H> Mutex<T, L, H> {
    /// A value under a lock that a model made, and that is free. (Elsewhere a caller could have spoilt it.)
    #[cfg(loom)]
    pub const fn with_lock(lock: L, value: T) -> Self {
        Self { lock, home: PhantomData, value: UnsafeCell::new(value) }
    }

    /// Returns the value; no other user of the lock is left.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized, L, H> Mutex<T, L, H> {
    /// Returns the value; no other user can have the lock meanwhile.
    pub const fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

impl<T: ?Sized, L: Exclusive<H::Domain>, H: Home> Mutex<T, L, H> {
    /// Acquires the lock, waiting as long as it takes.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub fn lock(&self) -> MutexGuard<'_, T, L, H> {
        platform::<H>().pin();
        check::asks(platform::<H>(), &self.lock, Kind::ALONE);
        // SAFETY: the lock is this mutex's own, which passes one domain to it, and its guard has the token.
        let token = self.lock.lock(unsafe { H::domain() });
        MutexGuard::new(self, token)
    }

    /// Acquires the lock if that needs no waiting.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T, L, H>> {
        platform::<H>().pin();
        check::tries(platform::<H>(), &self.lock, Kind::ALONE);
        // SAFETY: as in `lock`.
        let token = self.lock.try_lock(unsafe { H::domain() });
        match token {
            Some(_) => check::got(platform::<H>(), &self.lock, Kind::ALONE),
            None => platform::<H>().unpin(),
        }
        token.map(|token| MutexGuard::new(self, token))
    }

    /// Returns the result of `section` on the value. Interrupts are off from before the lock is requested until it is
    /// released.
    ///
    /// A closure, for guards may be dropped in any order: interrupts would come on in the section of the one that is left.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub fn with_interrupts_off<R>(&self, section: impl FnOnce(&mut T) -> R) -> R
    where
        PlatformOf<H>: Interrupts,
    {
        let _off = Off::new(platform::<H>());
        // Named, so that it goes before `_off` does.
        let mut guard = self.lock();
        section(&mut guard)
    }
}

impl<T: ?Sized, L, H> fmt::Debug for Mutex<T, L, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex").finish_non_exhaustive()
    }
}

/// The value of a [`Mutex`] while its lock is held, which dropping it releases.
#[must_use = "the lock is released when its guard is dropped"]
pub struct MutexGuard<'a, T: ?Sized, L: Exclusive<H::Domain>, H: Home> {
    mutex: &'a Mutex<T, L, H>,
    token: ManuallyDrop<<L as Lock<H::Domain>>::Token>,
    /// The CPU that took the lock releases it.
    not_send: PhantomData<*mut ()>,
}

// SAFETY: to share a guard is to share the value: nothing else can be reached by a reference to one.
unsafe impl<T: ?Sized + Sync, L: Exclusive<H::Domain>, H: Home> Sync for MutexGuard<'_, T, L, H> {}

impl<'a, T: ?Sized, L: Exclusive<H::Domain>, H: Home> MutexGuard<'a, T, L, H> {
    #[inline(always)]
    fn new(mutex: &'a Mutex<T, L, H>, token: L::Token) -> Self {
        Self { mutex, token: ManuallyDrop::new(token), not_send: PhantomData }
    }
}

impl<T: ?Sized, L: Exclusive<H::Domain>, H: Home> Deref for MutexGuard<'_, T, L, H> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held, and excludes all other guards.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T: ?Sized, L: Exclusive<H::Domain>, H: Home> DerefMut for MutexGuard<'_, T, L, H> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T: ?Sized, L: Exclusive<H::Domain>, H: Home> Drop for MutexGuard<'_, T, L, H> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: taken once, for this is the end of it.
        let token = unsafe { ManuallyDrop::take(&mut self.token) };
        check::releases(platform::<H>(), &self.mutex.lock);
        // SAFETY: the domain and the token of `lock`, on the same CPU: it is pinned, and a guard cannot be sent.
        self.mutex.lock.unlock(unsafe { H::domain() }, token);
        platform::<H>().unpin();
    }
}

impl<T: ?Sized + fmt::Debug, L: Exclusive<H::Domain>, H: Home> fmt::Debug for MutexGuard<'_, T, L, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
