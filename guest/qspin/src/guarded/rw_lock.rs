//! A value under a reader-writer lock.
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
use crate::contract::{self, ExclusiveWriter, Interrupts, TrustedCpu};

/// A value that many CPUs may read at a time, and one alone may change: a `T` under an `L` whose domain `H` names.
///
/// Whether a reader may ask for it once more depends on `L`: see [`RwLock`](crate::RwLock).
pub struct RwLock<T: ?Sized, L, H> {
    lock: L,
    home: PhantomData<fn() -> H>,
    value: UnsafeCell<T>,
}

// SAFETY: it lends the value to many CPUs to read, and to one to change, which may also send it away.
unsafe impl<T: ?Sized + Send + Sync, L: Sync, H> Sync for RwLock<T, L, H> {}

#[cfg(not(loom))]
impl<T, L: Free, H> RwLock<T, L, H> {
    /// A value whose lock is free.
    pub const fn new(value: T) -> Self {
        Self { lock: L::FREE, home: PhantomData, value: UnsafeCell::new(value) }
    }
}

impl<T, L, H> RwLock<T, L, H> {
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

impl<T: ?Sized, L, H> RwLock<T, L, H> {
    /// Returns the value; no other user can have the lock meanwhile.
    pub const fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

impl<T: ?Sized, L: ExclusiveWriter<H::Domain>, H: Home> RwLock<T, L, H> {
    /// Acquires the lock for reading, waiting as long as it takes.
    ///
    /// # Panics
    ///
    /// If there are half as many guards as the lock can count readers: 2^22 or more.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub fn read(&self) -> RwLockReadGuard<'_, T, L, H> {
        platform::<H>().pin();
        check::asks(platform::<H>(), &self.lock, Kind::reader::<L, H::Domain>());
        // SAFETY: the lock is this one's own, which passes one domain to it, and its guard has the token.
        let token = self.lock.read(unsafe { H::domain() });
        RwLockReadGuard::holding(self, token).counted()
    }

    /// Acquires the lock for reading if that needs no waiting.
    ///
    /// # Panics
    ///
    /// As [`read`](Self::read).
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T, L, H>> {
        platform::<H>().pin();
        check::tries(platform::<H>(), &self.lock, Kind::reader::<L, H::Domain>());
        // SAFETY: as in `read`.
        let token = self.lock.try_read(unsafe { H::domain() });
        match token {
            Some(_) => check::got(platform::<H>(), &self.lock, Kind::reader::<L, H::Domain>()),
            None => platform::<H>().unpin(),
        }
        token.map(|token| RwLockReadGuard::holding(self, token).counted())
    }

    /// Acquires the lock for writing, waiting as long as it takes.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub fn write(&self) -> RwLockWriteGuard<'_, T, L, H> {
        platform::<H>().pin();
        check::asks(platform::<H>(), &self.lock, Kind::ALONE);
        // SAFETY: as in `read`.
        let token = self.lock.write(unsafe { H::domain() });
        RwLockWriteGuard::holding(self, token)
    }

    /// Acquires the lock for writing if that needs no waiting.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T, L, H>> {
        platform::<H>().pin();
        check::tries(platform::<H>(), &self.lock, Kind::ALONE);
        // SAFETY: as in `read`.
        let token = self.lock.try_write(unsafe { H::domain() });
        match token {
            Some(_) => check::got(platform::<H>(), &self.lock, Kind::ALONE),
            None => platform::<H>().unpin(),
        }
        token.map(|token| RwLockWriteGuard::holding(self, token))
    }

    /// Returns the result of `section`, which reads the value. Interrupts are off from before the lock is requested
    /// until it is released.
    ///
    /// # Panics
    ///
    /// As [`read`](Self::read).
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub fn read_with_interrupts_off<R>(&self, section: impl FnOnce(&T) -> R) -> R
    where
        PlatformOf<H>: Interrupts,
    {
        let _off = Off::new(platform::<H>());
        // Named, so that it goes before `_off` does.
        let guard = self.read();
        section(&guard)
    }

    /// Returns the result of `section`, which changes the value. Interrupts are off from before the lock is requested
    /// until it is released.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub fn write_with_interrupts_off<R>(&self, section: impl FnOnce(&mut T) -> R) -> R
    where
        PlatformOf<H>: Interrupts,
    {
        let _off = Off::new(platform::<H>());
        // Named, as above.
        let mut guard = self.write();
        section(&mut guard)
    }
}

