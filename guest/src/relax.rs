//! What a waiter of somebody else's lock does between two looks at it: the relax hooks that the crates of
//! [`foreign`](crate::foreign) call.
//!
//! A hook is a function without arguments: it knows neither the lock nor the place in its queue. What it needs to know
//! the lock's wrapper leaves in [`WAITING`] before it calls the crate.
#![expect(unsafe_code, reason = "mcslock's trait for hooks is unsafe to implement")]

use core::hint::spin_loop;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering, fence};

use haltkick_hypercalls::MAX_VCPUS;
use haltkick_locks::{Activity, CachePadded};

use crate::percpu::{boot, cpu};
use crate::{activity, hypercall, time};

/// A way to wait, and what the wrapper of a lock has to do for it.
pub(crate) trait Hook:
    spin::RelaxStrategy + spinning_top::relax::Relax + mcslock::relax::Relax + 'static
{
    /// What each lock must keep for its waiters.
    type Sleepers: Sync + 'static;
    /// Nobody waits.
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

/// Whom an unlock has to wake.
#[derive(Clone, Copy)]
pub(crate) enum Wake {
    /// Any one: the lock is free to whoever comes first.
    One,
    /// All: the lock is free to one of them, and only that one knows.
    All,
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
    const CPU_BYTES: usize = size_of::<CachePadded<Waiting>>();

    #[inline(always)]
    fn asking((): &()) {
        WAITING[cpu()].begin();
    }

    #[inline]
    fn relax() {
        announce();
        if WAITING[cpu()].is_patient() {
            spin_loop();
        } else {
            hypercall::yield_to(None);
            WAITING[cpu()].begin();
        }
    }
}

/// Spins for the threshold, then sleeps until an unlock.
///
/// The crate knows nothing of it, so the wrapper wakes: a waiter enters itself into the lock's [`Sleepers`], has the
/// crate look once more, and sleeps only at the next call. So either it finds the lock free at that look, or the
/// unlock finds it in the set: case T1 of the locks with a paravirtual form of their own.
#[derive(Default)]
pub(crate) struct Halt;
hook!(Halt);

impl Hook for Halt {
    type Sleepers = Sleepers;
    const NEW: Sleepers = Sleepers::new();
    const CPU_BYTES: usize = size_of::<CachePadded<Waiting>>();

    #[inline(always)]
    fn asking(sleepers: &Sleepers) {
        let waiting = &WAITING[cpu()];
        waiting.begin();
        // Relaxed, here and below: only this vCPU accesses its own `Waiting`.
        waiting.sleepers.store(core::ptr::from_ref(sleepers).cast_mut(), Ordering::Relaxed);
    }

    /// From here on a wait is the lock's own business, for a waiter that has not linked itself yet: nobody would end
    /// a sleep.
    #[inline(always)]
    fn holding(sleepers: &Sleepers) {
        let waiting = &WAITING[cpu()];
        waiting.sleepers.store(null_mut(), Ordering::Relaxed);
        if waiting.registered.load(Ordering::Relaxed) {
            waiting.registered.store(false, Ordering::Relaxed);
            // Before this vCPU's own unlock, so that whoever still finds it there knows of an unlock to come.
            sleepers.remove(cpu());
        }
    }

    #[inline(always)]
    fn released(sleepers: &Sleepers, wake: Wake) {
        // The lock is free before the set is read; pairs with the LOCKed insertion in `relax`.
        fence(Ordering::SeqCst);
        sleepers.wake(wake);
    }

    #[inline]
    fn relax() {
        announce();
        let waiting = &WAITING[cpu()];
        let sleepers = waiting.sleepers.load(Ordering::Relaxed);
        if sleepers.is_null() || waiting.is_patient() {
            spin_loop();
        } else if waiting.registered.load(Ordering::Relaxed) {
            hypercall::wait();
            // Whoever woke this vCPU has taken it out of the set.
            waiting.registered.store(false, Ordering::Relaxed);
        } else {
            waiting.registered.store(true, Ordering::Relaxed);
            // SAFETY: `asking` stored a reference, and `holding` takes it away before the lock's function returns.
            unsafe { &*sleepers }.insert(cpu());
        }
    }
}

/// Tells the VMM that this vCPU waits, which the crates do not know to do.
#[inline(always)]
fn announce() {
    activity::announce(Activity::Waiter);
}

/// What a hook remembers from one call to the next. One per vCPU: the workloads hold one lock at a time.
struct Waiting {
    /// TSC at which the spinning began.
    since: AtomicU64,
    /// The set of the lock that is asked for; null: this vCPU does not ask.
    sleepers: AtomicPtr<Sleepers>,
    /// This vCPU has entered itself there, and may still be in it.
    registered: AtomicBool,
}

static WAITING: [CachePadded<Waiting>; MAX_VCPUS] = [const { CachePadded::new(Waiting::new()) }; MAX_VCPUS];

impl Waiting {
    const fn new() -> Self {
        Self {
            since: AtomicU64::new(0),
            sleepers: AtomicPtr::new(null_mut()),
            registered: AtomicBool::new(false),
        }
    }

    /// The spinning begins with the next [`Waiting::is_patient`].
    #[inline(always)]
    fn begin(&self) {
        self.since.store(0, Ordering::Relaxed);
    }

    /// Whether the threshold is still ahead.
    #[inline]
    fn is_patient(&self) -> bool {
        let now = time::now();
        match self.since.load(Ordering::Relaxed) {
            0 => {
                self.since.store(now, Ordering::Relaxed);
                true
            }
            since => now.wrapping_sub(since) < boot().spin_threshold_ticks,
        }
    }
}

/// The vCPUs that sleep, or are about to, until one lock is released.
pub(crate) struct Sleepers([AtomicU64; MAX_VCPUS / 64]);

impl Sleepers {
    const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; MAX_VCPUS / 64])
    }

    /// LOCKed, and so a full fence: the caller's next look at the lock comes after it.
    fn insert(&self, cpu: usize) {
        self.0[cpu / 64].fetch_or(1 << (cpu % 64), Ordering::SeqCst);
    }

    /// Whether `cpu` was still in it.
    fn remove(&self, cpu: usize) -> bool {
        let bit = 1 << (cpu % 64);
        self.0[cpu / 64].fetch_and(!bit, Ordering::SeqCst) & bit != 0
    }

    /// Kicks one or all; the first is the next after the calling vCPU, by number and around.
    #[inline]
    fn wake(&self, wake: Wake) {
        let vcpus = boot().vcpus as usize;
        // Relaxed: the caller's fence orders it.
        if self.0[..vcpus.div_ceil(64)].iter().all(|word| word.load(Ordering::Relaxed) == 0) {
            return;
        }
        let first = cpu() + 1;
        for cpu in (first..vcpus).chain(0..first) {
            let there = self.0[cpu / 64].load(Ordering::Relaxed) & 1 << (cpu % 64) != 0;
            if there && self.remove(cpu) {
                hypercall::kick(cpu as u32);
                if let Wake::One = wake {
                    return;
                }
            }
        }
    }
}
