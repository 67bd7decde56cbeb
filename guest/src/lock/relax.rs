//! Work of a waiter between two looks at a foreign lock: the relax hooks that the crates of
//! [`foreign`](crate::lock::foreign) call.
//!
//! A hook is a function without arguments: it knows neither the lock nor the place in its queue. What it needs to know
//! the lock's wrapper leaves in [`ASKED`] before it calls the crate.
#![expect(unsafe_code, reason = "mcslock's trait for hooks is unsafe to implement")]

use core::hint::spin_loop;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

use haltkick_hypercalls::MAX_VCPUS;
pub(crate) use haltkick_locks::Wake;
use haltkick_locks::{Activity, CachePadded, SleeperDomain};

use crate::cpu::percpu::cpu;
use crate::lock::platform::Guest;
use crate::monitor::hypercall;
use crate::observe::activity;

/// A way to wait, and what the wrapper of a lock has to do for it.
pub(crate) trait Hook:
    spin::RelaxStrategy + spinning_top::relax::Relax + mcslock::relax::Relax + 'static
{
    /// State that each lock must keep for its waiters.
    type Sleepers: Sync + 'static;
    /// State without waiters.
    const NEW: Self::Sleepers;
    /// Memory that each vCPU needs for it.
    const CPU_BYTES: usize = 0;

    /// This vCPU is about to ask for the lock.
    fn asking(_: &Self::Sleepers) {}

    /// This vCPU holds the lock.
    fn holding(_: &Self::Sleepers) {}

    /// This vCPU has released the lock.
    fn released(_: &Self::Sleepers, _: Wake) {}

    /// A look at the lock has failed.
    fn relax();
}

macro_rules! hook {
    ($name:ident) => {
        impl spin::RelaxStrategy for $name {
            #[inline(always)]
            fn relax() {
                <Self as Hook>::relax();
            }
        }

        impl spinning_top::relax::Relax for $name {
            #[inline(always)]
            fn relax(&mut self) {
                <Self as Hook>::relax();
            }
        }

        // SAFETY: `Hook::relax` does not panic: it indexes by the number of this vCPU and makes hypercalls.
        unsafe impl mcslock::relax::Relax for $name {
            #[inline(always)]
            fn new() -> Self {
                Self
            }

            #[inline(always)]
            fn relax(&mut self) {
                <Self as Hook>::relax();
            }
        }
    };
}

/// Spins: what all of these crates do by default.
#[derive(Default)]
pub(crate) struct Pause;
hook!(Pause);

impl Hook for Pause {
    type Sleepers = ();
    const NEW: () = ();

    #[inline(always)]
    fn relax() {
        announce();
        spin_loop();
    }
}

/// Spins for the threshold, then gives up the slice, to anyone.
#[derive(Default)]
pub(crate) struct YieldSlice;
hook!(YieldSlice);

impl Hook for YieldSlice {
    type Sleepers = ();
    const NEW: () = ();
    const CPU_BYTES: usize = WAITING_BYTES;

    #[inline(always)]
    fn asking((): &()) {
        WAITING.asking();
    }

    #[inline]
    fn relax() {
        announce();
        if WAITING.is_patient() {
            spin_loop();
        } else {
            hypercall::yield_to(None);
            WAITING.asking();
        }
    }
}

/// Spins for the threshold, then sleeps until an unlock: see `haltkick_locks::SleeperDomain`.
#[derive(Default)]
pub(crate) struct Halt;
hook!(Halt);

impl Hook for Halt {
    type Sleepers = Sleepers;
    const NEW: Sleepers = Sleepers::new();
    const CPU_BYTES: usize = WAITING_BYTES + size_of::<CachePadded<AtomicPtr<Sleepers>>>();

    #[inline(always)]
    fn asking(sleepers: &Sleepers) {
        WAITING.asking();
        // Relaxed, here and below: only this vCPU accesses its own.
        ASKED[cpu()].store(core::ptr::from_ref(sleepers).cast_mut(), Ordering::Relaxed);
    }

    /// From here on a wait is the lock's own business, for a waiter that has not linked itself yet: a sleep
    /// would never be ended.
    #[inline(always)]
    fn holding(sleepers: &Sleepers) {
        ASKED[cpu()].store(null_mut(), Ordering::Relaxed);
        WAITING.holding(sleepers);
    }

    #[inline(always)]
    fn released(sleepers: &Sleepers, wake: Wake) {
        WAITING.released(sleepers, wake);
    }

    #[inline]
    fn relax() {
        let sleepers = ASKED[cpu()].load(Ordering::Relaxed);
        if sleepers.is_null() {
            announce();
            spin_loop();
        } else {
            // SAFETY: `asking` stored a reference, and `holding` takes it away before the lock's function returns.
            WAITING.relax(unsafe { &*sleepers });
        }
    }
}

/// Tells the VMM that this vCPU waits, which the crates do not know to do.
#[inline(always)]
fn announce() {
    activity::announce(Activity::Waiter);
}

/// The vCPUs that sleep, or are about to, until one lock is released.
pub(crate) type Sleepers = haltkick_locks::Sleepers<{ MAX_VCPUS / 64 }>;

/// State that a waiter keeps from one look at the lock to the next.
static WAITING: SleeperDomain<Guest, MAX_VCPUS> = SleeperDomain::new(Guest);
const WAITING_BYTES: usize = size_of::<SleeperDomain<Guest, MAX_VCPUS>>() / MAX_VCPUS;

/// The set of the lock that each vCPU asks for; null: it does not ask. One per vCPU: a vCPU waits for one lock at a time.
static ASKED: [CachePadded<AtomicPtr<Sleepers>>; MAX_VCPUS] =
    [const { CachePadded::new(AtomicPtr::new(null_mut())) }; MAX_VCPUS];
