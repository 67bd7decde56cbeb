//! Interrupts that take locks while their CPU waits for one.

use std::{
    cell::Cell,
    sync::atomic::{AtomicUsize, Ordering::*},
    thread,
};

use haltkick_locks::*;

use super::{Domain, Stage};
use crate::support::{Cpus, Plain, Signal, rounds};

on_both_layouts! {
    t6_interrupts_at_any_point_may_take_locks_to_any_depth
    t9_a_fifth_level_waits_without_a_node
    t10_an_nmi_that_waits_leaves_the_kick_to_whom_it_interrupted
}

/// How deep interrupts nest: two levels more than there are nodes.
const DEPTH: usize = LEVELS + 2;

/// One lock for each level.
struct Levels<M, W> {
    domain: Domain,
    locks: [QSpinLock<M, W>; DEPTH],
    counters: [Plain; DEPTH],
}

impl<M: Mode, W: Word> Levels<M, W> {
    fn new(host: &Cpus) -> &'static Self {
        let locks = std::array::from_fn(|_| QSpinLock::new());
        let domain = Domain::new(host.clone());
        Box::leak(Box::new(Self { domain, locks, counters: Default::default() }))
    }

    fn visit(&self, level: usize) {
        self.locks[level].lock(&self.domain);
        self.counters[level].increment();
        // Long enough for the other CPUs to queue, on every level.
        thread::yield_now();
        self.locks[level].unlock(&self.domain, ());
    }
}

fn t6_interrupts_at_any_point_may_take_locks_to_any_depth<W: Word>() {
    fn check<M: Mode, W: Word>(rounds: usize) {
        let host = Cpus::impatient(4);
        let levels = Levels::<M, W>::new(&host);
        let visits: &'static [AtomicUsize; DEPTH] =
            Box::leak(Box::new([const { AtomicUsize::new(0) }; DEPTH]));
        host.run(|_| {
            let level = Cell::new(0);
            Cpus::hook(move |_| {
                if level.get() + 1 < DEPTH {
                    level.set(level.get() + 1);
                    visits[level.get()].fetch_add(1, Relaxed);
                    levels.visit(level.get());
                    level.set(level.get() - 1);
                }
            });
            for _ in 0..rounds {
                visits[0].fetch_add(1, Relaxed);
                levels.visit(0);
            }
        });
        for (level, (counter, visits)) in levels.counters.iter().zip(visits).enumerate() {
            assert_eq!(counter.get(), visits.load(Relaxed), "level {level}");
        }
        assert_eq!(levels.domain.sleeping_heads(), 0);
    }

    check::<Native, W>(rounds(500));
    check::<V16, W>(rounds(200));
    check::<Pv, W>(rounds(200));
}

/// CPU 0 holds all locks. CPU 1 claims a node for the first, is interrupted there, and so on.
fn t9_a_fifth_level_waits_without_a_node<W: Word>() {
    fn check<M: Mode, W: Word>() {
        let host = Cpus::impatient(2);
        let levels = Levels::<M, W>::new(&host);
        let [held] = Signal::several();
        host.run(|cpu| {
            if cpu == 0 {
                levels.locks.iter().for_each(|lock| lock.lock(&levels.domain));
                held.give();
                host.until_counted(1, Event::LockNoNode);
                levels.locks.iter().for_each(|lock| lock.unlock(&levels.domain, ()));
            } else {
                held.await_it();
                let level = Cell::new(0);
                Cpus::hook(move |point| {
                    if point == Point::NodeClaimed && level.get() < LEVELS {
                        level.set(level.get() + 1);
                        levels.visit(level.get());
                    }
                });
                levels.visit(0);
            }
        });
        assert_eq!(host.events(Event::LockNoNode), 1);
        assert_eq!(host.events(Event::LockUseNode4), 1);
        for counter in &levels.counters[..=LEVELS] {
            assert_eq!(counter.get(), 1);
        }
    }

    check::<V16, W>();
    check::<Pv, W>();
}

/// CPU 1 is about to halt, as the head of a lock's queue, when an NMI comes that waits for another lock, which CPU 2
/// holds. CPU 1 is kicked meanwhile.
fn t10_an_nmi_that_waits_leaves_the_kick_to_whom_it_interrupted<W: Word>() {
    let stage = Stage::<Pv, W>::new(Cpus::impatient(3));
    let other: &'static _ = Box::leak(Box::new(QSpinLock::<Pv, W>::new()));
    let [held, other_held, interrupted, kicked] = Signal::several();
    stage.host.run(|cpu| match cpu {
        0 => {
            stage.lock();
            held.give();
            interrupted.await_it();
            stage.unlock();
            kicked.give();
        }
        1 => {
            held.await_it();
            // Else the NMI may find the other lock free, and wait for nothing.
            other_held.await_it();
            Cpus::hook_once(Point::BeforeSleep, move || {
                stage.host.nmi(|| {
                    interrupted.give();
                    other.lock(&stage.domain);
                    other.unlock(&stage.domain, ());
                });
            });
            stage.visit();
        }
        _ => {
            other.lock(&stage.domain);
            other_held.give();
            kicked.await_it();
            // The NMI waits, and not asleep: it would have taken the kick by now.
            stage.host.until_counted(2, Event::PvWaitHead);
            stage.host.until_paused(1, 10);
            other.unlock(&stage.domain, ());
        }
    });
    assert_eq!(stage.counter.get(), 1);
}
