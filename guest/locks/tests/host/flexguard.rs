//! Tests of the lock whose waiters sleep while its holder is preempted.

use std::{sync::Mutex, time::Duration};

use haltkick_locks::*;

use crate::support::{Cpus, Signal};

struct Stage {
    host: Cpus,
    domain: FlexGuardDomain<Cpus, 3>,
    lock: FlexGuard,
    order: Mutex<Vec<usize>>,
}

impl Stage {
    /// CPUs that never lose their patience.
    fn new() -> Self {
        let host = Cpus::new(3, Duration::from_secs(3600));
        Self {
            domain: FlexGuardDomain::new(host.clone()),
            host,
            lock: FlexGuard::new(),
            order: Mutex::default(),
        }
    }

    /// CPU 0 holds the lock. CPU 1 is the head of the queue, and CPU 2 stands behind it. Then CPU 0 does `meanwhile`, and releases.
    fn play(&self, meanwhile: impl Fn() + Sync) {
        let held = Signal::default();
        self.host.run(|cpu| {
            match cpu {
                0 => {}
                1 => held.await_it(),
                _ => self.host.until_doing(1, Activity::Head),
            }
            self.lock.lock(&self.domain);
            if cpu == 0 {
                held.give();
                self.host.until_counted(2, Event::LockSlowpath);
                self.host.until_paused(2, 1);
                meanwhile();
            }
            self.order.lock().unwrap().push(cpu);
            self.lock.unlock(&self.domain, ());
        });
    }
}

#[test]
fn no_waiter_sleeps_while_all_cpus_run() {
    let stage = Stage::new();
    stage.play(|| {});
    assert_eq!(*stage.order.lock().unwrap(), [0, 1, 2]);
    assert_eq!(stage.host.events(Event::PvWaitNode), 0);
}

/// The unlock wakes one of them, which wakes the other.
#[test]
fn waiters_sleep_while_the_holder_is_preempted() {
    let stage = Stage::new();
    stage.play(|| {
        stage.host.set_preempted(0, true);
        stage.host.until_counted(2, Event::PvWaitNode);
        stage.host.set_preempted(0, false);
    });
    assert_eq!(stage.order.lock().unwrap().len(), 3);
    assert_eq!(stage.host.events(Event::LockSlowpath), 4, "whoever is woken spins again");
    assert_eq!(stage.host.events(Event::PvKickUnlock), 2);
}

#[test]
fn waiters_behind_a_preempted_head_do_not_wait_for_it() {
    let stage = Stage::new();
    stage.play(|| {
        stage.host.set_preempted(1, true);
        stage.host.until_counted(1, Event::PvWaitNode);
        stage.host.set_preempted(1, false);
    });
    assert_eq!(stage.order.lock().unwrap().len(), 3);
}
