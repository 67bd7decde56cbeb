//! The lock of the run as a part of other structures of this guest: grant tables, queues of reader-writer locks.
//!
//! Such a structure has locks by the thousand, embedded in it, so it takes those that are small, need no token and are zeros when
//! free (`IS_PART`). It is compiled once for each size of a lock, and calls its locks at sites, as sections do.
#![expect(unsafe_code, reason = "locks whose kind the run decides")]

use core::sync::atomic::{AtomicU32, Ordering};

use haltkick_grants::Kernel;
use haltkick_locks::Lock;

use crate::cpu::percpu::{boot, this};
use crate::cpu::time::{iterations, now, work};
use crate::lock::calls;
use crate::lock::platform::Guest;
use crate::lock::registry::form_of_run;

/// A lock of the run's kind, which has `WORDS` words; with 0 it is no lock.
pub(crate) struct SiteLock<const WORDS: usize>([AtomicU32; WORDS]);

impl<const WORDS: usize> SiteLock<WORDS> {
    fn address(&self) -> *const () {
        self.0.as_ptr().cast()
    }
}

impl<const WORDS: usize> Lock<Guest> for SiteLock<WORDS> {
    type Token = ();

    #[inline(always)]
    fn lock(&self, _: &Guest) {
        if WORDS > 0 {
            // SAFETY: `WORDS` is at least `words()`. `Form::prepare` has checked that the run's lock is a part (`IS_PART`: it needs no
            // token), and that zeros are a free one. Structures live as long as the guest.
            unsafe { calls::lock_at(self.address()) }
        }
    }

    fn try_lock(&self, _: &Guest) -> Option<()> {
        unreachable!("no structure of this guest tries")
    }

    #[inline(always)]
    fn unlock(&self, _: &Guest, (): ()) {
        if WORDS > 0 {
            // SAFETY: as in `lock`, by which this vCPU has acquired it.
            unsafe { calls::unlock_at(self.address()) }
        }
    }
}

/// The kernel of structures whose spinlocks are the run's, of `WORDS` words; with 0 they have no locks.
pub(crate) enum Sited<const WORDS: usize> {}

impl<const WORDS: usize> Kernel for Sited<WORDS> {
    type Lock = SiteLock<WORDS>;
    type Domain = Guest;

    #[inline(always)]
    fn new_lock() -> SiteLock<WORDS> {
        SiteLock([const { AtomicU32::new(0) }; WORDS])
    }

    #[inline(always)]
    fn domain() -> &'static Guest {
        &Guest
    }

    /// `--hold`: what changing a page table costs. A sign of life for the watchdog, too: under a slow lock a request takes
    /// seconds.
    fn page_table_work() {
        // Relaxed: the VMM looks whether it changes.
        this().activity.since_tsc.store(now(), Ordering::Relaxed);
        let hold = boot().hold_ns;
        if hold != 0 {
            work(iterations(hold));
        }
    }
}

/// The kernel of structures without a lock.
pub(crate) type NoLocks = Sited<0>;

/// Words of the locks of this run.
pub(crate) fn words() -> usize {
    form_of_run().calls.lock_bytes as usize / size_of::<u32>()
}

/// Declares workloads on structures whose spinlocks are the lock of the run: what a vCPU does where they are of
/// kernel `$kernel`. Without a lock it does `$without`: the same work, without contention.
macro_rules! workloads_on_parts {
    ($times:tt, $without:expr; $($order:literal $name:literal, $summary:literal, |$kernel:ident| $run:expr;)+) => {$(
        $crate::lock::registry::workload! {
            $order $name, $summary, [CHECKS_AT_REST NEEDS_PARTS IDEAL_IS_LOCK_FREE], $times => || {
                fn with_parts<$kernel: haltkick_grants::Kernel>() {
                    $run;
                }
                match $crate::lock::part::words() {
                    _ if !$crate::lock::calls::excludes() => $without,
                    1 => with_parts::<$crate::lock::part::Sited<1>>(),
                    _ => with_parts::<$crate::lock::part::Sited<2>>(),
                }
            };
        }
    )+};
}

pub(crate) use workloads_on_parts;
