//! How each acquisition came about, and in which order CPUs are served.

use std::thread;

use haltkick_locks::*;

use super::{Domain, Stage};
use crate::support::{self, Cpus};

on_both_layouts! {
    native_acquisitions_are_fast_pending_or_queued
    pv_acquisitions_are_fast_stolen_or_queued
    native_serves_in_the_order_of_arrival
    v16_serves_in_the_order_of_arrival
}

/// CPU 0 holds the lock until all others wait for it.
fn all_wait_for_cpu_0<M: Mode, W: Word>(stage: &Stage<M, W>, cpus: usize) {
    stage.while_held(
        || {
            let waiting = || stage.host.doing(Activity::Waiter) + stage.host.doing(Activity::Head);
            while waiting() < cpus - 1 {
                thread::yield_now();
            }
        },
        |_| stage.visit(),
    );
    assert_eq!(stage.counter.get(), cpus - 1);
    assert_eq!(stage.domain.sleeping_heads(), 0);
}

fn native_acquisitions_are_fast_pending_or_queued<W: Word>() {
    let stage = Stage::<Native, W>::new(Cpus::impatient(8));
    all_wait_for_cpu_0(&stage, 8);
    let events = |event| stage.host.events(event);
    assert_eq!(
        events(Event::LockPending) + events(Event::LockSlowpath),
        7,
        "CPU 0 was fast, the others were not"
    );
    assert_eq!(events(Event::PvLockStealing), 0);
}

fn pv_acquisitions_are_fast_stolen_or_queued<W: Word>() {
    let stage = Stage::<Pv, W>::new(Cpus::impatient(8));
    all_wait_for_cpu_0(&stage, 8);
    let events = |event| stage.host.events(event);
    assert_eq!(
        events(Event::PvLockStealing) + events(Event::LockSlowpath),
        7,
        "CPU 0 was fast, the others were not"
    );
    assert_eq!(events(Event::LockPending), 0);
    assert!(events(Event::PvKickWake) <= events(Event::PvKickUnlock));
    assert_eq!(events(Event::SleepKick), 0, "those are of other locks");
}

fn native_serves_in_the_order_of_arrival<W: Word>() {
    support::serves_in_the_order_of_arrival(Domain::new, &QSpinLock::<Native, W>::new());
}

fn v16_serves_in_the_order_of_arrival<W: Word>() {
    support::serves_in_the_order_of_arrival(Domain::new, &QSpinLock::<V16, W>::new());
}
