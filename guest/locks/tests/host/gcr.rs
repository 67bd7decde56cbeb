//! Tests of the lock for which only a few CPUs race.

use std::time::Duration;

use haltkick_locks::*;

use crate::support::{self, Cpus, Signal, once_held, until};

type Stage = support::Stage<GcrDomain<Cpus, 4>, Gcr>;

fn stage(host: Cpus) -> &'static Stage {
    Stage::set_up(host, GcrDomain::new, Gcr::new())
}

/// The lock's holder does not count as one that races.
fn lock(stage: &Stage) {
    stage.lock();
    stage.host.section_entered();
}

fn unlock(stage: &Stage) {
    stage.unlock();
    stage.host.section_left();
}

/// CPU 0 holds the lock, CPU 1 races for it. CPUs 2 and 3 find that enough of them do, and sleep.
#[test]
fn cpus_that_queue_sleep_and_are_served_in_order() {
    let stage = stage(Cpus::impatient(4));
    once_held(
        &stage.host,
        || lock(stage),
        |()| {
            stage.host.until_counted(1, Event::PvWaitHead);
            stage.host.until_counted(1, Event::PvWaitNode);
            unlock(stage);
        },
        |cpu| {
            match cpu {
                1 => {}
                2 => stage.host.until_doing(1, Activity::Head),
                _ => stage.host.until_counted(1, Event::PvWaitHead),
            }
            lock(stage);
            stage.order.lock().unwrap().push(cpu);
            unlock(stage);
        },
    );
    assert_eq!(*stage.order.lock().unwrap(), [1, 2, 3]);
    assert_eq!(stage.host.events(Event::LockSlowpath), 2, "CPU 1 needs no node");
    assert!(stage.host.events(Event::PvKickUnlock) >= 2);
}

/// CPU 2 sleeps in the queue. CPUs 0 and 1 never rest, and one of them always races: CPU 2 is let in all the same.
#[test]
fn the_first_of_the_queue_gets_in_beside_two_that_never_rest() {
    let stage = stage(Cpus::impatient(3));
    let [held, queues, served] = Signal::several();
    // Once CPU 2 races, too, the other one may have to queue.
    let hold_while_the_other_rests = |cpu: usize| {
        let races = |cpu| stage.host.does(cpu, Activity::Head);
        until(|| served.given() || races(1 - cpu) || races(2));
    };
    stage.host.run(|cpu| {
        match cpu {
            0 => {
                lock(stage);
                held.give();
                hold_while_the_other_rests(0);
                queues.give();
                stage.host.until_counted(1, Event::PvWaitHead);
                unlock(stage);
            }
            1 => held.await_it(),
            _ => {
                queues.await_it();
                lock(stage);
                served.give();
                return unlock(stage);
            }
        }
        while !served.given() {
            lock(stage);
            hold_while_the_other_rests(cpu);
            unlock(stage);
        }
    });
}

#[test]
fn a_slice_that_is_about_to_end_is_given_up() {
    let stage = stage(Cpus::new(2, Duration::from_secs(3600)));
    once_held(
        &stage.host,
        || lock(stage),
        |()| {
            stage.host.until_doing(1, Activity::Head);
            stage.host.set_slice_ends_soon(true);
            unlock(stage);
        },
        |_| {
            for (given_up, when) in [(1, "when it saw the lock free"), (2, "before the fast path")] {
                lock(stage);
                assert_eq!(stage.host.slices_given_up(), given_up, "{when}");
                unlock(stage);
            }
        },
    );
}
