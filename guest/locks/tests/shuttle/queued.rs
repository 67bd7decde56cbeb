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
    for event in [Event::PvWaitHead, Event::PvWaitNode, Event::PvSpuriousWakeup, Event::PvKickWake] {
        assert_reached(event);
    }
}

#[test]
fn mcs_with_four_cpus() {
    explore(4, 2, McsDomain::<Cpus, 4>::new, Mcs::new, |_| {});
}

#[test]
fn mcs_tp_with_four_cpus() {
    explore(4, 2, McsTpDomain::<Cpus, 4>::new, McsTp::new, |_| {});
}

#[test]
fn mcs_tp_with_eight_cpus() {
    explore(8, 2, McsTpDomain::<Cpus, 8>::new, McsTp::new, |_| {});
    for event in [Event::LockSkipped, Event::LockYielded] {
        assert_reached(event);
    }
}

#[test]
fn cna_live_with_four_cpus() {
    explore(4, 2, CnaDomain::<Cpus, 4>::new, CnaLive::new, |_| {});
}

#[test]
fn cna_live_with_eight_cpus() {
    explore(8, 2, CnaDomain::<Cpus, 8>::new, CnaLive::new, |_| {});
    assert_reached(Event::LockSkipped);
}

#[test]
fn flexguard_with_four_cpus() {
    explore(4, 2, FlexGuardDomain::<Cpus, 4>::new, FlexGuard::<1>::new, |_| {});
}

#[test]
fn flexguard_with_eight_cpus() {
    explore(8, 2, FlexGuardDomain::<Cpus, 8>::new, FlexGuard::<1>::new, |_| {});
    for event in [Event::LockSlowpath, Event::PvWaitNode, Event::PvSpuriousWakeup, Event::PvKickWake] {
        assert_reached(event);
    }
}

/// Eight CPUs whose limits are drawn at each look may send each other away for longer than a schedule may last.
#[test]
fn rqspinlock_with_four_cpus() {
    explore(4, 2, RqSpinDomain::<Cpus, 4>::new, RqSpinLock::<Whole>::new, |domain| {
        assert_eq!([0, 1, 2, 3].map(|cpu| domain.held_by(cpu)), [0; 4]);
    });
    for event in [Event::LockTimedOut, Event::LockDissolved, Event::LockPending] {
        assert_reached(event);
    }
}

#[test]
fn clh_with_four_cpus() {
    explore(4, 2, ClhDomain::<Cpus, 4, 2>::new, Clh::new, |_| {});
}

#[test]
fn owner_yield_with_four_cpus() {
    explore(4, 2, OwnerYieldDomain::<Cpus, 4>::new, OwnerYield::new, |_| {});
}

#[test]
fn powerpc_with_four_cpus() {
    explore(4, 2, OwnerYieldDomain::<Cpus, 4>::new, Powerpc::new, |_| {});
    assert_reached(Event::LockYielded);
}
