//! Slow paths inside slow paths: what interrupts do to a queue spinlock, up to one level more than it has nodes for.
//!
//! Interrupts that come by chance (`interrupted`) hardly come to all of these. Here the platform of the locks
//! takes one at every pause: it acquires the next lock of five, whose own pauses acquire the one after. Every
//! vCPU also takes all five in order and holds them for a while, so that one that waits for the first finds the
//! others held, too, and comes to wait at five levels at once. Locks are only ever waited for in rising order,
//! so there is no circular wait.

use core::sync::atomic::{AtomicUsize, Ordering};

use haltkick_hypercalls::{BootFlags, MAX_VCPUS};
use haltkick_locks::{
    CachePadded, Delegate, LEVELS, Lock as _, Mode, Native, Packed, Platform as _, Pv, QSpinDomain,
    QSpinLock, Whole, Word,
};

use crate::cpu::percpu::{boot, cpu, this};
use crate::cpu::time::{iterations, work};
use crate::lock::measure::until_closed;
use crate::lock::oracle;
use crate::lock::platform::Guest;
use crate::lock::registry::workload;
use crate::observe::activity;

/// One more than there are nodes, so that the last one has none.
const LOCKS: usize = LEVELS + 1;

workload! {
    "450" "selftest-nesting", "slow paths interrupted in slow paths, five levels deep, packed words (--locks 5)",
        [IS_SELFTEST],
        [] => || if boot().flags.has(BootFlags::PARAVIRT) { PV_PACKED.run() } else { NATIVE_PACKED.run() };
    "460" "selftest-nesting-whole", "the same with whole words",
        [IS_SELFTEST],
        [] => || if boot().flags.has(BootFlags::PARAVIRT) { PV_WHOLE.run() } else { NATIVE_WHOLE.run() };
}

static NATIVE_PACKED: Five<Native, Packed> = Five::new(|lock| NATIVE_PACKED.visit(lock));
static NATIVE_WHOLE: Five<Native, Whole> = Five::new(|lock| NATIVE_WHOLE.visit(lock));
static PV_PACKED: Five<Pv, Packed> = Five::new(|lock| PV_PACKED.visit(lock));
static PV_WHOLE: Five<Pv, Whole> = Five::new(|lock| PV_WHOLE.visit(lock));

/// Five locks of one form in one layout.
struct Five<M, W> {
    locks: [CachePadded<QSpinLock<M, W>>; LOCKS],
    domain: QSpinDomain<Interrupted, MAX_VCPUS, MAX_VCPUS>,
}

impl<M: Mode, W: Word> Five<M, W> {
    /// Locks whose waiters are interrupted by their own `visit`.
    const fn new(visit: fn(usize)) -> Self {
        let locks = [const { CachePadded::new(QSpinLock::new()) }; LOCKS];
        Self { locks, domain: QSpinDomain::new(Interrupted(visit)) }
    }

    /// The workload on one vCPU. Taking all five locks counts as one operation.
    fn run(&self) {
        assert!(boot().lock_count as usize == LOCKS, "this workload needs 5 locks: --locks 5");
        let (hold, think) = (iterations(boot().hold_ns), iterations(boot().think_ns));
        until_closed(|| {
            (0..LOCKS).for_each(|lock| self.acquire(lock));
            work(hold);
            (0..LOCKS).rev().for_each(|lock| self.release(lock));
            work(think);
        });
    }

    fn acquire(&self, lock: usize) {
        // Relaxed: only this vCPU accesses it.
        let wanted = &WANTED[cpu()];
        let outer = wanted.load(Ordering::Relaxed);
        wanted.store(lock, Ordering::Relaxed);
        self.locks[lock].lock(&self.domain);
        wanted.store(outer, Ordering::Relaxed);
        activity::section_entered(&this().activity);
        oracle::enter(lock);
    }

    fn release(&self, lock: usize) {
        oracle::leave(lock);
        self.locks[lock].unlock(&self.domain, ());
        activity::section_left(&this().activity);
    }

    fn visit(&self, lock: usize) {
        self.acquire(lock);
        self.release(lock);
    }
}

/// The lock that each vCPU is waiting for, or was when it was interrupted.
static WANTED: [CachePadded<AtomicUsize>; MAX_VCPUS] =
    [const { CachePadded::new(AtomicUsize::new(0)) }; MAX_VCPUS];

/// This guest, interrupted at every pause by what takes the lock of a number, and releases it.
struct Interrupted(fn(usize));

impl Delegate for Interrupted {
    type Platform = Guest;

    fn platform(&self) -> &Guest {
        &Guest
    }

    fn pause(&self) {
        Guest.pause();
        let next = WANTED[cpu()].load(Ordering::Relaxed) + 1;
        if next < LOCKS {
            (self.0)(next);
        }
    }
}
