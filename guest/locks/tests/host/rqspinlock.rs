//! Tests of the queue spinlock whose acquisition may fail.

use std::time::Duration;

use haltkick_locks::*;

use crate::support::{Cpus, Signal};

const FOR_EVER: Limits = Limits { pending_ns: u64::MAX, head_ns: u64::MAX, own_time: false };
/// Long enough for all CPUs of a test to come, and short enough to wait for.
const SHORT: Limits = Limits { pending_ns: 200_000_000, head_ns: 200_000_000, own_time: false };

struct Stage {
    host: Cpus,
    domain: RqSpinDomain<Cpus, 4>,
    locks: [RqSpinLock<Whole>; 2],
}

impl Stage {
    fn new(cpus: usize, limits: Limits) -> Self {
        let host = Cpus::new(cpus, Duration::ZERO);
        Self {
            domain: RqSpinDomain::new(host.clone(), limits),
            host,
            locks: [const { RqSpinLock::new() }; 2],
        }
    }

    fn acquire(&self, lock: usize) -> Result<(), Refused> {
        self.locks[lock].acquire(&self.domain)
    }

    fn unlock(&self, lock: usize) {
        self.locks[lock].unlock(&self.domain, ());
    }
}

#[test]
fn a_cpu_that_has_the_lock_is_refused_at_once() {
    let stage = Stage::new(2, FOR_EVER);
    let (held, refused) = (Signal::default(), Signal::default());
    stage.host.run(|cpu| {
        if cpu == 0 {
            assert_eq!((stage.acquire(0), stage.acquire(0)), (Ok(()), Err(Refused::Deadlock)));
            held.give();
            // With a queue, too: CPU 1 is the pending one.
            stage.host.until_doing(1, Activity::Head);
            assert_eq!(stage.acquire(0), Err(Refused::Deadlock));
            refused.give();
            stage.unlock(0);
        } else {
            held.await_it();
            assert_eq!(stage.acquire(0), Ok(()));
            refused.await_it();
            stage.unlock(0);
        }
    });
    assert_eq!(stage.domain.listed(), 0);
    assert_eq!(stage.host.events(Event::LockDeadlock), 2);
}

/// CPU 0 and CPU 1 hold a lock each and ask for the other's. On the lock of CPU 0 wait: CPU 2, pending; CPU 1, head; the others.
fn deadlock_of_two(cpus: usize) {
    let stage = Stage::new(cpus, FOR_EVER);
    let held = Signal::default();
    let refused = std::sync::Arc::new(Signal::default());
    stage.host.run(|cpu| match cpu {
        0 => {
            stage.acquire(0).expect("free");
            held.give();
            stage.host.until_doing(2, Activity::Head);
            stage.host.until_doing(cpus - 3, Activity::Waiter);
            // CPU 1 is to be the one that finds the deadlock.
            let refused = refused.clone();
            Cpus::hook_pauses(move || refused.await_it());
            assert_eq!(stage.acquire(1), Ok(()));
            stage.unlock(1);
            stage.unlock(0);
        }
        1 => {
            stage.acquire(1).expect("free");
            stage.host.until_doing(1, Activity::Head);
            assert_eq!(stage.acquire(0), Err(Refused::Deadlock));
            stage.unlock(1);
            refused.give();
        }
        _ => {
            held.await_it();
            stage.host.until_doing((cpu - 2) * 2, Activity::Head);
            assert_eq!(stage.acquire(0), Ok(()), "no deadlock of CPU {cpu}'s");
            stage.unlock(0);
        }
    });
    assert_eq!((stage.host.events(Event::LockDeadlock), stage.domain.listed()), (1, 0));
}

#[test]
fn who_queues_behind_a_deadlock_gets_the_lock() {
    deadlock_of_two(4);
}

#[test]
fn the_last_in_a_queue_may_leave_it_for_a_deadlock() {
    deadlock_of_two(3);
}

/// CPU 1 is pending, CPU 2 head, CPU 3 behind it. The holder leaves when all have failed.
#[test]
fn all_of_the_queue_fail_when_a_limit_is_over() {
    let stage = Stage::new(4, SHORT);
    let held = Signal::default();
    stage.host.run(|cpu| {
        if cpu == 0 {
            stage.acquire(0).expect("free");
            held.give();
            stage.host.until_counted(3, Event::RqspinlockLockTimeout);
            stage.unlock(0);
            return;
        }
        held.await_it();
        stage.host.until_doing(cpu - 1, Activity::Head);
        assert_eq!(stage.acquire(0), Err(Refused::Timeout));
    });
    stage.acquire(0).expect("free, and without a queue");
    stage.unlock(0);
    assert_eq!(stage.domain.listed(), 0);
}
