//! Tests of the lock that can fail. Names begin with the faults RQ1 to RQ9 that it once had elsewhere.

use std::time::Duration;

use haltkick_locks::*;
use haltkick_testing::tests;

use crate::support::{self, Cpus, Plain, Signal};

const SOON: Duration = Duration::from_millis(5);

struct Stage {
    host: Cpus,
    domain: RqSpinDomain<Cpus, 4>,
    a: RqSpinLock,
    b: RqSpinLock,
    counter: Plain,
}

impl Stage {
    fn new(cpus: usize) -> &'static Self {
        let host = Cpus::impatient(cpus);
        let (domain, counter) = (RqSpinDomain::new(host.clone()), Plain::default());
        Box::leak(Box::new(Self { host, domain, a: RqSpinLock::new(), b: RqSpinLock::new(), counter }))
    }

    fn lock(&self, lock: &RqSpinLock) -> Result<(), LockError> {
        lock.lock_or_fail(&self.domain)
    }

    fn unlock(&self, lock: &RqSpinLock) {
        lock.unlock(&self.domain, ());
    }

    /// Takes `a` for a section.
    fn visit(&self) -> Result<(), LockError> {
        self.lock(&self.a)?;
        self.counter.increment();
        self.unlock(&self.a);
        Ok(())
    }

    fn while_held(&self, meanwhile: impl Fn() + Sync, others: impl Fn(usize) + Sync) {
        let goes_on = |()| {
            meanwhile();
            self.unlock(&self.a);
        };
        support::once_held(&self.host, || self.lock(&self.a).unwrap(), goes_on, others);
    }

    /// As above; CPU 1 is pending and CPU 2 head before CPU 3 comes, and `meanwhile` begins.
    fn while_queued(&self, meanwhile: impl Fn() + Sync, others: impl Fn(usize) + Sync) {
        self.while_held(
            || {
                self.until_queued(1);
                meanwhile();
            },
            |cpu| {
                match cpu {
                    1 => {}
                    2 => self.host.until_doing(1, Activity::Head),
                    _ => self.until_queued(1),
                }
                others(cpu);
            },
        );
    }

    fn until_queued(&self, cpus: u64) {
        self.host.until_counted(cpus, Event::LockSlowpath);
        self.host.until_doing(2, Activity::Head);
    }

    /// All CPUs have come through; both locks are free, and no table has an entry (RQ7).
    fn assert_at_rest(&self, deadlocks: u64, timeouts: u64) {
        assert_eq!([0, 1, 2, 3].map(|cpu| self.domain.held_by(cpu)), [0; 4]);
        for lock in [&self.a, &self.b] {
            lock.try_lock(&self.domain).expect("free");
            assert!(lock.try_lock(&self.domain).is_none());
            self.unlock(lock);
        }
        assert_eq!(self.domain.held_by(0), 0);
        let events = [Event::LockDeadlock, Event::LockTimedOut].map(|event| self.host.events(event));
        assert_eq!(events, [deadlocks, timeouts]);
    }
}

#[test]
fn rq2_an_nmi_next_to_a_change_of_owner_never_times_out() {
    for point in [Point::EntryMade, Point::EntryStays] {
        let stage = Stage::new(4);
        stage.host.set_lock_limit(0, SOON);
        Cpus::hook_once(point, move || stage.host.nmi(|| stage.visit().expect("free")));
        stage.visit().expect("free");
        assert_eq!(stage.counter.get(), 2);
        stage.assert_at_rest(0, 0);
    }
}

#[test]
fn rq3_a_cpu_that_has_the_lock_fails_at_once() {
    let stage = Stage::new(4);
    stage.host.set_lock_limit(0, SOON);
    stage.lock(&stage.a).unwrap();
    stage.lock(&stage.b).unwrap();
    for lock in [&stage.a, &stage.b] {
        assert_eq!(stage.lock(lock), Err(LockError::Deadlock));
    }
    assert_eq!(stage.host.pauses(0), 0);
    stage.unlock(&stage.b);
    stage.unlock(&stage.a);
    stage.assert_at_rest(2, 0);
}

#[test]
fn rq5_a_cpu_that_has_the_lock_fails_past_a_queue() {
    let stage = Stage::new(4);
    stage.host.set_lock_limit(0, SOON);
    stage.while_held(
        || {
            stage.until_queued(2);
            assert_eq!(stage.lock(&stage.a), Err(LockError::Deadlock));
            assert_eq!(stage.host.pauses(0), 0);
        },
        |_| stage.visit().expect("the others wait for CPU 0 only"),
    );
    stage.assert_at_rest(1, 0);
}

