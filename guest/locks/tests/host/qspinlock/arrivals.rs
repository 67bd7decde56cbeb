//! How each acquisition came about, and in which order CPUs are served.

use std::{sync::Mutex, thread, time::Duration};

use haltkick_locks::*;

use super::Stage;
use crate::support::{Cpus, Signal};

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
    assert_eq!(stage.counter.get(), cpus as u64 - 1);
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

/// CPUs arrive one by one while CPU 0 holds the lock; they must be served in that order.
fn served_in_order<M: Mode, W: Word>() {
    let stage = Stage::<M, W>::new(Cpus::new(6, Duration::from_secs(3600)));
    let arrivals: [Signal; 6] = Default::default();
    let served = Mutex::new(Vec::new());
    stage.host.run(|cpu| {
        if cpu == 0 {
            stage.lock();
            for (i, arrival) in arrivals.iter().enumerate().skip(1) {
                arrival.give();
                stage.host.until_paused(i, 10);
            }
            stage.unlock();
        } else {
            arrivals[cpu].await_it();
            stage.lock();
            served.lock().unwrap().push(cpu);
            stage.unlock();
        }
    });
    assert_eq!(served.into_inner().unwrap(), [1, 2, 3, 4, 5]);
}

fn native_serves_in_the_order_of_arrival<W: Word>() {
    served_in_order::<Native, W>();
}

fn v16_serves_in_the_order_of_arrival<W: Word>() {
    served_in_order::<V16, W>();
}
