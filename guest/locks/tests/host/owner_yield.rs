//! Properties of the lock that yields to its owner.

use haltkick_locks::*;
use haltkick_testing::tests;

use crate::support::{self, Cpus, Signal};

type Stage = support::Stage<OwnerYieldDomain<Cpus, 8>, OwnerYield>;

impl Stage {
    fn new(cpus: usize) -> &'static Self {
        Self::set_up(Cpus::impatient(cpus), OwnerYieldDomain::new, OwnerYield::new())
    }
}

/// CPU 1 has queued for the stage's lock before. It claims the same node for `other`, and before it has named that
/// lock, an interrupt queues for the first one again. CPU 2 then looks for the node to queue behind.
#[test]
fn t18_a_node_is_not_found_under_its_last_lock() {
    let (stage, other) = (Stage::new(3), OwnerYield::new());
    let [visited, both_held, queued, linked] = Signal::several();
    stage.once_held(
        || {
            stage.host.until_doing(1, Activity::Head);
            stage.unlock();
            visited.await_it();
            stage.lock();
            other.lock(&stage.domain);
            both_held.give();
            linked.await_it();
            stage.unlock();
            other.unlock(&stage.domain, ());
        },
        |cpu| {
            if cpu == 2 {
                queued.await_it();
                Cpus::give_at(Point::TailPublished, linked);
                return stage.visit();
            }
            stage.visit();
            visited.give();
            both_held.await_it();
            Cpus::hook_once(Point::NodeClaimed, move || {
                Cpus::give_at(Point::TailPublished, queued);
                stage.visit();
            });
            other.lock(&stage.domain);
            other.unlock(&stage.domain, ());
        },
    );
    assert_eq!(stage.counter.get(), 3);
}

/// CPU 1 has been head long enough to forbid stealing; CPU 2 must queue without trying.
#[test]
fn a_newcomer_queues_at_once_when_the_head_has_waited_long_enough() {
    let stage = Stage::new(3);
    stage.while_held(
        || stage.host.until_counted(2, Event::LockSlowpath),
        |cpu| match cpu {
            1 => stage.visit(),
            _ => {
                stage.host.until_paused(1, 1_000);
                Cpus::hook_once(Point::NodeClaimed, move || {
                    assert_eq!(stage.host.pauses(2), 0, "CPU 2 has looked for a chance to steal");
                });
                stage.visit();
            }
        },
    );
}

/// CPU 1 is head and CPU 2 behind it. Those behind CPU `preempted` yield to it.
fn who_waits_yields_to(preempted: usize) {
    let stage = Stage::new(3);
    stage.while_held(
        || {
            stage.host.until_counted(2, Event::LockSlowpath);
            stage.host.set_preempted(preempted, true);
            (preempted + 1..3).for_each(|waiter| stage.host.until_yielded(waiter, preempted));
            stage.host.set_preempted(preempted, false);
        },
        |cpu| {
            if cpu == 2 {
                stage.host.until_doing(1, Activity::Head);
            }
            stage.visit();
        },
    );
}

tests! {
    the_whole_queue_yields_to_a_preempted_owner: who_waits_yields_to(0);
    a_waiter_yields_to_a_preempted_predecessor_while_the_owner_runs: who_waits_yields_to(1);
}

/// CPU 1 is head and forbids stealing. CPU 2, whose nodes are all in use, must not take the lock that is free to CPU 1.
#[test]
fn a_cpu_without_a_node_does_not_overtake_a_head_that_insists() {
    let stage = Stage::new(3);
    let outer: &'static [OwnerYield; LEVELS] =
        Box::leak(Box::new(std::array::from_fn(|_| OwnerYield::new())));
    let [waited, stalled, goes_on] = Signal::several();
    stage.once_held(
        || {
            outer.iter().for_each(|lock| lock.lock(&stage.domain));
            stage.host.until_paused(1, 1_000);
            waited.give();
            stalled.await_it();
            stage.host.until_counted(1, Event::LockNoNode);
            stage.unlock();
            stage.host.until_paused(2, 100);
            goes_on.give();
            outer.iter().for_each(|lock| lock.unlock(&stage.domain, ()));
        },
        |cpu| {
            if cpu == 1 {
                Cpus::hook_pauses(move || {
                    if waited.given() {
                        stalled.give();
                        goes_on.await_it();
                    }
                });
                return stage.visit_in_turn();
            }
            stalled.await_it();
            let level = std::cell::Cell::new(0);
            Cpus::hook(move |point| {
                if point == Point::NodeClaimed && level.get() < LEVELS {
                    level.set(level.get() + 1);
                    match outer.get(level.get()) {
                        Some(lock) => {
                            lock.lock(&stage.domain);
                            lock.unlock(&stage.domain, ());
                        }
                        None => stage.visit_in_turn(),
                    }
                }
            });
            outer[0].lock(&stage.domain);
            outer[0].unlock(&stage.domain, ());
        },
    );
    assert_eq!(*stage.order.lock().unwrap(), [1, 2]);
}

/// CPU 1 finds the owner preempted, and before it looks at the word again, the lock has another owner.
#[test]
fn no_slice_goes_to_a_cpu_that_owns_nothing() {
    let stage = Stage::new(3);
    stage.host.set_preempted(0, true);
    let [looked, changed] = Signal::several();
    stage.once_held(
        || {
            looked.await_it();
            stage.unlock();
        },
        |cpu| {
            if cpu == 1 {
                Cpus::hook_pauses(move || {
                    looked.give();
                    changed.await_it();
                });
                return stage.visit();
            }
            looked.await_it();
            stage.lock();
            changed.give();
            stage.host.until_paused(1, 10);
            stage.unlock();
        },
    );
    assert!(!stage.host.has_yielded(1, 0));
}