/// CPU 0 holds `a`, CPU 1 is pending, and CPU 2 does something in an NMI that interrupts nothing, or a wait in the queue of `a`.
fn in_an_nmi(interrupts_a_wait: bool, of_a: bool, expected: Result<(), LockError>) {
    let stage = Stage::new(4);
    let [done] = Signal::several();
    let locks = [&stage.a, &stage.b];
    support::once_held(
        &stage.host,
        || locks.iter().for_each(|lock| stage.lock(lock).unwrap()),
        |()| {
            if expected.is_ok() {
                stage.host.until_counted(1, Event::LockSlowpath);
            } else {
                done.await_it();
            }
            stage.unlock(&stage.b);
            stage.unlock(&stage.a);
        },
        |cpu| {
            if cpu != 2 {
                let lock = locks[cpu / 2];
                stage.lock(lock).unwrap();
                return stage.unlock(lock);
            }
            stage.host.until_doing(2, Activity::Head);
            let nmi = move || {
                stage.host.nmi(|| {
                    let lock = if of_a { &stage.a } else { &stage.b };
                    assert_eq!(stage.lock(lock), expected);
                    if expected.is_ok() {
                        stage.unlock(lock);
                    }
                });
                done.give();
            };
            if interrupts_a_wait {
                Cpus::hook_once(Point::NodeClaimed, nmi);
                stage.visit().unwrap();
            } else {
                nmi();
            }
        },
    );
    stage.assert_at_rest(u64::from(expected.is_err()), 0);
}

tests! {
    rq1_an_nmi_does_not_wait_for_what_it_interrupts: in_an_nmi(true, true, Err(LockError::Deadlock));
    rq1_an_nmi_does_not_queue_over_a_queueing_cpu: in_an_nmi(true, false, Err(LockError::Deadlock));
    rq4_an_nmi_queues_where_no_node_is_in_use: in_an_nmi(false, true, Ok(()));
}

/// CPU 0 has `a` and asks for `b`, CPU 1 has `b` and asks for `a`, CPU 2 is pending for `a`, and CPU 3 queues behind CPU 1, if it is there. CPU 0
/// stands still until CPU 1 has failed.
fn abba(cpus: usize) {
    let stage = Stage::new(cpus);
    stage.host.set_lock_limit(1, Duration::from_secs(2));
    let [failed] = Signal::several();
    stage.while_held(
        || {
            stage.until_queued(cpus as u64 - 2);
            Cpus::hook_pauses(move || failed.await_it());
            stage.lock(&stage.b).expect("CPU 1 has given way");
            stage.unlock(&stage.b);
        },
        |cpu| {
            if cpu == 1 {
                stage.lock(&stage.b).unwrap();
                stage.host.until_doing(1, Activity::Head);
                assert_eq!(stage.visit(), Err(LockError::Deadlock));
                stage.unlock(&stage.b);
                return failed.give();
            }
            if cpu == 3 {
                stage.until_queued(1);
            }
            stage.visit().expect("a bystander");
        },
    );
    assert_eq!(stage.counter.get(), cpus - 2);
    stage.assert_at_rest(1, 0);
    assert_eq!(stage.host.events(Event::LockDissolved), 0);
}

tests! {
    rq6_a_deadlock_leaves_the_queue_to_the_bystanders: abba(4);
    rq9_a_deadlock_of_the_last_in_the_queue_frees_the_tail: abba(3);
}

#[test]
fn a_head_that_times_out_sends_the_queue_away() {
    let stage = Stage::new(4);
    stage.while_queued(
        || {
            stage.until_queued(2);
            stage.host.until_paused(3, 10);
            stage.host.set_lock_limit(2, Duration::ZERO);
            stage.host.until_counted(2, Event::LockTimedOut);
        },
        |cpu| match cpu {
            1 => stage.visit().expect("the pending CPU may wait"),
            _ => assert_eq!(stage.visit(), Err(LockError::TimedOut)),
        },
    );
    stage.assert_at_rest(0, 2);
    assert_eq!(stage.host.events(Event::LockDissolved), 1);
}

/// CPU 3, behind the head, stands still when that one gives up.
#[test]
fn a_cpu_does_not_come_back_to_a_queue_that_ends() {
    let stage = Stage::new(4);
    let [stands_still, goes_on] = Signal::several();
    stage.while_queued(
        || {
            stands_still.await_it();
            stage.host.set_lock_limit(2, 20 * SOON);
            stage.host.until_counted(1, Event::LockTimedOut);
            stage.host.set_lock_limit(2, Duration::MAX);
            stage.host.until_paused(2, 1_000);
            assert_eq!(stage.host.events(Event::LockSlowpath), 2);
            goes_on.give();
        },
        |cpu| {
            if cpu == 3 {
                Cpus::hook_pauses(move || {
                    stands_still.give();
                    goes_on.await_it();
                });
            }
            stage.a.lock(&stage.domain);
            stage.unlock(&stage.a);
        },
    );
    stage.assert_at_rest(0, 2);
}
