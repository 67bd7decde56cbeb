//! What is particular to the queue spinlock: its sums, its order, its levels, and each race that it once had.
//!
//! A race is staged with hooks: a CPU that passes a [`Point`] stays there until the other side has got where
//! it did the damage. The tests are named for the races T1 to T18; those that need a weak memory model are in
//! the loom tests.

use std::{
    cell::Cell,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::*},
    },
    thread,
    time::Duration,
};

use haltkick_locks::*;

use crate::support::{Cpus, Plain, Signal, Watchdog, rounds};

type Domain = QSpinDomain<Cpus, 8>;

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
    native_serves_in_the_order_of_arrival
    v16_serves_in_the_order_of_arrival
    t2_a_head_that_registered_itself_is_not_registered_again
    t4_the_entry_is_gone_before_the_lock_is_free
    t5_a_link_made_before_its_node_is_in_use_is_not_wiped
    t6_interrupts_at_any_point_may_take_locks_to_any_depth
    t9_a_fifth_level_waits_without_a_node
    t7_nobody_waits_for_a_lost_pending_cpu_outside_the_queue
    t14_a_lock_that_is_not_held_cannot_be_unlocked
    a_head_that_the_owner_registers_does_not_register_itself
    a_newcomer_steals_while_the_head_sleeps
    a_newcomer_queues_while_the_head_spins
    a_waiter_behind_a_sleeper_sleeps_at_once
    one_kick_wakes_a_waiter_that_became_head_asleep
    a_threshold_by_count_is_so_many_pauses_whatever_the_clock_says
}

/// A lock, its domain and its CPUs, to be shared with hooks.
pub(crate) struct Stage<M, W> {
    pub(crate) host: Cpus,
    pub(crate) domain: Domain,
    lock: QSpinLock<M, W>,
    counter: Plain,
}

impl<M: Mode, W: Word> Stage<M, W> {
    pub(crate) fn new(host: Cpus) -> Arc<Self> {
        let domain = Domain::new(host.clone());
        Arc::new(Self { host, domain, lock: QSpinLock::new(), counter: Plain::default() })
    }

    pub(crate) fn lock(&self) {
        self.lock.lock(&self.domain);
    }

    pub(crate) fn unlock(&self) {
        self.lock.unlock(&self.domain, ());
    }

    /// Takes the lock, increments the counter, releases.
    pub(crate) fn visit(&self) {
        self.lock();
        self.counter.increment();
        self.unlock();
    }
}