impl<T: ?Sized, L, H> fmt::Debug for RwLock<T, L, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RwLock").finish_non_exhaustive()
    }
}

#[cold]
#[inline(never)]
pub(super) fn crowded() -> ! {
    panic!("more readers than the lock can count")
}

/// `guard!(Guard: Token of the lock's trait, how to release it, what it lends)`.
macro_rules! guard {
    ($(#[$attribute:meta])* $guard:ident: $token:ident, $unlock:ident) => {
        $(#[$attribute])*
        #[must_use = "the lock is released when its guard is dropped"]
        pub struct $guard<'a, T: ?Sized, L: ExclusiveWriter<H::Domain>, H: Home> {
            rw_lock: &'a RwLock<T, L, H>,
            token: ManuallyDrop<<L as contract::RwLock<H::Domain>>::$token>,
            /// The CPU that took the lock releases it.
            not_send: PhantomData<*mut ()>,
        }

        // SAFETY: to share a guard is to share the value: nothing else can be reached by a reference to one.
        unsafe impl<T: ?Sized + Sync, L: ExclusiveWriter<H::Domain>, H: Home> Sync for $guard<'_, T, L, H> {}

        impl<T: ?Sized, L: ExclusiveWriter<H::Domain>, H: Home> Deref for $guard<'_, T, L, H> {
            type Target = T;

            #[inline(always)]
            fn deref(&self) -> &T {
                // SAFETY: the lock is held, so that no writer but the owner of this guard has it.
                unsafe { &*self.rw_lock.value.get() }
            }
        }

        impl<T: ?Sized, L: ExclusiveWriter<H::Domain>, H: Home> Drop for $guard<'_, T, L, H> {
            #[inline(always)]
            fn drop(&mut self) {
                // SAFETY: taken once, for this is the end of it.
                let token = unsafe { ManuallyDrop::take(&mut self.token) };
                check::releases(platform::<H>(), &self.rw_lock.lock);
                // SAFETY: the domain and the token of the acquisition, on the same CPU: it is pinned, and a guard cannot
                // be sent.
                self.rw_lock.lock.$unlock(unsafe { H::domain() }, token);
                platform::<H>().unpin();
            }
        }

        impl<T: ?Sized + fmt::Debug, L: ExclusiveWriter<H::Domain>, H: Home> fmt::Debug for $guard<'_, T, L, H> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                (**self).fmt(f)
            }
        }

        impl<'a, T: ?Sized, L: ExclusiveWriter<H::Domain>, H: Home> $guard<'a, T, L, H> {
            #[inline(always)]
            fn holding(rw_lock: &'a RwLock<T, L, H>, token: L::$token) -> Self {
                Self { rw_lock, token: ManuallyDrop::new(token), not_send: PhantomData }
            }
        }
    };
}

guard! {
    /// The value of a [`RwLock`] while its lock is held for reading, which dropping it releases.
    RwLockReadGuard: ReadToken, read_unlock
}

guard! {
    /// The value of a [`RwLock`] while its lock is held for writing, which dropping it releases.
    RwLockWriteGuard: WriteToken, write_unlock
}

impl<T: ?Sized, L: ExclusiveWriter<H::Domain>, H: Home> RwLockReadGuard<'_, T, L, H> {
    /// Not one of more readers than the lock can count.
    #[inline(always)]
    fn counted(self) -> Self {
        if self.rw_lock.lock.is_crowded() {
            // The guard is dropped, and the lock released, on the way out.
            crowded();
        }
        self
    }
}

impl<T: ?Sized, L: ExclusiveWriter<H::Domain>, H: Home> DerefMut for RwLockWriteGuard<'_, T, L, H> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held for writing, and excludes all other guards.
        unsafe { &mut *self.rw_lock.value.get() }
    }
}
