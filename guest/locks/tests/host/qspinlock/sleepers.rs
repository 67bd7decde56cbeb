//! Sleeping, kicking, and overtaking a sleeper.

use std::{
    cell::Cell,
    thread,
    time::{Duration, Instant},
};

use haltkick_locks::*;

use super::{Domain, Stage};
use crate::support::{Cpus, Signal};

on_both_layouts! {
    a_newcomer_steals_while_the_head_sleeps
    a_newcomer_queues_while_the_head_spins
    a_waiter_behind_a_sleeper_sleeps_at_once
    one_kick_wakes_a_waiter_that_became_head_asleep
    a_threshold_by_count_is_so_many_pauses_whatever_the_clock_says
}

/// CPU 0 holds the lock; CPU 1 waits, and is kept at `point`. When CPU 0 has left, CPU 2 arrives; CPU 1 goes on when that one
/// has had the lock, if it overtakes, or else is in the queue.
pub(super) fn newcomer_meets_waiter<M: Mode, W: Word>(
    point: Point,
    newcomer_overtakes: bool,
) -> &'static Stage<M, W> {
    let stage = Stage::<M, W>::new(Cpus::new(3, Duration::from_millis(1)));
    let [held, there, left, done] = Signal::several();
    stage.host.run(|cpu| match cpu {
        0 => {
            stage.lock();
            held.give();
            there.await_it();
            stage.unlock();
            left.give();
        }
        1 => {
            held.await_it();
            Cpus::stand_at(point, there, done);
            stage.visit();
        }
        _ => {
            left.await_it();
            if !newcomer_overtakes {
                Cpus::give_at(Point::TailPublished, done);
            }
            stage.visit();
            assert!(newcomer_overtakes || done.given(), "CPU 2 has overtaken CPU 1");
            done.give();
        }
    });
    assert_eq!(stage.counter.get(), 2);
    stage
}

fn a_newcomer_steals_while_the_head_sleeps<W: Word>() {
    let stage = newcomer_meets_waiter::<Pv, W>(Point::BeforeSleep, true);
    assert_eq!(stage.host.events(Event::PvLockStealing), 1);
}

fn a_newcomer_queues_while_the_head_spins<W: Word>() {
    let stage = newcomer_meets_waiter::<Pv, W>(Point::HeadSpinning, false);
    assert_eq!(stage.host.events(Event::PvLockStealing), 0);
}

/// Sleeps for longer than any spin since `begun` can have taken.
fn outlast_spins(begun: Instant) {
    thread::sleep(begun.elapsed() + Duration::from_millis(1));
}

/// CPU 2 queues behind CPU 1, with all the patience in the world. CPU 1 then sleeps, and CPU 2 does the same.
fn a_waiter_behind_a_sleeper_sleeps_at_once<W: Word>() {
    let stage = Stage::<Pv, W>::new(Cpus::impatient(3));
    stage.host.set_patience(2, Duration::from_secs(3600));
    let ([spinning], begun) = (Signal::several(), Instant::now());
    stage.while_held(
        || stage.host.until_counted(1, Event::PvWaitEarly),
        |cpu| match cpu {
            1 => {
                let napped = Cell::new(false);
                Cpus::hook(move |point| match point {
                    Point::HeadSpinning if !spinning.given() => {
                        spinning.give();
                        stage.host.until_paused(2, 10);
                    }
                    Point::BeforeSleep if !napped.replace(true) => outlast_spins(begun),
                    _ => {}
                });
                stage.visit();
            }
            _ => {
                spinning.await_it();
                Cpus::hook_once(Point::BeforeSleep, move || outlast_spins(begun));
                stage.visit();
            }
        },
    );
    assert_eq!(stage.counter.get(), 2);
    // Times go by why a spin ended: CPU 1 as head, CPU 2 early, and no CPU at its threshold in the queue.
    let time = |event| stage.host.events(event);
    let (spun, asleep) = (time(Event::PvLatencySpinHead), time(Event::PvLatencyHaltHead));
    assert!(0 < spun && spun < asleep, "CPU 1: {spun}, {asleep}");
    let (spun, asleep) = (time(Event::PvLatencySpinEarly), time(Event::PvLatencyHaltEarly));
    assert!(0 < spun && spun < asleep, "CPU 2: {spun}, {asleep}");
    assert_eq!((time(Event::PvLatencySpinNode), time(Event::PvLatencyHaltNode)), (0, 0));
}

/// CPU 2 sleeps behind CPU 1. When CPU 1 gets the lock it registers CPU 2 instead of waking it; one kick
/// follows at unlock.
fn one_kick_wakes_a_waiter_that_became_head_asleep<W: Word>() {
    let stage = Stage::<V16, W>::new(Cpus::impatient(3));
    stage.while_held(
        || {
            stage.host.until_counted(1, Event::PvWaitHead);
            stage.host.until_counted(1, Event::PvWaitNode);
        },
        |cpu| {
            if cpu == 2 {
                stage.host.until_counted(1, Event::PvWaitHead);
            }
            stage.visit();
        },
    );
    assert_eq!(stage.counter.get(), 2);
    assert_eq!(stage.host.events(Event::PvKickUnlock), 2, "one for each sleeper");
}

fn a_threshold_by_count_is_so_many_pauses_whatever_the_clock_says<W: Word>() {
    const ROUNDS: u32 = 300;
    for by_the_clock in [Duration::ZERO, Duration::from_secs(3600)] {
        let stage = Stage::<Pv, W>::new(Cpus::new(2, by_the_clock));
        stage.host.set_rounds(1, ROUNDS);
        stage.while_held(
            || {
                stage.host.until_counted(1, Event::PvWaitHead);
                assert_eq!(stage.host.pauses(1), u64::from(ROUNDS), "one pause for each round");
            },
            |_| stage.visit(),
        );
    }
}

#[test]
fn a_sleeper_in_another_domain_is_missed_loudly() {
    let host = Cpus::impatient(2);
    let _watchdog = host.watchdog();
    let domains = [Domain::new(host.clone()), Domain::new(host.clone())];
    let lock = QSpinLock::<Pv>::new();
    Cpus::become_cpu(0);
    lock.lock(&domains[0]);
    thread::scope(|scope| {
        scope.spawn(|| {
            Cpus::become_cpu(1);
            lock.lock(&domains[0]);
            lock.unlock(&domains[0], ());
        });
        host.until_counted(1, Event::PvWaitHead);
        let unlock = std::panic::AssertUnwindSafe(|| lock.unlock(&domains[1], ()));
        let panic = std::panic::catch_unwind(unlock).unwrap_err();
        let message = panic.downcast_ref::<String>().expect("a formatted message");
        assert!(message.contains("has no entry") && message.contains("0 of 256 entries in use"), "{message}");
        lock.unlock(&domains[0], ());
    });
}
