//! What is particular to the lock that yields to its owner.

use std::sync::Arc;

use haltkick_locks::*;

use crate::support::{Cpus, Plain, Signal};

struct Stage {
    host: Cpus,
    domain: OwnerYieldDomain<Cpus, 8>,
    contended: OwnerYield,
    other: OwnerYield,
    counter: Plain,
}

impl Stage {
    fn new(cpus: usize) -> Arc<Self> {
        let host = Cpus::impatient(cpus);
        let domain = OwnerYieldDomain::new(host.clone());
        let (contended, other) = (OwnerYield::new(), OwnerYield::new());
        Arc::new(Self { host, domain, contended, other, counter: Plain::default() })
    }

    fn visit(&self) {
        self.contended.lock(&self.domain);
        self.counter.increment();
        self.contended.unlock(&self.domain, ());
    }
}

/// CPU 1 has queued for `contended` before. It claims the same node for `other`, and before it has named that
/// lock, an interrupt queues for `contended` again. CPU 2 then looks for the node to queue behind.
#[test]
fn t18_a_node_is_not_found_under_its_last_lock() {
    let stage = Stage::new(3);
    let [held, visited, both_held, queued, linked] = [(); 5].map(|()| Signal::default());
    stage.host.run(|cpu| match cpu {
        0 => {
            stage.contended.lock(&stage.domain);
            held.give();
            stage.host.until_doing(1, Activity::Head);
            stage.contended.unlock(&stage.domain, ());
            visited.await_it();
            stage.contended.lock(&stage.domain);
            stage.other.lock(&stage.domain);
            both_held.give();
            linked.await_it();
            stage.contended.unlock(&stage.domain, ());
            stage.other.unlock(&stage.domain, ());
        }
        1 => {
            held.await_it();
            stage.visit();
            visited.give();
            both_held.await_it();
            let (interrupted, queued) = (stage.clone(), queued.clone());
            Cpus::hook_once(Point::NodeClaimed, move || {
                let queued = queued.clone();
                Cpus::hook_once(Point::TailPublished, move || queued.give());
                interrupted.visit();
            });
            stage.other.lock(&stage.domain);
            stage.other.unlock(&stage.domain, ());
        }
        _ => {
            queued.await_it();
            let linked = linked.clone();
            Cpus::hook_once(Point::TailPublished, move || linked.give());
            stage.visit();
        }
    });
    assert_eq!(stage.counter.get(), 3);
}

/// CPU 1 is head for so long that it forbids stealing; CPU 2 must queue without trying.
#[test]
fn a_newcomer_queues_at_once_when_the_head_has_waited_long_enough() {
    let stage = Stage::new(3);
    let [held, waited] = [(); 2].map(|()| Signal::default());
    stage.host.run(|cpu| match cpu {
        0 => {
            stage.contended.lock(&stage.domain);
            held.give();
            stage.host.until_paused(1, 1_000);
            waited.give();
            stage.host.until_counted(2, Event::LockSlowpath);
            stage.contended.unlock(&stage.domain, ());
        }
        1 => {
            held.await_it();
            stage.visit();
        }
        _ => {
            waited.await_it();
            let staged = stage.clone();
            Cpus::hook_once(Point::NodeClaimed, move || {
                assert_eq!(staged.host.pauses(2), 0, "CPU 2 has looked for a chance to steal");
            });
            stage.visit();
        }
    });
}

/// CPU 1 is head and CPU 2 behind it.
fn with_a_head_and_a_waiter(stage: &Stage, meanwhile: impl Fn() + Sync) {
    let [held, queued] = [(); 2].map(|()| Signal::default());
    stage.host.run(|cpu| match cpu {
        0 => {
            stage.contended.lock(&stage.domain);
            held.give();
            stage.host.until_doing(1, Activity::Head);
            queued.give();
            stage.host.until_counted(2, Event::LockSlowpath);
            meanwhile();
            stage.contended.unlock(&stage.domain, ());
        }
        1 => {
            held.await_it();
            stage.visit();
        }
        _ => {
            queued.await_it();
            stage.visit();
        }
    });
}

#[test]
fn the_whole_queue_yields_to_a_preempted_owner() {
    let stage = Stage::new(3);
    with_a_head_and_a_waiter(&stage, || {
        stage.host.set_preempted(0, true);
        stage.host.until_yielded(1, 0);
        stage.host.until_yielded(2, 0);
        stage.host.set_preempted(0, false);
    });
}

#[test]
fn a_waiter_yields_to_a_preempted_predecessor_while_the_owner_runs() {
    let stage = Stage::new(3);
    with_a_head_and_a_waiter(&stage, || {
        stage.host.set_preempted(1, true);
        stage.host.until_yielded(2, 1);
        stage.host.set_preempted(1, false);
    });
}
