//! Properties of the queue spinlock: its sums, its order, its levels, and each race that it once had.
//!
//! A race is staged with hooks: a CPU that passes a [`Point`] stays there until the other side has got where
//! it did the damage. The tests are named for the races T1 to T18; those that need a weak memory model are in
//! the loom tests.

use std::{
    cell::Cell,
    sync::atomic::{AtomicUsize, Ordering::*},
    thread,
    time::{Duration, Instant},
};

use haltkick_locks::*;

use crate::support::{self, Cpus, Plain, Signal, rounds, until};

type Domain = QSpinDomain<Cpus, 8>;

/// A queue spinlock with its domain and its CPUs.
pub(crate) type Stage<M, W> = support::Stage<Domain, QSpinLock<M, W>>;

impl<M: Mode, W: Word> Stage<M, W> {
    pub(crate) fn new(host: Cpus) -> &'static Self {
        Self::set_up(host, Domain::new, QSpinLock::new())
    }

    /// CPU 0 holds the lock until CPU 1 sleeps as head and CPU 2 behind it, and for what it does `meanwhile`.
    pub(crate) fn while_two_sleep(&self, meanwhile: impl Fn() + Sync, others: impl Fn(usize) + Sync) {
        self.while_held(
            || {
                self.host.until_counted(1, Event::PvWaitNode);
                meanwhile();
            },
            |cpu| {
                if cpu == 2 {
                    self.host.until_counted(1, Event::PvWaitHead);
                }
                others(cpu);
            },
        );
    }
}

