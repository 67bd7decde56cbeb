//! Locks whose waiters queue, other than the queue spinlock.

use haltkick_locks::*;
use haltkick_testing::{Cpus, assert_reached};

use crate::explore;

#[test]
fn gcr_with_four_cpus() {
    explore(4, 2, GcrDomain::<Cpus, 4>::new, Gcr::new, |_| {});
}

#[test]
fn gcr_with_eight_cpus() {
    explore(8, 2, GcrDomain::<Cpus, 8>::new, Gcr::new, |_| {});
    assert_reached([Event::PvWaitHead, Event::PvWaitNode, Event::PvSpuriousWakeup, Event::PvKickWake]);
}

#[test]
fn mcs_with_four_cpus() {
    explore(4, 2, McsDomain::<Cpus, 4>::new, Mcs::new, |_| {});
}

/// Eight CPUs whose limits are drawn at each look may send each other away for longer than a schedule may last.
#[test]
fn rqspinlock_with_four_cpus() {
    explore(4, 2, RqSpinDomain::<Cpus, 4>::new, RqSpinLock::<Whole>::new, |domain| {
        assert_eq!([0, 1, 2, 3].map(|cpu| domain.held_by(cpu)), [0; 4]);
    });
    assert_reached([Event::LockTimedOut, Event::LockDissolved, Event::LockPending]);
}

#[test]
fn owner_yield_with_four_cpus() {
    explore(4, 2, OwnerYieldDomain::<Cpus, 4>::new, OwnerYield::new, |_| {});
}
