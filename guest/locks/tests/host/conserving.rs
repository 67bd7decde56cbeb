//! What the work-conserving queue spinlock does with what the host tells it, and how its head waits.

use std::{thread, time::Duration};

use haltkick_locks::*;

use crate::{
    qspinlock::Stage,
    support::{Host, Signal},
};

const EVER: Duration = Duration::from_secs(3600);

type Conserving = Stage<WorkConserving, DefaultWord>;

#[test]
fn a_slice_that_is_about_to_end_is_given_up_before_the_lock_is_taken() {
    let stage = Conserving::new(Host::impatient(1));
    stage.host.run(|_| {
        stage.visit();
        assert_eq!(stage.host.slices_given_up(), 0);
        stage.host.set_slice_ends_soon(true);
        stage.lock();
        assert_eq!(stage.host.slices_given_up(), 1);
        stage.unlock();
        assert_eq!(stage.host.slices_given_up(), 1, "the owner is not asked");
    });
}

#[test]
fn nobody_sleeps_while_nobody_waits_for_a_physical_cpu() {
    let stage = Conserving::new(Host::impatient(3));
    stage.host.set_overcommitted(false);
    let held = Signal::default();
    stage.host.run(|cpu| {
        if cpu == 0 {
            stage.lock();
            held.give();
            stage.host.until_doing(1, Activity::Head);
            stage.host.until_paused(1, 500);
            stage.host.until_paused(2, 500);
            stage.unlock();
        } else {
            held.await_it();
            stage.visit();
        }
    });
    assert_eq!(stage.host.events(Event::PvWaitHead) + stage.host.events(Event::PvWaitNode), 0);
}

#[test]
fn a_head_takes_a_free_lock_without_having_forbidden_to_steal_it() {
    let stage = Conserving::new(Host::new(2, EVER));
    let held = Signal::default();
    stage.host.run(|cpu| {
        if cpu == 0 {
            stage.lock();
            held.give();
            stage.host.until_doing(1, Activity::Head);
            stage.unlock();
        } else {
            held.await_it();
            Host::hook(|point| assert_ne!(point, Point::HeadSpinning, "its tenure has not begun"));
            stage.visit();
        }
    });
    assert_eq!(stage.host.events(Event::LockSlowpath), 1);
}

/// CPU 1 is head and sleeps, CPU 2 sleeps behind it. CPU 1 wakes, and its tenure, of no length, is over.
#[test]
fn a_head_wakes_its_successor_before_it_has_the_lock() {
    let stage = Conserving::new(Host::impatient(3));
    let held = Signal::default();
    stage.host.run(|cpu| match cpu {
        0 => {
            stage.lock();
            held.give();
            stage.host.until_counted(1, Event::PvWaitNode);
            stage.host.kick(1);
            stage.host.until_counted(1, Event::PvSpuriousWakeup);
            stage.unlock();
        }
        1 => {
            held.await_it();
            stage.visit();
        }
        _ => {
            stage.host.until_counted(1, Event::PvWaitHead);
            stage.visit();
        }
    });
    assert_eq!(stage.domain.sleeping_heads(), 0);
}

/// CPU 2 waits behind CPU 1, which is courteous to CPU 0: that one has the lock back again and again.
#[test]
fn a_head_insists_when_its_tenure_is_over() {
    let stage = Conserving::new(Host::new(3, EVER));
    stage.host.set_patience(1, Duration::from_millis(1));
    let (held, done) = (Signal::default(), Signal::default());
    stage.host.run(|cpu| match cpu {
        0 => {
            stage.lock();
            held.give();
            stage.host.until_doing(1, Activity::Head);
            while !done.given() {
                stage.unlock();
                stage.lock();
                thread::yield_now();
            }
            stage.unlock();
        }
        1 => {
            held.await_it();
            stage.visit();
            done.give();
        }
        _ => {
            stage.host.until_doing(1, Activity::Head);
            stage.visit();
        }
    });
}
