//! Each race that the queue spinlock once had, as far as it does not need a weak memory model, nor an interrupt.

use std::thread;

use haltkick_locks::*;

use super::{Stage, sleepers::newcomer_meets_waiter};
use crate::support::{Cpus, Signal};

on_both_layouts! {
    t2_a_head_that_registered_itself_is_not_registered_again
    t4_the_entry_is_gone_before_the_lock_is_free
    t5_a_link_made_before_its_node_is_used_stays
    t7_nobody_waits_for_a_lost_pending_cpu_outside_the_queue
    t14_a_lock_that_is_not_held_cannot_be_unlocked
    a_head_that_the_owner_registers_does_not_register_itself
}

/// CPU 1 makes CPU 2 head, and does not look at its state before CPU 2 has registered itself and gone to
/// sleep.
fn t2_a_head_that_registered_itself_is_not_registered_again<W: Word>() {
    let stage = Stage::<V16, W>::new(Cpus::impatient(3));
    stage.while_held(
        || stage.host.until_counted(1, Event::PvWaitNode),
        |cpu| match cpu {
            1 => {
                Cpus::hook_once(Point::HandedOver, move || {
                    let sleeps = stage.host.events(Event::PvWaitHead);
                    stage.host.kick(2);
                    stage.host.until_counted(sleeps + 1, Event::PvWaitHead);
                });
                stage.lock();
                assert_eq!(stage.domain.sleeping_heads(), 1, "the lock is registered once");
                stage.unlock();
            }
            _ => {
                stage.host.until_counted(1, Event::PvWaitHead);
                stage.visit();
            }
        },
    );
    assert_eq!(stage.domain.sleeping_heads(), 0);
}

/// CPU 1 finds its successor, CPU 2, asleep, and is preempted before it registers it. CPU 2 wakes by itself
/// and goes round and round: the locked byte does not say SLOW, so there is nothing to sleep for, and nothing
/// to register either.
fn a_head_that_the_owner_registers_does_not_register_itself<W: Word>() {
    let stage = Stage::<WorkConserving, W>::new(Cpus::impatient(3));
    let [spinning] = Signal::several();
    stage.while_held(
        || stage.host.until_counted(1, Event::PvWaitNode),
        |cpu| match cpu {
            1 => {
                Cpus::hook(move |point| match point {
                    // CPU 2 would not queue while CPU 1 sleeps.
                    Point::HeadSpinning if !spinning.given() => {
                        spinning.give();
                        stage.host.until_counted(1, Event::PvWaitNode);
                    }
                    Point::SuccessorHashed => {
                        let rounds = stage.host.events(Event::PvWaitHead) + 3;
                        stage.host.kick(2);
                        // With a second entry CPU 2 sleeps, and the rounds come to an end.
                        while stage.host.events(Event::PvWaitHead) < rounds {
                            assert_eq!(stage.domain.sleeping_heads(), 0, "CPU 2 has registered itself");
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
        },
    );
    assert_eq!(stage.domain.sleeping_heads(), 0);
}

/// CPU 0 is preempted in a slow unlock, right after its release. The head wakes without its kick, and the
/// lock's next head goes to sleep: there must be no entry left from before.
fn t4_the_entry_is_gone_before_the_lock_is_free<W: Word>() {
    let stage = Stage::<V16, W>::new(Cpus::impatient(3));
    stage.while_held(
        || {
            stage.host.until_counted(1, Event::PvWaitHead);
            stage.host.until_counted(1, Event::PvWaitNode);
            Cpus::hook_once(Point::SlowReleased, move || {
                stage.host.kick(1);
                stage.host.until_counted(2, Event::LockSlowpath);
                assert!(stage.domain.sleeping_heads() <= 1, "one entry for one lock");
            });
        },
        |cpu| match cpu {
            1 => {
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
        },
    );
    assert_eq!(stage.domain.sleeping_heads(), 0);
}

/// CPU 2 links itself behind CPU 1, which is preempted right after it made itself the tail.
fn t5_a_link_made_before_its_node_is_used_stays<W: Word>() {
    let stage = Stage::<V16, W>::new(Cpus::impatient(3));
    let [published, linked] = Signal::several();
    stage.while_held(
        || linked.await_it(),
        |cpu| match cpu {
            1 => {
                Cpus::stand_at(Point::TailPublished, published, linked);
                stage.visit();
            }
            _ => {
                published.await_it();
                Cpus::give_at(Point::HaltedPublished, linked);
                stage.visit();
            }
        },
    );
    assert_eq!(stage.counter.get(), 2);
}

/// CPU 1 has the pending bit and is preempted; the owner leaves. CPU 2, arriving at (0,1,0), must get in
/// line.
fn t7_nobody_waits_for_a_lost_pending_cpu_outside_the_queue<W: Word>() {
    // After the owner has left: at (0,1,1) it would get in line at once.
    newcomer_meets_waiter::<Native, W>(Point::PendingSet, false);
}

fn t14_a_lock_that_is_not_held_cannot_be_unlocked<W: Word>() {
    let stage = Stage::<Pv, W>::new(Cpus::impatient(1));
    stage.visit();
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| stage.unlock())).unwrap_err();
    let message = panic.downcast_ref::<String>().expect("a formatted message");
    assert!(message.contains("locked byte is 0: not held"), "{message}");
}
