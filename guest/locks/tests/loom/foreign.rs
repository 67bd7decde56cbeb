//! Another crate's lock whose waiters sleep by a hook between two looks at it.

use haltkick_locks::{Lock, Platform, SleeperDomain, Sleepers, Wake};
use loom::sync::atomic::{AtomicU32, Ordering::*};

use crate::model::{Bounds, Cpus, check};

/// Test-and-test-and-set: its looks are loads, which later or earlier accesses may pass.
struct Foreign {
    held: AtomicU32,
    sleepers: Sleepers<1>,
}

impl Foreign {
    fn new() -> Self {
        Self { held: AtomicU32::new(0), sleepers: Sleepers::new() }
    }

    fn take(&self) -> bool {
        self.held.load(Relaxed) == 0 && self.held.compare_exchange(0, 1, Acquire, Relaxed).is_ok()
    }
}

impl<const CPUS: usize> Lock<SleeperDomain<Cpus, CPUS>> for Foreign {
    type Token = ();

    fn lock(&self, domain: &SleeperDomain<Cpus, CPUS>) {
        domain.asking();
        // Its patience begins, and is over: a pause would let loom assume that the next look sees something new.
        domain.is_patient();
        while !self.take() {
            domain.relax(&self.sleepers);
        }
        domain.holding(&self.sleepers);
    }

    fn try_lock(&self, _: &SleeperDomain<Cpus, CPUS>) -> Option<()> {
        self.take().then_some(())
    }

    fn unlock(&self, domain: &SleeperDomain<Cpus, CPUS>, (): ()) {
        self.held.store(0, Release);
        domain.released(&self.sleepers, Wake::One);
    }
}

/// A domain in which time has begun: patience that is over is seen to be at the second look.
fn domain(machine: Cpus) -> SleeperDomain<Cpus, 2> {
    machine.pause();
    SleeperDomain::new(machine)
}

#[test]
fn no_sleeper_of_a_foreign_lock_is_forgotten() {
    let bounds = Bounds { rounds: 1, preemptions: 3, pauses: 6 };
    check(2, bounds, domain, Foreign::new, |_| {});
}
