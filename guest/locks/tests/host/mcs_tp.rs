//! Tests of the queue lock whose waiters publish the time.

use std::time::Duration;

use haltkick_locks::*;

use crate::support::{Cpus, Signal};

const FOR_EVER: Duration = Duration::from_secs(3600);

struct Stage {
    host: Cpus,
    domain: McsTpDomain<Cpus, 4>,
    lock: McsTp,
}

impl Stage {
    fn new(host: Cpus) -> Self {
        Self { domain: McsTpDomain::new(host.clone()), host, lock: McsTp::new() }
    }

    fn lock(&self) -> McsTpToken {
        self.lock.lock(&self.domain)
    }

    fn unlock(&self, token: McsTpToken) {
        self.lock.unlock(&self.domain, token);
    }
}

#[test]
fn waiters_that_run_are_served_in_order() {
    let stage = Stage::new(Cpus::new(4, FOR_EVER));
    crate::family::waiters_are_served_in_order(&stage.host, &stage.domain, &stage.lock);
    assert_eq!(stage.host.events(Event::LockSkipped), 0);
}

/// CPU 1 waits, and then its thread stands still.
#[test]
fn a_lock_whose_only_waiter_stands_still_becomes_free() {
    let stage = Stage::new(Cpus::impatient(2));
    let [held, stands_still, goes_on] = [(); 3].map(|()| std::sync::Arc::new(Signal::default()));
    stage.host.run(|cpu| {
        if cpu == 0 {
            let token = stage.lock();
            held.give();
            stands_still.await_it();
            stage.unlock(token);
            let token = stage.lock.try_lock(&stage.domain).expect("free, although CPU 1 waits");
            stage.unlock(token);
            assert_eq!(stage.host.events(Event::LockSkipped), 1);
            goes_on.give();
        } else {
            held.await_it();
            let (stands_still, goes_on) = (stands_still.clone(), goes_on.clone());
            Cpus::hook_pauses(move || {
                stands_still.give();
                goes_on.await_it();
            });
            let token = stage.lock();
            stage.unlock(token);
        }
    });
}

/// CPU 2 is the impatient one.
#[test]
fn a_waiter_yields_to_the_holder_and_to_the_next_one() {
    let stage = Stage::new(Cpus::new(3, FOR_EVER));
    stage.host.set_patience(2, Duration::ZERO);
    let [held, queued] = [(); 2].map(|()| Signal::default());
    stage.host.run(|cpu| match cpu {
        0 => {
            let token = stage.lock();
            held.give();
            stage.host.until_yielded(2, 0);
            stage.unlock(token);
        }
        1 => {
            held.await_it();
            queued.give();
            let token = stage.lock();
            stage.host.until_yielded(2, 1);
            stage.unlock(token);
        }
        _ => {
            queued.await_it();
            stage.host.until_paused(1, 1);
            let token = stage.lock();
            stage.unlock(token);
        }
    });
    assert!(stage.host.events(Event::LockYielded) >= 2);
}
