//! Tests of the queue lock that moves waiters aside which do not run.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use haltkick_locks::*;

use crate::support::{Cpus, Signal};

/// CPU 0 holds the lock; CPUs 1, 2 and 3 wait, in this order. CPU 1 does not run until CPU 2 has the lock.
#[test]
fn a_waiter_that_does_not_run_comes_back_when_it_does() {
    let host = Cpus::new(4, Duration::from_secs(3600));
    let (domain, lock) = (CnaDomain::<Cpus, 4>::new(host.clone()), CnaLive::new());
    let held = Signal::default();
    let order = Mutex::new(vec![]);
    host.set_preempted(1, true);
    host.run(|cpu| {
        if cpu > 0 {
            held.await_it();
            // A CPU pauses when it has linked itself.
            (1..cpu).for_each(|before| host.until_paused(before, 1));
        }
        let token = lock.lock(&domain);
        held.give();
        match cpu {
            0 => host.until_paused(3, 1),
            2 => host.set_preempted(1, false),
            _ => {}
        }
        order.lock().unwrap().push(cpu);
        lock.unlock(&domain, token);
    });
    assert_eq!(*order.lock().unwrap(), [0, 2, 1, 3]);
    assert_eq!(host.events(Event::LockSkipped), 1);
}

/// CPU 1 waits and never runs. CPUs 2 and 3 take the lock in turns, each only while the other one waits, so that the queue is never empty.
#[test]
fn a_waiter_that_never_runs_is_overtaken_within_its_bound() {
    const BOUND: usize = 64;
    let host = Cpus::new(4, Duration::from_secs(3600));
    let (domain, lock) = (CnaDomain::<Cpus, 4>::new(host.clone()), CnaLive::new());
    let (held, served, overtaken) = (Signal::default(), Signal::default(), AtomicUsize::new(0));
    host.set_preempted(1, true);
    host.run(|cpu| {
        if cpu > 0 {
            held.await_it();
            (1..cpu).for_each(|before| host.until_paused(before, 1));
        }
        loop {
            let token = lock.lock(&domain);
            match cpu {
                0 => {
                    held.give();
                    host.until_paused(3, 1);
                }
                1 => served.give(),
                _ => {}
            }
            let is_last = cpu < 2 || served.given() || overtaken.load(Relaxed) > BOUND;
            if !is_last {
                overtaken.fetch_add(1, Relaxed);
                // Paused in the queue: CPU 2 or 3, whichever this is not.
                host.until_paused(5 - cpu, 1);
            }
            lock.unlock(&domain, token);
            if is_last {
                break;
            }
        }
    });
    assert_eq!(overtaken.into_inner(), BOUND);
}
