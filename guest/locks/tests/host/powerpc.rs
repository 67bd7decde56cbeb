//! Properties of the lock of powerpc. PQ and a number: a fault that Linux had there, or may have had.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use haltkick_locks::*;

use crate::{
    owner_yield::{Ruled, Stage, with_a_head_and_a_waiter},
    support::{Cpus, Signal},
};

type Rules = <Powerpc as Ruled>::Rules;

/// CPUs with something to do when they find another one preempted, and when they read its yield count.
struct Watched<F, C> {
    host: Cpus,
    finds: F,
    counts: C,
}

impl<F: Fn(usize) + Sync, C: Fn(usize) + Sync> Delegate for Watched<F, C> {
    type Platform = Cpus;

    fn platform(&self) -> &Cpus {
        &self.host
    }

    fn is_preempted(&self, cpu: usize) -> bool {
        let answer = self.host.is_preempted(cpu);
        if answer {
            (self.finds)(cpu);
        }
        answer
    }

    fn yield_count(&self, cpu: usize) -> u64 {
        let count = self.host.yield_count(cpu);
        (self.counts)(cpu);
        count
    }
}

/// CPU 1 finds the owner preempted, and before it looks at the word again, the lock has another owner.
#[test]
fn pq1_no_slice_goes_to_a_cpu_that_owns_nothing() {
    let host = Cpus::impatient(3);
    let [held, looked, changed] = [(); 3].map(|()| Signal::default());
    let finds = |_| {
        if host.cpu() == 1 {
            looked.give();
            changed.await_it();
        }
    };
    let domain = OwnerYieldDomain::<_, 8>::new(Watched { host: host.clone(), finds: &finds, counts: |_| {} });
    let lock = Powerpc::new();
    host.run(|cpu| match cpu {
        0 => {
            lock.lock(&domain);
            host.set_preempted(0, true);
            held.give();
            looked.await_it();
            lock.unlock(&domain, ());
        }
        1 => {
            held.await_it();
            lock.lock(&domain);
            lock.unlock(&domain, ());
        }
        _ => {
            looked.await_it();
            lock.lock(&domain);
            changed.give();
            host.until_paused(1, 10);
            lock.unlock(&domain, ());
        }
    });
    assert!(!host.has_yielded(1, 0));
}

/// The owner runs and is preempted again each time that CPU 1 has read its yield count.
#[test]
fn no_slice_goes_to_a_cpu_that_has_run_since() {
    let (host, reads) = (Cpus::impatient(2), AtomicUsize::new(0));
    let counts = |cpu| {
        host.set_preempted(cpu, true);
        reads.fetch_add(1, SeqCst);
    };
    let domain =
        OwnerYieldDomain::<_, 8>::new(Watched { host: host.clone(), finds: |_| {}, counts: &counts });
    let (lock, held) = (Powerpc::new(), Signal::default());
    host.run(|cpu| {
        if cpu == 1 {
            held.await_it();
            lock.lock(&domain);
        } else {
            lock.lock(&domain);
            host.set_preempted(0, true);
            held.give();
            while reads.load(SeqCst) < 100 {
                std::thread::yield_now();
            }
        }
        lock.unlock(&domain, ());
    });
    assert!(!host.has_yielded(1, 0));
    assert_eq!(host.events(Event::LockYielded), 0);
}

/// The owner gets a pCPU each time that CPU 1 has found it preempted, before CPU 1 reads its yield count.
#[test]
fn no_slice_goes_to_a_cpu_that_resumes_between_the_looks() {
    let (host, found) = (Cpus::impatient(2), AtomicUsize::new(0));
    let finds = |cpu| {
        host.set_preempted(cpu, false);
        found.fetch_add(1, SeqCst);
    };
    let domain = OwnerYieldDomain::<_, 8>::new(Watched { host: host.clone(), finds: &finds, counts: |_| {} });
    let (lock, held) = (Powerpc::new(), Signal::default());
    host.run(|cpu| {
        if cpu == 1 {
            held.await_it();
            lock.lock(&domain);
        } else {
            lock.lock(&domain);
            for round in 1..=20 {
                host.set_preempted(0, true);
                held.give();
                while found.load(SeqCst) < round {
                    std::thread::yield_now();
                }
                host.until_paused(1, 10);
            }
        }
        lock.unlock(&domain, ());
    });
    assert!(!host.has_yielded(1, 0));
}

/// A waiter that was told of a preempted owner looks at the owner itself before it yields.
#[test]
fn pq2_the_queue_yields_no_more_once_the_owner_runs() {
    let stage = Stage::<Rules>::new(3);
    with_a_head_and_a_waiter(&stage, || {
        stage.host.set_preempted(0, true);
        stage.host.until_yielded(1, 0);
        stage.host.until_yielded(2, 0);
        stage.host.set_preempted(0, false);
        (1..3).for_each(|cpu| stage.host.until_paused(cpu, 10));
        let before = stage.host.events(Event::LockYielded);
        (1..3).for_each(|cpu| stage.host.until_paused(cpu, 1_000));
        assert_eq!(stage.host.events(Event::LockYielded), before);
    });
}

/// CPU 1 waits for a lock that CPU 0 holds, and stands still at a pause once `stall` is given, until `goes_on`.
struct Stalled {
    stall: Signal,
    stalled: Signal,
    goes_on: Signal,
}

impl Stalled {
    fn new() -> Arc<Self> {
        let [stall, stalled, goes_on] = [(); 3].map(|()| Signal::default());
        Arc::new(Self { stall, stalled, goes_on })
    }

