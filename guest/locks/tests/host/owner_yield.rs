//! Properties of the lock that yields to its owner.

use std::sync::Arc;

use haltkick_locks::*;

use crate::support::{Cpus, Plain, Signal};

pub(crate) struct Stage<R> {
    pub(crate) host: Cpus,
    pub(crate) domain: OwnerYieldDomain<Cpus, 8>,
    pub(crate) contended: OwnerQueue<R>,
    other: OwnerQueue<R>,
    counter: Plain,
}

type Yielding = Stage<<OwnerYield as Ruled>::Rules>;

/// Names the rules of a lock.
pub(crate) trait Ruled {
    type Rules: Rules;
}

impl<R: Rules> Ruled for OwnerQueue<R> {
    type Rules = R;
}

impl<R: Rules> Stage<R> {
    pub(crate) fn new(cpus: usize) -> Arc<Self> {
        let host = Cpus::impatient(cpus);
        let domain = OwnerYieldDomain::new(host.clone());
        let (contended, other) = (OwnerQueue::new(), OwnerQueue::new());
        Arc::new(Self { host, domain, contended, other, counter: Plain::default() })
    }

    pub(crate) fn visit(&self) {
        self.contended.lock(&self.domain);
        self.counter.increment();
        self.contended.unlock(&self.domain, ());
    }
}

/// CPU 1 has queued for `contended` before. It claims the same node for `other`, and before it has named that
/// lock, an interrupt queues for `contended` again. CPU 2 then looks for the node to queue behind.
#[test]
fn t18_a_node_is_not_found_under_its_last_lock() {
    find_the_node::<OwnerYield>();
    find_the_node::<Powerpc>();
}

fn find_the_node<L: Ruled>() {
    let stage = Stage::<L::Rules>::new(3);
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

/// CPU 1 has been head long enough to forbid stealing; CPU 2 must queue without trying.
#[test]
fn a_newcomer_queues_at_once_when_the_head_has_waited_long_enough() {
    let stage = Yielding::new(3);
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
pub(crate) fn with_a_head_and_a_waiter<R: Rules>(stage: &Stage<R>, meanwhile: impl Fn() + Sync) {
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
    let stage = Yielding::new(3);
    with_a_head_and_a_waiter(&stage, || {
        stage.host.set_preempted(0, true);
        stage.host.until_yielded(1, 0);
        stage.host.until_yielded(2, 0);
        stage.host.set_preempted(0, false);
    });
}

#[test]
fn a_waiter_yields_to_a_preempted_predecessor_while_the_owner_runs() {
    yield_to_the_predecessor::<OwnerYield>();
    yield_to_the_predecessor::<Powerpc>();
}

fn yield_to_the_predecessor<L: Ruled>() {
    let stage = Stage::<L::Rules>::new(3);
    with_a_head_and_a_waiter(&stage, || {
        stage.host.set_preempted(1, true);
        stage.host.until_yielded(2, 1);
        stage.host.set_preempted(1, false);
    });
}

/// CPU 1 is head and forbids stealing. CPU 2, whose nodes are all in use, must not take the lock that is free to CPU 1.
#[test]
fn a_cpu_without_a_node_does_not_overtake_a_head_that_insists() {
    let stage = Yielding::new(3);
    let outer: Arc<[OwnerYield; LEVELS]> = Arc::new(std::array::from_fn(|_| OwnerYield::new()));
    let [held, waited, stalled, goes_on] = [(); 4].map(|()| Signal::default());
    let order = Arc::new(std::sync::Mutex::new(vec![]));
    let visit = |stage: &Yielding, order: &std::sync::Mutex<Vec<usize>>, cpu| {
        stage.contended.lock(&stage.domain);
        order.lock().unwrap().push(cpu);
        stage.contended.unlock(&stage.domain, ());
    };
    stage.host.run(|cpu| match cpu {
        0 => {
            stage.contended.lock(&stage.domain);
            outer.iter().for_each(|lock| lock.lock(&stage.domain));
            held.give();
            stage.host.until_paused(1, 1_000);
            waited.give();
            stalled.await_it();
            stage.host.until_counted(1, Event::LockNoNode);
            stage.contended.unlock(&stage.domain, ());
            stage.host.until_paused(2, 100);
            goes_on.give();
            outer.iter().for_each(|lock| lock.unlock(&stage.domain, ()));
        }
        1 => {
            held.await_it();
            let (waited, stalled, goes_on) = (waited.clone(), stalled.clone(), goes_on.clone());
            Cpus::hook_pauses(move || {
                if waited.given() {
                    stalled.give();
                    goes_on.await_it();
                }
            });
            visit(&stage, &order, 1);
        }
        _ => {
            stalled.await_it();
            let level = std::cell::Cell::new(0);
            let (staged, inner, order) = (stage.clone(), outer.clone(), order.clone());
            Cpus::hook(move |point| {
                if point == Point::NodeClaimed && level.get() < LEVELS {
                    level.set(level.get() + 1);
                    match inner.get(level.get()) {
                        Some(lock) => {
                            lock.lock(&staged.domain);
                            lock.unlock(&staged.domain, ());
                        }
                        None => visit(&staged, &order, 2),
                    }
                }
            });
            outer[0].lock(&stage.domain);
            outer[0].unlock(&stage.domain, ());
        }
    });
    assert_eq!(*order.lock().unwrap(), [1, 2]);
}
