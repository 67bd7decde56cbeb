//! Other people's locks in the same harness, each with its crate's own code and a relax hook of ours.
//!
//! `native` is the crate as it comes: it spins. The paravirtual forms replace what it does between two looks at the
//! lock, and show how far that gets with a lock that knows nothing of it (docs/locks.md).
#![expect(unsafe_code, reason = "unlocking without the guard that the crate gives out is unsafe")]

use core::mem::forget;

use haltkick_hypercalls::LockFlags;
use haltkick_locks::Lock;
use spinning_top::{RawSpinlock, lock_api};

use crate::lock::kind::{Closed, Kind};
use crate::lock::platform::Guest;
use crate::lock::registry::lock;
use crate::lock::relax::{Halt, Hook, Pause, Wake, YieldSlice};

/// A lock of another crate with the data that a hook keeps next to it.
pub(crate) struct Foreign<L, H: Hook> {
    raw: L,
    sleepers: H::Sleepers,
}

impl<L: Raw, H: Hook> Foreign<L, H> {
    pub(crate) const fn new() -> Self {
        Self { raw: L::NEW, sleepers: H::NEW }
    }
}

/// Properties of another crate's lock.
pub(crate) trait Raw: Sync {
    /// A free lock.
    const NEW: Self;
    /// CPUs that an unlock lets in.
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

/// Declares a lock of another crate.
macro_rules! kind {
    ($($name:ident: $lock:ty, $hook:ident;)+) => {$(
        pub(crate) enum $name {}

        impl Kind for $name {
            type Lock = Foreign<$lock, $hook>;
            type Token = ();
            type Domain = Guest;
            const CPU_BYTES: usize = $hook::CPU_BYTES;

            #[inline(always)]
            fn new() -> Self::Lock {
                Foreign::new()
            }

            #[inline(always)]
            fn domain() -> &'static Guest {
                &Guest
            }

            #[inline(always)]
            fn lock(lock: &Self::Lock) {
                Lock::lock(lock, &Guest);
            }

            #[inline(always)]
            fn unlock(lock: &Self::Lock, (): ()) {
                Lock::unlock(lock, &Guest, ());
            }
        }
    )+};
}

/// Declares a lock of another crate that is held for the length of a closure.
macro_rules! closed {
    ($($name:ident: $lock:ty, $hook:ident;)+) => {$(
        pub(crate) enum $name {}

        impl Closed for $name {
            type Lock = Foreign<$lock, $hook>;
            const CPU_BYTES: usize = $hook::CPU_BYTES + size_of::<mcslock::raw::MutexNode>();

            #[inline(always)]
            fn new() -> Self::Lock {
                Foreign::new()
            }

            #[inline(always)]
            fn section(lock: &Self::Lock, section: impl FnOnce()) {
                lock.section(section);
            }
        }
    )+};
}

type Spinlock<H> = lock_api::Mutex<RawSpinlock<H>, ()>;

kind! {
    SpinMutex: spin::mutex::SpinMutex<(), Pause>, Pause;
    SpinMutexHalt: spin::mutex::SpinMutex<(), Halt>, Halt;
    SpinMutexYield: spin::mutex::SpinMutex<(), YieldSlice>, YieldSlice;
    SpinTicket: spin::mutex::TicketMutex<(), Pause>, Pause;
    SpinTicketHalt: spin::mutex::TicketMutex<(), Halt>, Halt;
    SpinTicketYield: spin::mutex::TicketMutex<(), YieldSlice>, YieldSlice;
    SpinningTop: Spinlock<Pause>, Pause;
    SpinningTopHalt: Spinlock<Halt>, Halt;
    SpinningTopYield: Spinlock<YieldSlice>, YieldSlice;
}

closed! {
    Mcslock: mcslock::raw::Mutex<(), Pause>, Pause;
    McslockHalt: mcslock::raw::Mutex<(), Halt>, Halt;
    McslockYield: mcslock::raw::Mutex<(), YieldSlice>, YieldSlice;
    McslockBarging: mcslock::barging::Mutex<(), Pause, Pause>, Pause;
    McslockBargingHalt: mcslock::barging::Mutex<(), Halt, YieldSlice>, Halt;
    McslockBargingYield: mcslock::barging::Mutex<(), YieldSlice, YieldSlice>, YieldSlice;
}

lock! {
    "500" "spin-mutex", "spin's SpinMutex: test-and-set; paravirtual: its relax hook halts", LockFlags::NONE;
    native SpinMutex
    paravirt SpinMutexHalt
}

lock! {
    "510" "spin-mutex-yield", "spin's SpinMutex whose relax hook yields to anyone", LockFlags::NONE;
    paravirt SpinMutexYield
}

lock! {
    "520" "spin-ticket", "spin's TicketMutex; paravirtual: its relax hook halts, each unlock wakes all", LockFlags::NONE;
    native SpinTicket
    paravirt SpinTicketHalt
}

lock! {
    "530" "spin-ticket-yield", "spin's TicketMutex whose relax hook yields to anyone", LockFlags::NONE;
    paravirt SpinTicketYield
}

lock! {
    "540" "spinning-top", "spinning_top's Spinlock: test-and-set; paravirtual: its relax hook halts", LockFlags::NONE;
    native SpinningTop
    paravirt SpinningTopHalt
}

lock! {
    "550" "spinning-top-yield", "spinning_top's Spinlock whose relax hook yields to anyone", LockFlags::NONE;
    paravirt SpinningTopYield
}

lock! {
    "560" "mcslock", "mcslock's raw MCS lock; paravirtual: its relax hook halts, each unlock wakes all", LockFlags::NONE;
    native (closed Mcslock)
    paravirt (closed McslockHalt)
}

lock! {
    "570" "mcslock-yield", "mcslock's raw MCS lock whose relax hook yields to anyone", LockFlags::NONE;
    paravirt (closed McslockYield)
}

lock! {
    "580" "mcslock-barging",
    "mcslock's test-and-set before a queue; paravirtual: the head halts, the queue yields", LockFlags::NONE;
    native (closed McslockBarging)
    paravirt (closed McslockBargingHalt)
}

lock! {
    "590" "mcslock-barging-yield", "mcslock's test-and-set before a queue; both yield to anyone", LockFlags::NONE;
    paravirt (closed McslockBargingYield)
}
