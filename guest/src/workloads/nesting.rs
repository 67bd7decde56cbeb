//! Slow paths inside slow paths: what interrupts do to a queue spinlock, up to one level more than it has nodes for.
//!
//! Interrupts that come by chance (`interrupted`) hardly come to all of these. Here the platform of the locks
//! takes one at every pause: it acquires the next lock of five, whose own pauses acquire the one after. Every
//! vCPU also takes all five in order and holds them for a while, so that one that waits for the first finds the
//! others held, too, and comes to wait at five levels at once. Locks are only ever waited for in rising order,
//! so there is no circular wait.

use core::marker::PhantomData;
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
        [] => || if boot().flags.has(BootFlags::PARAVIRT) { run::<PvPacked>() } else { run::<NativePacked>() };
    "460" "selftest-nesting-whole", "the same with whole words",
        [IS_SELFTEST],
        [] => || if boot().flags.has(BootFlags::PARAVIRT) { run::<PvWhole>() } else { run::<NativeWhole>() };
}

/// The workload on one vCPU. Taking all five locks counts as one operation.
fn run<N: Nested>() {
    assert!(boot().lock_count as usize == LOCKS, "this workload needs 5 locks: --locks 5");
    let (hold, think) = (iterations(boot().hold_ns), iterations(boot().think_ns));
    until_closed(|| {
        (0..LOCKS).for_each(acquire::<N>);
        work(hold);
        (0..LOCKS).rev().for_each(release::<N>);
        work(think);
    });
}

fn acquire<N: Nested>(lock: usize) {
    // Relaxed: only this vCPU accesses it.
    let wanted = &WANTED[cpu()];
    let outer = wanted.load(Ordering::Relaxed);
    wanted.store(lock, Ordering::Relaxed);
    N::locks()[lock].lock(N::domain());
    wanted.store(outer, Ordering::Relaxed);
    activity::section_entered(&this().activity);
    oracle::enter(lock);
}

fn release<N: Nested>(lock: usize) {
    oracle::leave(lock);
    N::locks()[lock].unlock(N::domain(), ());
    activity::section_left(&this().activity);
}

/// The lock that each vCPU is waiting for, or was when it was interrupted.
static WANTED: [CachePadded<AtomicUsize>; MAX_VCPUS] =
    [const { CachePadded::new(AtomicUsize::new(0)) }; MAX_VCPUS];

/// This guest, interrupted at every pause.
struct Interrupted<N>(PhantomData<fn() -> N>);

impl<N: Nested> Delegate for Interrupted<N> {
    type Platform = Guest;

    fn platform(&self) -> &Guest {
        &Guest
    }

    fn pause(&self) {
        Guest.pause();
        let next = WANTED[cpu()].load(Ordering::Relaxed) + 1;
        if next < LOCKS {
            acquire::<N>(next);
            release::<N>(next);
        }
    }
}

/// Five locks of one form in one layout.
trait Nested: Sized + 'static {
    type Mode: Mode;
    type Layout: Word;

    fn locks() -> &'static [CachePadded<QSpinLock<Self::Mode, Self::Layout>>; LOCKS];
    fn domain() -> &'static QSpinDomain<Interrupted<Self>, MAX_VCPUS, MAX_VCPUS>;
}

macro_rules! nested {
    ($name:ident, $mode:ident, $layout:ident) => {
        enum $name {}

        impl Nested for $name {
            type Mode = $mode;
            type Layout = $layout;

            fn locks() -> &'static [CachePadded<QSpinLock<$mode, $layout>>; LOCKS] {
                static FIVE: [CachePadded<QSpinLock<$mode, $layout>>; LOCKS] =
                    [const { CachePadded::new(QSpinLock::new()) }; LOCKS];
                &FIVE
            }

            fn domain() -> &'static QSpinDomain<Interrupted<Self>, MAX_VCPUS, MAX_VCPUS> {
                static DOMAIN: QSpinDomain<Interrupted<$name>, MAX_VCPUS, MAX_VCPUS> =
                    QSpinDomain::new(Interrupted(PhantomData));
                &DOMAIN
            }
        }
    };
}

nested!(NativePacked, Native, Packed);
nested!(NativeWhole, Native, Whole);
nested!(PvPacked, Pv, Packed);
nested!(PvWhole, Pv, Whole);
