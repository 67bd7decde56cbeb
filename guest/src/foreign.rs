//! Other people's locks in the same harness, each with its crate's own code and a relax hook of ours.
//!
//! `native` is the crate as it comes: it spins. The paravirtual forms replace what it does between two looks at the
//! lock, and show how far that gets with a lock that knows nothing of it (docs/locks.md).
#![expect(unsafe_code, reason = "unlocking without the guard that the crate gives out is unsafe")]

use core::mem::forget;

use haltkick_locks::Lock;
use spinning_top::{RawSpinlock, lock_api};

use crate::platform::Guest;
use crate::relax::{Hook, Wake};

/// A lock of another crate with what a hook keeps beside it.
pub(crate) struct Foreign<L, H: Hook> {
    raw: L,
    sleepers: H::Sleepers,
}

impl<L: Raw, H: Hook> Foreign<L, H> {
    pub(crate) const fn new() -> Self {
        Self { raw: L::NEW, sleepers: H::NEW }
    }
}

/// What can be told of another crate's lock.
pub(crate) trait Raw: Sync {
    /// A free lock.
    const NEW: Self;
    /// Whom an unlock lets in.
    const LETS_IN: Wake;
}

/// One whose lock and unlock are functions.
pub(crate) trait Open: Raw {
    fn lock(&self);
    fn try_lock(&self) -> bool;
    /// # Safety
    /// The calling vCPU holds the lock.
    unsafe fn unlock(&self);
}

/// One that is held for the length of a closure.
pub(crate) trait Scoped: Raw {
    fn section(&self, section: impl FnOnce());
}

impl<L: Open, H: Hook> Lock<Guest> for Foreign<L, H> {
    type Token = ();

    #[inline(always)]
    fn lock(&self, _: &Guest) {
        H::asking(&self.sleepers);
        self.raw.lock();
        H::holding(&self.sleepers);
    }

    #[inline(always)]
    fn try_lock(&self, _: &Guest) -> Option<()> {
        self.raw.try_lock().then_some(())
    }

    #[inline(always)]
    fn unlock(&self, _: &Guest, (): ()) {
        // SAFETY: the contract of `Lock`: only the CPU that holds the lock calls this.
        unsafe { self.raw.unlock() };
        H::released(&self.sleepers, L::LETS_IN);
    }
}

impl<L: Scoped, H: Hook> Foreign<L, H> {
    #[inline(always)]
    pub(crate) fn section(&self, section: impl FnOnce()) {
        H::asking(&self.sleepers);
        self.raw.section(|| {
            H::holding(&self.sleepers);
            section();
        });
        H::released(&self.sleepers, L::LETS_IN);
    }
}

/// spin's SpinMutex: test and test-and-set.
impl<H: Hook> Raw for spin::mutex::SpinMutex<(), H> {
    const NEW: Self = Self::new(());
    const LETS_IN: Wake = Wake::One;
}

impl<H: Hook> Open for spin::mutex::SpinMutex<(), H> {
    #[inline(always)]
    fn lock(&self) {
        forget(self.lock());
    }

    #[inline(always)]
    fn try_lock(&self) -> bool {
        self.try_lock().map(forget).is_some()
    }

    #[inline(always)]
    unsafe fn unlock(&self) {
        // SAFETY: the caller's contract.
        unsafe { self.force_unlock() };
    }
}

/// spin's TicketMutex.
impl<H: Hook> Raw for spin::mutex::TicketMutex<(), H> {
    const NEW: Self = Self::new(());
    const LETS_IN: Wake = Wake::All;
}

impl<H: Hook> Open for spin::mutex::TicketMutex<(), H> {
    #[inline(always)]
    fn lock(&self) {
        forget(self.lock());
    }

    #[inline(always)]
    fn try_lock(&self) -> bool {
        self.try_lock().map(forget).is_some()
    }

    #[inline(always)]
    unsafe fn unlock(&self) {
        // SAFETY: the caller's contract.
        unsafe { self.force_unlock() };
    }
}

/// spinning_top's Spinlock: test and test-and-set.
impl<H: Hook> Raw for lock_api::Mutex<RawSpinlock<H>, ()>
where
    RawSpinlock<H>: Sync,
{
    const NEW: Self = Self::new(());
    const LETS_IN: Wake = Wake::One;
}

impl<H: Hook> Open for lock_api::Mutex<RawSpinlock<H>, ()>
where
    RawSpinlock<H>: Sync,
{
    #[inline(always)]
    fn lock(&self) {
        forget(self.lock());
    }

    #[inline(always)]
    fn try_lock(&self) -> bool {
        self.try_lock().map(forget).is_some()
    }

    #[inline(always)]
    unsafe fn unlock(&self) {
        // SAFETY: the caller's contract; the guard of this lock is a mark without content.
        unsafe { self.force_unlock(lock_api::GuardSend::new()) };
    }
}

/// mcslock's raw lock: a queue of nodes on the waiters' stacks.
impl<H: Hook> Raw for mcslock::raw::Mutex<(), H> {
    const NEW: Self = Self::new(());
    const LETS_IN: Wake = Wake::All;
}

impl<H: Hook> Scoped for mcslock::raw::Mutex<(), H> {
    #[inline(always)]
    fn section(&self, section: impl FnOnce()) {
        self.lock_then(|()| section());
    }
}

/// mcslock's barging lock: test-and-set before a queue, whose head is the only one to wait with `H`.
///
/// The queue waits with `Q`, in its unlock too (for a successor that has not linked itself yet), and that unlock is
/// inside the crate's lock: a hook that sleeps there might never be woken.
impl<H: Hook, Q: Hook<Sleepers = ()>> Raw for mcslock::barging::Mutex<(), H, Q> {
    const NEW: Self = Self::new(());
    const LETS_IN: Wake = Wake::One;
}

impl<H: Hook, Q: Hook<Sleepers = ()>> Scoped for mcslock::barging::Mutex<(), H, Q> {
    #[inline(always)]
    fn section(&self, section: impl FnOnce()) {
        self.lock_then(|_guard| section());
    }
}