    fn hook(self: &Arc<Self>) {
        let this = self.clone();
        Cpus::hook_pauses(move || {
            if this.stall.given() {
                this.stalled.give();
                this.goes_on.await_it();
            }
        });
    }

    fn stand_still(&self) {
        self.stall.give();
        self.stalled.await_it();
    }
}

/// The head is preempted, too, and so tells its successor nothing.
#[test]
fn pq4_a_waiter_behind_a_preempted_head_reaches_the_owner() {
    let (stage, stalled) = (Stage::<Rules>::new(3), Stalled::new());
    let [held, queued] = [(); 2].map(|()| Signal::default());
    stage.host.run(|cpu| match cpu {
        0 => {
            stage.contended.lock(&stage.domain);
            held.give();
            stage.host.until_doing(1, Activity::Head);
            stalled.stand_still();
            queued.give();
            stage.host.until_counted(2, Event::LockSlowpath);
            stage.host.set_preempted(0, true);
            stage.host.set_preempted(1, true);
            // PQ3: the waiter has marked the lock, for the look that does so yields nothing.
            stage.host.until_yielded(2, 0);
            stage.host.set_preempted(1, false);
            stage.host.set_preempted(0, false);
            stalled.goes_on.give();
            stage.contended.unlock(&stage.domain, ());
        }
        1 => {
            held.await_it();
            stalled.hook();
            stage.visit();
        }
        _ => {
            queued.await_it();
            stage.visit();
        }
    });
}

/// Whether CPU 2 gets a free lock by a try. The head of its queue has paused so often, and stands still.
fn tried<L: Ruled>(head_pauses: u64) -> bool {
    let (stage, stalled) = (Stage::<L::Rules>::new(3), Stalled::new());
    let [held, free] = [(); 2].map(|()| Signal::default());
    let got = AtomicUsize::new(0);
    stage.host.run(|cpu| match cpu {
        0 => {
            stage.contended.lock(&stage.domain);
            held.give();
            stage.host.until_doing(1, Activity::Head);
            stage.host.until_paused(1, head_pauses);
            stalled.stand_still();
            stage.contended.unlock(&stage.domain, ());
            free.give();
        }
        1 => {
            held.await_it();
            // As head it stops at its first pause, where nothing else is asked for.
            if head_pauses == 0 {
                let stall = stalled.clone();
                Cpus::hook_once(Point::TailPublished, move || stall.stall.give());
            }
            stalled.hook();
            stage.visit();
        }
        _ => {
            free.await_it();
            if stage.contended.try_lock(&stage.domain).is_some() {
                got.store(1, SeqCst);
                stage.contended.unlock(&stage.domain, ());
            }
            stalled.goes_on.give();
        }
    });
    got.load(SeqCst) == 1
}

#[test]
fn a_try_takes_a_free_lock_past_its_queue() {
    assert!(tried::<Powerpc>(0));
    assert!(!tried::<OwnerYield>(0));
}

#[test]
fn a_try_takes_no_lock_whose_head_insists() {
    assert!(!tried::<Powerpc>(1_000));
}

/// The switches of powerpc that are off by default.
#[derive(Debug)]
enum Switched {}

impl haltkick_locks::Rules for Switched {
    const IS_STICKY: bool = true;
    const PRODS_HEAD: bool = true;
}

#[test]
fn a_preempted_successor_is_kicked_when_it_becomes_head() {
    let (stage, kicked) = (Stage::<Switched>::new(3), Signal::default());
    let [held, queued] = [(); 2].map(|()| Signal::default());
    stage.host.run(|cpu| match cpu {
        0 => {
            stage.contended.lock(&stage.domain);
            held.give();
            stage.host.until_doing(1, Activity::Head);
            queued.give();
            stage.host.until_counted(2, Event::LockSlowpath);
            stage.host.until_paused(2, 10);
            stage.host.set_preempted(2, true);
            stage.contended.unlock(&stage.domain, ());
        }
        1 => {
            held.await_it();
            let kicked = kicked.clone();
            Cpus::hook_before_kick(move || kicked.give());
            stage.visit();
        }
        _ => {
            queued.await_it();
            stage.visit();
        }
    });
    assert!(kicked.given());
}

/// Bit 15 of the word.
fn is_sleepy(lock: &impl std::fmt::Debug) -> bool {
    let text = format!("{lock:?}");
    let word = text.split("word: ").nth(1).and_then(|rest| rest.split(',').next());
    word.expect("the word").parse::<u32>().expect("a number") & 1 << 15 != 0
}

/// The owner was preempted, runs again, and has released and taken the lock since the head has looked.
#[test]
fn pq6_a_sticky_mark_comes_back_on_a_held_lock_only() {
    let (stage, stalled) = (Stage::<Switched>::new(2), Stalled::new());
    let held = Signal::default();
    stage.host.run(|cpu| match cpu {
        0 => {
            stage.contended.lock(&stage.domain);
            stage.host.set_preempted(0, true);
            held.give();
            stage.host.until_doing(1, Activity::Head);
            while !is_sleepy(&stage.contended) {
                std::thread::yield_now();
            }
            stage.host.set_preempted(0, false);
            stalled.stand_still();
            stage.contended.unlock(&stage.domain, ());
            assert!(!is_sleepy(&stage.contended));
            stage.contended.lock(&stage.domain);
            stalled.goes_on.give();
            while !is_sleepy(&stage.contended) {
                std::thread::yield_now();
            }
            stage.contended.unlock(&stage.domain, ());
        }
        _ => {
            held.await_it();
            stalled.hook();
            stage.visit();
        }
    });
    assert!(!is_sleepy(&stage.contended) && stage.contended.try_lock(&stage.domain).is_some());
}