/// Runs the same tests on both layouts of the lock word.
macro_rules! on_both_layouts {
    ($($name:ident)+) => {
        mod whole {
            $(#[test] fn $name() { super::$name::<haltkick_locks::Whole>(); })+
        }
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        mod packed {
            $(#[test] fn $name() { super::$name::<haltkick_locks::Packed>(); })+
        }
    };
}

on_both_layouts! {
    native_acquisitions_are_fast_pending_or_queued
    pv_acquisitions_are_fast_stolen_or_queued
    t6_interrupts_at_any_point_may_take_locks_to_any_depth
    t9_a_fifth_level_waits_without_a_node
    t2_a_head_that_registered_itself_is_not_registered_again
    t4_the_entry_is_gone_before_the_lock_is_free
    t5_a_link_made_before_its_node_is_used_stays
    t7_nobody_waits_for_a_lost_pending_cpu_outside_the_queue
    t14_a_lock_that_is_not_held_cannot_be_unlocked
    a_head_that_the_owner_registers_does_not_register_itself
    a_newcomer_queues_while_the_head_spins
    a_waiter_behind_a_sleeper_sleeps_at_once
    one_kick_wakes_a_waiter_that_became_head_asleep
    a_threshold_by_count_is_so_many_pauses_whatever_the_clock_says
}

// How each acquisition came about, and in which order CPUs are served.

/// CPU 0 holds the lock until all others wait for it. They come by the queue or by `another` way, and `never` by a third one.
fn all_wait_for_cpu_0<M: Mode, W: Word>(another: Event, never: Event) -> &'static Stage<M, W> {
    let stage = Stage::<M, W>::new(Cpus::impatient(8));
    stage.while_held(
        || {
            let waiting = || stage.host.doing(Activity::Waiter) + stage.host.doing(Activity::Head);
            until(|| waiting() >= 7);
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

// Interrupts that take locks while their CPU waits for one.

/// How deep interrupts nest: two levels more than there are nodes.
const DEPTH: usize = LEVELS + 2;

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
        support::once_held(
            &host,
            || levels.locks.iter().for_each(|lock| lock.lock(&levels.domain)),
            |()| {
                host.until_counted(1, Event::LockNoNode);
                levels.locks.iter().for_each(|lock| lock.unlock(&levels.domain, ()));
            },
            |_| {
                let level = Cell::new(0);
                Cpus::hook(move |point| {
                    if point == Point::NodeClaimed && level.get() < LEVELS {
                        level.set(level.get() + 1);
                        levels.visit(level.get());
                    }
                });
                levels.visit(0);
            },
        );
        let events = [Event::LockUseNode2, Event::LockUseNode3, Event::LockUseNode4, Event::LockNoNode];
        assert_eq!(events.map(|event| host.events(event)), [1; 4]);
        for counter in &levels.counters[..=LEVELS] {
            assert_eq!(counter.get(), 1);
        }
    }

    check::<V16, W>();
    check::<Pv, W>();
}

// Each race that the queue spinlock once had, as far as it does not need a weak memory model, nor an interrupt.

/// CPU 1 makes CPU 2 head, and does not look at its state before CPU 2 has registered itself and gone to
/// sleep.
fn t2_a_head_that_registered_itself_is_not_registered_again<W: Word>() {
    let stage = Stage::<V16, W>::new(Cpus::impatient(3));
    stage.while_two_sleep(
        || (),
        |cpu| {
            if cpu == 2 {
                return stage.visit();
            }
            Cpus::hook_once(Point::HandedOver, move || {
                let sleeps = stage.host.events(Event::PvWaitHead);
                stage.host.kick(2);
                stage.host.until_counted(sleeps + 1, Event::PvWaitHead);
            });
            stage.lock();
            assert_eq!(stage.domain.sleeping_heads(), 1, "the lock is registered once");
            stage.unlock();
        },
    );
    assert_eq!(stage.domain.sleeping_heads(), 0);
}

/// CPU 1 finds its successor, CPU 2, asleep, and is preempted before it registers it. CPU 2 wakes by itself
/// and goes round and round: the locked byte does not say SLOW, so there is nothing to sleep for, and nothing
/// to register either.
fn a_head_that_the_owner_registers_does_not_register_itself<W: Word>() {
    let stage = Stage::<WorkConserving, W>::new(Cpus::impatient(3));
    let [spinning] = Signal::several();
    stage.while_held(
        || stage.host.until_counted(1, Event::PvWaitNode),
        |cpu| match cpu {
            1 => {
                Cpus::hook(move |point| match point {
                    // CPU 2 would not queue while CPU 1 sleeps.
                    Point::HeadSpinning if !spinning.given() => {
                        spinning.give();
                        stage.host.until_counted(1, Event::PvWaitNode);
                    }
                    Point::SuccessorHashed => {
                        let rounds = stage.host.events(Event::PvWaitHead) + 3;
                        stage.host.kick(2);
                        // With a second entry CPU 2 sleeps, and the rounds come to an end.
                        while stage.host.events(Event::PvWaitHead) < rounds {
                            assert_eq!(stage.domain.sleeping_heads(), 0, "CPU 2 has registered itself");
                            thread::yield_now();
                        }
                    }
                    _ => {}
                });
                stage.visit();
            }
            _ => {
                spinning.await_it();
                stage.visit();
            }
        },
    );
    assert_eq!(stage.domain.sleeping_heads(), 0);
}

/// CPU 0 is preempted in a slow unlock, right after its release. The head wakes without its kick, and the
/// lock's next head goes to sleep: there must be no entry left from before.
fn t4_the_entry_is_gone_before_the_lock_is_free<W: Word>() {
    let stage = Stage::<V16, W>::new(Cpus::impatient(3));
    stage.while_two_sleep(
        || {
            Cpus::hook_once(Point::SlowReleased, move || {
                stage.host.kick(1);
                stage.host.until_counted(2, Event::LockSlowpath);
                assert!(stage.domain.sleeping_heads() <= 1, "one entry for one lock");
            });
        },
        |cpu| {
            stage.lock();
            if cpu == 1 {
                // Until CPU 2 is head, registered by this CPU.
                stage.host.kick(2);
                stage.host.until_counted(2, Event::PvWaitHead);
            }
            stage.unlock();
        },
    );
    assert_eq!(stage.domain.sleeping_heads(), 0);
}

/// CPU 2 links itself behind CPU 1, which is preempted right after it made itself the tail.
fn t5_a_link_made_before_its_node_is_used_stays<W: Word>() {
    let stage = Stage::<V16, W>::new(Cpus::impatient(3));
    let [published, linked] = Signal::several();
    stage.while_held(
        || linked.await_it(),
        |cpu| match cpu {
            1 => {
                Cpus::stand_at(Point::TailPublished, published, linked);
                stage.visit();
            }
            _ => {
                published.await_it();
                Cpus::give_at(Point::HaltedPublished, linked);
                stage.visit();
            }
        },
    );
    assert_eq!(stage.counter.get(), 2);
}

/// CPU 1 has the pending bit and is preempted; the owner leaves. CPU 2, arriving at (0,1,0), must get in
/// line.
fn t7_nobody_waits_for_a_lost_pending_cpu_outside_the_queue<W: Word>() {
    // After the owner has left: at (0,1,1) it would get in line at once.
    newcomer_meets_waiter::<Native, W>(Point::PendingSet);
}

fn t14_a_lock_that_is_not_held_cannot_be_unlocked<W: Word>() {
    let stage = Stage::<Pv, W>::new(Cpus::impatient(1));
    stage.visit();
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| stage.unlock())).unwrap_err();
    let message = panic.downcast_ref::<String>().expect("a formatted message");
    assert!(message.contains("locked byte is 0: not held"), "{message}");
}

// Sleeping and kicking, and what a newcomer does meanwhile.

/// CPU 0 holds the lock; CPU 1 waits, and is kept at `point`. When CPU 0 has left, CPU 2 arrives; CPU 1 goes on when that one
/// is in the queue.
fn newcomer_meets_waiter<M: Mode, W: Word>(point: Point) -> &'static Stage<M, W> {
    let stage = Stage::<M, W>::new(Cpus::new(3, Duration::from_millis(1)));
    let [there, left, done] = Signal::several();
    stage.once_held(
        || {
            there.await_it();
            stage.unlock();
            left.give();
        },
        |cpu| {
            if cpu == 1 {
                Cpus::stand_at(point, there, done);
                return stage.visit();
            }
            left.await_it();
            Cpus::give_at(Point::TailPublished, done);
            stage.visit();
            assert!(done.given(), "CPU 2 has overtaken CPU 1");
        },
    );
    assert_eq!(stage.counter.get(), 2);
    stage
}

fn a_newcomer_queues_while_the_head_spins<W: Word>() {
    let stage = newcomer_meets_waiter::<Pv, W>(Point::HeadSpinning);
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
    stage.while_two_sleep(|| (), |_| stage.visit());
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