/// CPU 0 holds the lock until all others wait for it.
fn all_wait_for_cpu_0<M: Mode, W: Word>(stage: &Stage<M, W>, cpus: usize) {
    let held = Signal::default();
    stage.host.run(|cpu| {
        if cpu == 0 {
            stage.lock();
            held.give();
            let waiting = || stage.host.doing(Activity::Waiter) + stage.host.doing(Activity::Head);
            while waiting() < cpus - 1 {
                thread::yield_now();
            }
            stage.unlock();
        } else {
            held.await_it();
            stage.visit();
        }
    });
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

/// CPU 1 makes CPU 2 head, and does not look at its state before CPU 2 has registered itself and gone to
/// sleep.
fn t2_a_head_that_registered_itself_is_not_registered_again<W: Word>() {
    let stage = Stage::<V16, W>::new(Cpus::impatient(3));
    let held = Signal::default();
    stage.host.run(|cpu| match cpu {
        0 => {
            stage.lock();
            held.give();
            stage.host.until_counted(1, Event::PvWaitNode);
            stage.unlock();
        }
        1 => {
            held.await_it();
            let staged = stage.clone();
            Cpus::hook_once(Point::HandedOver, move || {
                let sleeps = staged.host.events(Event::PvWaitHead);
                staged.host.kick(2);
                staged.host.until_counted(sleeps + 1, Event::PvWaitHead);
            });
            stage.lock();
            assert_eq!(stage.domain.sleeping_heads(), 1, "the lock is registered once");
            stage.unlock();
        }
        _ => {
            stage.host.until_counted(1, Event::PvWaitHead);
            stage.visit();
        }
    });
    assert_eq!(stage.domain.sleeping_heads(), 0);
}

/// CPU 1 finds its successor, CPU 2, asleep, and is preempted before it registers it. CPU 2 wakes by itself
/// and goes round and round: the locked byte does not say SLOW, so there is nothing to sleep for, and nothing
/// to register either.
fn a_head_that_the_owner_registers_does_not_register_itself<W: Word>() {
    let stage = Stage::<WorkConserving, W>::new(Cpus::impatient(3));
    let (held, spinning) = (Signal::default(), Signal::default());
    stage.host.run(|cpu| match cpu {
        0 => {
            stage.lock();
            held.give();
            stage.host.until_counted(1, Event::PvWaitNode);
            stage.unlock();
        }
        1 => {
            held.await_it();
            let (staged, spinning) = (stage.clone(), spinning.clone());
            Cpus::hook(move |point| match point {
                // CPU 2 would not queue while CPU 1 sleeps.
                Point::HeadSpinning if !spinning.given() => {
                    spinning.give();
                    staged.host.until_counted(1, Event::PvWaitNode);
                }
                Point::SuccessorHashed => {
                    let rounds = staged.host.events(Event::PvWaitHead) + 3;
                    staged.host.kick(2);
                    // With a second entry CPU 2 sleeps, and the rounds come to an end.
                    while staged.host.events(Event::PvWaitHead) < rounds {
                        assert_eq!(staged.domain.sleeping_heads(), 0, "CPU 2 has registered itself");
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
    });
    assert_eq!(stage.domain.sleeping_heads(), 0);
}

/// CPU 0 is preempted in a slow unlock, right after its release. The head wakes without its kick, and the
/// lock's next head goes to sleep: there must be no entry left from before.
fn t4_the_entry_is_gone_before_the_lock_is_free<W: Word>() {
    let stage = Stage::<V16, W>::new(Cpus::impatient(3));
    let held = Signal::default();
    stage.host.run(|cpu| match cpu {
        0 => {
            stage.lock();
            held.give();
            stage.host.until_counted(1, Event::PvWaitHead);
            stage.host.until_counted(1, Event::PvWaitNode);
            let staged = stage.clone();
            Cpus::hook_once(Point::SlowReleased, move || {
                staged.host.kick(1);
                staged.host.until_counted(2, Event::LockSlowpath);
                assert!(staged.domain.sleeping_heads() <= 1, "one entry for one lock");
            });
            stage.unlock();
        }
        1 => {
            held.await_it();
            stage.lock();
            // Until CPU 2 is head, registered by this CPU.
            stage.host.kick(2);
            stage.host.until_counted(2, Event::PvWaitHead);
            stage.unlock();
        }
        _ => {
            stage.host.until_counted(1, Event::PvWaitHead);
            stage.lock();
            stage.unlock();
        }
    });
    assert_eq!(stage.domain.sleeping_heads(), 0);
}

/// CPU 2 links itself behind CPU 1, which is preempted right after it made itself the tail.
fn t5_a_link_made_before_its_node_is_in_use_is_not_wiped<W: Word>() {
    let stage = Stage::<V16, W>::new(Cpus::impatient(3));
    let (held, published, linked) = (Signal::default(), Signal::default(), Signal::default());
    stage.host.run(|cpu| match cpu {
        0 => {
            stage.lock();
            held.give();
            linked.await_it();
            stage.unlock();
        }
        1 => {
            held.await_it();
            Cpus::hook_once(Point::TailPublished, {
                let (published, linked) = (published.clone(), linked.clone());
                move || {
                    published.give();
                    linked.await_it();
                }
            });
            stage.visit();
        }
        _ => {
            published.await_it();
            Cpus::hook_once(Point::HaltedPublished, {
                let linked = linked.clone();
                move || linked.give()
            });
            stage.visit();
        }
    });
    assert_eq!(stage.counter.get(), 2);
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
    fn new(host: &Cpus) -> Arc<Self> {
        Arc::new(Self {
            domain: Domain::new(host.clone()),
            locks: std::array::from_fn(|_| QSpinLock::new()),
            counters: Default::default(),
        })
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
        let visits: [_; DEPTH] = std::array::from_fn(|_| std::sync::atomic::AtomicU64::new(0));
        let visits = Arc::new(visits);
        host.run(|_| {
            let level = Cell::new(0);
            let (interrupted, counted) = (levels.clone(), visits.clone());
            Cpus::hook(move |_| {
                if level.get() + 1 < DEPTH {
                    level.set(level.get() + 1);
                    counted[level.get()].fetch_add(1, Relaxed);
                    interrupted.visit(level.get());
                    level.set(level.get() - 1);
                }
            });
            for _ in 0..rounds {
                visits[0].fetch_add(1, Relaxed);
                levels.visit(0);
            }
        });
        for (level, (counter, visits)) in levels.counters.iter().zip(&*visits).enumerate() {
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
        let held = Signal::default();
        host.run(|cpu| {
            if cpu == 0 {
                levels.locks.iter().for_each(|lock| lock.lock(&levels.domain));
                held.give();
                host.until_counted(1, Event::LockNoNode);
                levels.locks.iter().for_each(|lock| lock.unlock(&levels.domain, ()));
            } else {
                held.await_it();
                let level = Cell::new(0);
                let interrupted = levels.clone();
                Cpus::hook(move |point| {
                    if point == Point::NodeClaimed && level.get() < LEVELS {
                        level.set(level.get() + 1);
                        interrupted.visit(level.get());
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

/// CPU 1 has the pending bit and is preempted; the owner leaves. CPU 2, arriving at (0,1,0), must get in
/// line.
fn t7_nobody_waits_for_a_lost_pending_cpu_outside_the_queue<W: Word>() {
    let stage = Stage::<Native, W>::new(Cpus::impatient(3));
    let (held, pending, left, queued) =
        (Signal::default(), Signal::default(), Signal::default(), Signal::default());
    stage.host.run(|cpu| match cpu {
        0 => {
            stage.lock();
            held.give();
            pending.await_it();
            stage.unlock();
            left.give();
        }
        1 => {
            held.await_it();
            let (pending, queued) = (pending.clone(), queued.clone());
            Cpus::hook_once(Point::PendingSet, move || {
                pending.give();
                queued.await_it();
            });
            stage.visit();
        }
        _ => {
            // Not before: at (0,1,1) it would get in line at once.
            left.await_it();
            let queued = queued.clone();
            Cpus::hook_once(Point::TailPublished, move || queued.give());
            stage.visit();
        }
    });
    assert_eq!(stage.counter.get(), 2);
}

fn t14_a_lock_that_is_not_held_cannot_be_unlocked<W: Word>() {
    let stage = Stage::<Pv, W>::new(Cpus::impatient(1));
    stage.visit();
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| stage.unlock())).unwrap_err();
    let message = panic.downcast_ref::<String>().expect("a formatted message");
    assert!(message.contains("locked byte is 0: not held"), "{message}");
}

/// CPU 0 holds the lock; CPU 1 is head, and is kept at `point`. Then CPU 2 arrives, and `arrived` tells
/// when CPU 0 may leave and what CPU 2 must have done before CPU 1 goes on.
fn newcomer_meets_head<W: Word>(point: Point, newcomer_overtakes: bool) -> Arc<Stage<Pv, W>> {
    let stage = Stage::<Pv, W>::new(Cpus::new(3, Duration::from_millis(1)));
    let (held, there, left, done) =
        (Signal::default(), Signal::default(), Signal::default(), Arc::new(AtomicBool::new(false)));
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
            let (there, done) = (there.clone(), done.clone());
            Cpus::hook_once(point, move || {
                there.give();
                while !done.load(Acquire) {
                    thread::yield_now();
                }
            });
            stage.visit();
        }
        _ => {
            left.await_it();
            if !newcomer_overtakes {
                let done = done.clone();
                Cpus::hook_once(Point::TailPublished, move || done.store(true, Release));
            }
            stage.visit();
            assert!(newcomer_overtakes || done.load(Acquire), "CPU 2 has overtaken a spinning head");
            done.store(true, Release);
        }
    });
    assert_eq!(stage.counter.get(), 2);
    stage
}

fn a_newcomer_steals_while_the_head_sleeps<W: Word>() {
    let stage = newcomer_meets_head::<W>(Point::BeforeSleep, true);
    assert_eq!(stage.host.events(Event::PvLockStealing), 1);
}

fn a_newcomer_queues_while_the_head_spins<W: Word>() {
    let stage = newcomer_meets_head::<W>(Point::HeadSpinning, false);
    assert_eq!(stage.host.events(Event::PvLockStealing), 0);
}

/// CPU 2 queues behind CPU 1, with all the patience in the world. CPU 1 then sleeps, and CPU 2 does the same.
fn a_waiter_behind_a_sleeper_sleeps_at_once<W: Word>() {
    let stage = Stage::<Pv, W>::new(Cpus::impatient(3));
    stage.host.set_patience(2, Duration::from_secs(3600));
    let (held, spinning) = (Signal::default(), Signal::default());
    stage.host.run(|cpu| match cpu {
        0 => {
            stage.lock();
            held.give();
            stage.host.until_counted(1, Event::PvWaitEarly);
            stage.unlock();
        }
        1 => {
            held.await_it();
            let (staged, spinning) = (stage.clone(), spinning.clone());
            Cpus::hook_once(Point::HeadSpinning, move || {
                spinning.give();
                staged.host.until_paused(2, 10);
            });
            stage.visit();
        }
        _ => {
            spinning.await_it();
            stage.visit();
        }
    });
    assert_eq!(stage.counter.get(), 2);
}

/// CPU 2 sleeps behind CPU 1. When CPU 1 gets the lock it registers CPU 2 instead of waking it; one kick
/// follows at unlock.
fn one_kick_wakes_a_waiter_that_became_head_asleep<W: Word>() {
    let stage = Stage::<V16, W>::new(Cpus::impatient(3));
    let held = Signal::default();
    stage.host.run(|cpu| match cpu {
        0 => {
            stage.lock();
            held.give();
            stage.host.until_counted(1, Event::PvWaitHead);
            stage.host.until_counted(1, Event::PvWaitNode);
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
    assert_eq!(stage.counter.get(), 2);
    assert_eq!(stage.host.events(Event::PvKickUnlock), 2, "one for each sleeper");
}

fn a_threshold_by_count_is_so_many_pauses_whatever_the_clock_says<W: Word>() {
    const ROUNDS: u32 = 300;
    for by_the_clock in [Duration::ZERO, Duration::from_secs(3600)] {
        let stage = Stage::<Pv, W>::new(Cpus::new(2, by_the_clock));
        stage.host.set_rounds(1, ROUNDS);
        let held = Signal::default();
        stage.host.run(|cpu| {
            if cpu == 0 {
                stage.lock();
                held.give();
                stage.host.until_counted(1, Event::PvWaitHead);
                assert_eq!(stage.host.pauses(1), u64::from(ROUNDS), "one pause for each round");
                stage.unlock();
            } else {
                held.await_it();
                stage.visit();
            }
        });
    }
}

#[test]
fn a_sleeper_in_another_domain_is_missed_loudly() {
    let host = Cpus::impatient(2);
    let _watchdog = Watchdog::new(&host);
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

/// CPU 1 is about to halt, as the head of a lock's queue, when an NMI comes that waits for another lock, which CPU 2
/// holds. CPU 1 is kicked meanwhile.
#[test]
fn t10_an_nmi_that_waits_leaves_the_kick_to_whom_it_interrupted() {
    let stage = Stage::<Pv, Whole>::new(Cpus::impatient(3));
    let other = Arc::new(QSpinLock::<Pv, Whole>::new());
    let [held, interrupted, kicked] = [(); 3].map(|()| Signal::default());
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
            let (stage, other) = (stage.clone(), other.clone());
            let nmi = {
                let (stage, interrupted) = (stage.clone(), interrupted.clone());
                move || {
                    stage.host.nmi(|| {
                        interrupted.give();
                        other.lock(&stage.domain);
                        other.unlock(&stage.domain, ());
                    });
                }
            };
            Cpus::hook_once(Point::BeforeSleep, nmi);
            stage.visit();
        }
        _ => {
            other.lock(&stage.domain);
            kicked.await_it();
            // The NMI waits, and not asleep: it would have taken the kick by now.
            stage.host.until_counted(2, Event::PvWaitHead);
            stage.host.until_paused(1, 10);
            other.unlock(&stage.domain, ());
        }
    });
    assert_eq!(stage.counter.get(), 1);
}
