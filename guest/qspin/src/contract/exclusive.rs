//! The promises on which memory rests that a lock guards.
//!
//! [`Lock`] and [`Platform`] are safe to implement, for nothing in this crate is worse than late when they are wrong: what the
//! locks themselves share is atomic. Who lends out `&mut` by a lock needs more than that, and these traits are what it asks for:
//! that the lock excludes ([`Exclusive`]), and that the platform knows its CPUs ([`TrustedCpu`]). A lock that
//! never waits is a [`Lock`], and not exclusive.
#![expect(unsafe_code, reason = "the promises are declared here")]

use super::{Lock, Platform, RwLock};
#[cfg(feature = "checked")]
use crate::{
    checks::{Checker, Context, Fault},
    faults::mutant::mutant,
};

/// A platform to which memory may be trusted.
///
/// # Safety
///
/// [`cpu`](Platform::cpu) is the number of the calling CPU, and no other CPU has that number. From the return of
/// [`pin`](TrustedCpu::pin) to the call of [`unpin`](TrustedCpu::unpin), the caller stays on its CPU, and whatever runs on
/// that CPU in between are interrupts, which nest: each is over before what it interrupted goes on.
pub unsafe trait TrustedCpu: Platform {
    /// Before a lock is asked for. A kernel that preempts or moves its tasks forbids both here: pins nest. There is no default: a kernel
    /// without such tasks says so by an empty body.
    fn pin(&self);

    /// After a lock has been released, or could not be had.
    fn unpin(&self);

    /// Memory of the checks of guarded locks; by default there is none, and nothing is checked.
    #[cfg(feature = "checked")]
    fn checks(&self) -> Option<Checker<'_>> {
        None
    }

    /// State of the calling CPU's interrupts, if the kernel knows.
    #[cfg(feature = "checked")]
    fn context(&self) -> Option<Context> {
        None
    }

    /// A fault in the use of a lock was found, on a pinned CPU: by default, [undoes the pin](TrustedCpu::unpin) and panics. If it returns,
    /// the lock does as without checks. If it does not, no guard is left that would undo the pin: it does so itself.
    #[cfg(feature = "checked")]
    fn found(&self, fault: &Fault) {
        if !mutant!("checked-panic-pinned": false => true) {
            self.unpin();
        }
        panic!("{fault}");
    }
}

// SAFETY: the same CPUs, and the same pins.
unsafe impl<P: TrustedCpu> TrustedCpu for &P {
    #[inline(always)]
    fn pin(&self) {
        P::pin(self);
    }

    #[inline(always)]
    fn unpin(&self) {
        P::unpin(self);
    }

    #[cfg(feature = "checked")]
    fn checks(&self) -> Option<Checker<'_>> {
        P::checks(self)
    }

    #[cfg(feature = "checked")]
    fn context(&self) -> Option<Context> {
        P::context(self)
    }

    #[cfg(feature = "checked")]
    fn found(&self, fault: &Fault) {
        P::found(self, fault);
    }
}

/// The interrupts of the calling CPU, for sections that handlers enter too.
///
/// Not unsafe: a section that is interrupted by a handler which wants the same lock never ends, and that is all.
pub trait Interrupts: Platform {
    /// Whether they were on.
    type Saved;

    /// Turns them off, and says how they were.
    fn turn_off(&self) -> Self::Saved;

    /// Makes them as they were.
    fn restore(&self, saved: Self::Saved);
}

/// A lock that excludes.
///
/// # Safety
///
/// If the platform of `D` keeps the promise of [`TrustedCpu`], all callers pass the same domain, and each token is given to one
/// `unlock` of the lock it is from, by the CPU that got it: then at most one caller of [`lock`](Lock::lock) and
/// [`try_lock`](Lock::try_lock) has the lock at a time, and what one did with it happens before what the next one does. That holds
/// whatever else the platform answers, and if a holder never unlocks.
pub unsafe trait Exclusive<D>: Lock<D> {}

/// A reader-writer lock that excludes writers from all others.
///
/// # Safety
///
/// As [`Exclusive`], for writers among each other, and between each writer and all readers; for readers, as long as
/// [`is_crowded`](ExclusiveWriter::is_crowded) says no, and for one more on each CPU.
pub unsafe trait ExclusiveWriter<D>: RwLock<D> {
    /// Whether a reader may take the lock for reading once more, also while a writer waits.
    const READERS_NEST: bool = false;

    /// Whether half the readers that the lock can count have it. Who takes it and finds that has to give it back.
    fn is_crowded(&self) -> bool;
}
