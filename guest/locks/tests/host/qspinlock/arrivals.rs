//! How each acquisition came about, and in which order CPUs are served.

use std::thread;

use haltkick_locks::*;

use super::{Domain, Stage};
use crate::support::{self, Cpus};

on_both_layouts! {
    native_acquisitions_are_fast_pending_or_queued
    pv_acquisitions_are_fast_stolen_or_queued
    strict_queues_serve_in_the_order_of_arrival
}

/// CPU 0 holds the lock until all others wait for it. They come by the queue or by `another` way, and `never` by a third one.
fn all_wait_for_cpu_0<M: Mode, W: Word>(another: Event, never: Event) -> &'static Stage<M, W> {
    let stage = Stage::<M, W>::new(Cpus::impatient(8));
    stage.while_held(
        || {
            let waiting = || stage.host.doing(Activity::Waiter) + stage.host.doing(Activity::Head);
            while waiting() < 7 {
                thread::yield_now();
            }
        },
        |_| stage.visit(),
    );
    assert_eq!(stage.counter.get(), 7);
    assert_eq!(stage.domain.sleeping_heads(), 0);
    let slow = stage.host.events(another) + stage.host.events(Event::LockSlowpath);
    assert_eq!(slow, 7, "CPU 0 was fast, the others were not");
    assert_eq!(stage.host.events(never), 0);
    stage
}

fn native_acquisitions_are_fast_pending_or_queued<W: Word>() {
    all_wait_for_cpu_0::<Native, W>(Event::LockPending, Event::PvLockStealing);
}

fn pv_acquisitions_are_fast_stolen_or_queued<W: Word>() {
    let stage = all_wait_for_cpu_0::<Pv, W>(Event::PvLockStealing, Event::LockPending);
    let events = |event| stage.host.events(event);
    assert!(events(Event::PvKickWake) <= events(Event::PvKickUnlock));
    assert_eq!(events(Event::SleepKick), 0, "those are of other locks");
}

fn strict_queues_serve_in_the_order_of_arrival<W: Word>() {
    support::serves_in_the_order_of_arrival(Domain::new, &QSpinLock::<Native, W>::new());
    support::serves_in_the_order_of_arrival(Domain::new, &QSpinLock::<V16, W>::new());
}
