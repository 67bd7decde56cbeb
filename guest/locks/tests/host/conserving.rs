//! The work-conserving queue spinlock's use of the host's hints, and how its head waits.

use std::{cell::Cell, thread, time::Duration};

use haltkick_locks::*;

use crate::{
    qspinlock::Stage,
    support::{Cpus, Signal, until},
};

const EVER: Duration = Duration::from_secs(3600);

type Conserving = Stage<WorkConserving, DefaultWord>;

#[test]
fn nobody_sleeps_while_nobody_waits_for_a_physical_cpu() {
    let stage = Conserving::new(Cpus::impatient(3));
    stage.host.set_overcommitted(false);
    stage.while_held(
        || {
            stage.host.until_doing(1, Activity::Head);
            stage.host.until_paused(1, 500);
            stage.host.until_paused(2, 500);
        },
        |_| stage.visit(),
    );
    assert_eq!(stage.host.events(Event::PvWaitHead) + stage.host.events(Event::PvWaitNode), 0);
}

/// CPU 1 is head and sleeps, CPU 2 sleeps behind it. CPU 1 wakes, and its tenure, of no length, is over.
#[test]
fn a_head_wakes_its_successor_before_it_has_the_lock() {
    let stage = Conserving::new(Cpus::impatient(3));
    stage.while_two_sleep(
        || {
            stage.host.kick(1);
            stage.host.until_counted(1, Event::PvSpuriousWakeup);
        },
        |_| stage.visit(),
    );
    assert_eq!(stage.domain.sleeping_heads(), 0);
}

/// CPU 2 waits behind CPU 1, which is courteous to CPU 0, whose lock is never free. When its tenure is over it forbids
/// stealing all the same: CPU 0, which wants the lock back at once, has to queue.
#[test]
fn a_head_insists_when_its_tenure_is_over() {
    let stage = Conserving::new(Cpus::new(3, EVER));
    stage.host.set_patience(1, Duration::from_millis(1));
    stage.host.set_patience(2, Duration::ZERO);
    let [insists, queued] = Signal::several();
    stage.once_held(
        || {
            stage.host.until_counted(1, Event::PvWaitNode);
            // It sleeps once in a tenure.
            while !insists.given() {
                stage.host.kick(1);
                thread::yield_now();
            }
            Cpus::give_at(Point::TailPublished, queued);
            stage.unlock();
            stage.visit_in_turn();
        },
        |cpu| {
            match cpu {
                // CPU 0 comes back, finds that the head spins, and joins the queue: to spin there, or to sleep if CPU 2 does.
                1 => Cpus::stand_at(Point::HeadSpinning, insists, queued),
                _ => stage.host.until_doing(1, Activity::Head),
            }
            stage.visit_in_turn();
        },
    );
    assert_eq!(*stage.order.lock().unwrap(), [1, 2, 0]);
}

/// CPU 1 is head, CPU 2 sleeps behind it, and the lock is free when CPU 1 looks for the second time, after 32 pauses.
/// It leaves the lock to its owner, which wants it back: only a third look that finds it free would show that no CPU
/// does.
#[test]
fn a_head_leaves_a_lock_alone_that_it_has_found_free_once() {
    let stage = Conserving::new(Cpus::new(3, EVER));
    stage.host.set_patience(2, Duration::ZERO);
    let [back] = Signal::several();
    stage.once_held(
        || (),
        |cpu| {
            if cpu == 2 {
                stage.host.until_doing(1, Activity::Head);
                return stage.visit();
            }
            let pauses = Cell::new(0);
            // On behalf of CPU 0, and where CPU 1 is known to be.
            Cpus::hook_pauses(move || {
                pauses.set(pauses.get() + 1);
                Cpus::become_cpu(0);
                match pauses.get() {
                    1 => stage.host.until_counted(1, Event::PvWaitNode),
                    32 => stage.unlock(),
                    33 => {
                        stage.lock();
                        back.give();
                    }
                    // It has been found held once more.
                    200 => stage.unlock(),
                    _ => {}
                }
                Cpus::become_cpu(1);
            });
            stage.visit();
        },
    );
    assert!(back.given(), "a lock that its owner wanted back was taken");
}

/// CPU 0 gives a slice up that is about to end, before it locks. Not while it holds another lock: others may wait for that one,
/// and would wait for a slice to come back.
fn a_holder_of_another_lock_keeps_its_slice<D: Sync, L: Lock<D>>(host: &Cpus, domain: &D, lock: &L) {
    host.run(|_| {
        let visit = || lock.unlock(domain, lock.lock(domain));
        visit();
        assert_eq!(host.slices_given_up(), 0, "no slice is about to end");
        host.set_slice_ends_soon(true);
        host.section_entered();
        visit();
        assert_eq!(host.slices_given_up(), 0, "its owner made the holder of another lock lose its CPU");
        host.section_left();
        visit();
        assert_eq!(host.slices_given_up(), 1, "before it locks, and not again as the owner");
    });
}

#[test]
fn a_slice_is_kept_by_who_holds_another_lock() {
    let host = Cpus::impatient(1);
    a_holder_of_another_lock_keeps_its_slice(&host, &host, &SliceTas::new());
    let stage = Conserving::new(Cpus::impatient(1));
    a_holder_of_another_lock_keeps_its_slice(&stage.host, &stage.domain, &stage.lock);
}

/// CPU 1 waits as head and holds another lock meanwhile: instead of yielding to anybody, it sleeps until it is kicked.
#[test]
fn a_head_that_holds_another_lock_does_not_give_up_its_slice() {
    // A tenure is 32 times as long: a head that would yield within it wakes in time to do so even on a host with other work.
    let stage = Conserving::new(Cpus::new(2, Duration::from_millis(10)));
    stage.while_held(
        || {
            // Each sleep of the head ends at once, as if it had been kicked for another reason.
            for sleeps in 1..20 {
                stage.host.until_counted(sleeps, Event::PvWaitHead);
                stage.host.kick(1);
            }
        },
        |_| {
            stage.host.section_entered();
            stage.visit();
            stage.host.section_left();
        },
    );
    assert_eq!(stage.host.slices_given_up(), 0);
}

/// CPU 1 holds one lock and waits for a second one, which CPU 0 holds; releases the second one, whose next waiter has to be
/// kicked; and is a holder all the time.
#[test]
fn a_waiter_or_releaser_is_a_holder_while_it_holds_another() {
    let stage = Stage::<V16, Whole>::new(Cpus::impatient(3));
    stage.while_two_sleep(
        || (),
        |cpu| {
            if cpu == 2 {
                return stage.visit();
            }
            stage.host.section_entered();
            let passed = std::rc::Rc::new(std::cell::RefCell::new(vec![]));
            let passing = passed.clone();
            Cpus::hook(move |point| {
                assert!(stage.host.does(1, Activity::Holder), "{point:?}");
                passing.borrow_mut().push(point);
            });
            stage.lock();
            stage.host.section_entered();
            stage.unlock();
            assert!(stage.host.does(1, Activity::Holder));
            stage.host.section_left();
            assert!(stage.host.does(1, Activity::Holder), "of the outer lock");
            stage.host.section_left();
            assert!(stage.host.does(1, Activity::Other));
            let has_passed = |point| passed.borrow().contains(&point);
            assert!(
                has_passed(Point::BeforeSleep) && has_passed(Point::SlowReleased),
                "it slept, and it kicked"
            );
        },
    );
}

/// CPU 1 is head of a lock that stays held, and is kicked for other reasons again and again: it sleeps once in each tenure,
/// and yields in between.
#[test]
fn a_head_sleeps_again_when_a_tenure_has_passed() {
    // A tenure is 32 times as long, and must be longer than a few dozen rounds, which take Miri's clock a hundred milliseconds.
    let patience = if cfg!(miri) { Duration::from_millis(20) } else { Duration::from_micros(100) };
    let stage = Conserving::new(Cpus::new(2, patience));
    stage.once_held(
        || {
            while stage.host.events(Event::PvWaitHead) < 3 || stage.host.slices_given_up() == 0 {
                stage.host.kick(1);
                thread::yield_now();
            }
            stage.unlock();
            stage.host.kick(1);
        },
        |_| stage.visit(),
    );
    assert!(stage.host.events(Event::PvWaitAgain) >= 2);
}

/// CPU 1 is head and sleeps. The load is gone when CPU 2 comes, so it does not sleep although its predecessor does.
#[test]
fn a_waiter_behind_a_sleeper_spins_while_no_cpu_is_wanted() {
    let stage = Conserving::new(Cpus::impatient(3));
    stage.while_held(
        || {
            stage.host.until_counted(1, Event::PvWaitHead);
            stage.host.set_overcommitted(false);
            until(|| stage.host.pauses(2) >= 500 || stage.host.events(Event::PvWaitNode) > 0);
        },
        |cpu| match cpu {
            1 => stage.visit(),
            _ => {
                until(|| !stage.host.is_overcommitted());
                stage.visit();
            }
        },
    );
    assert_eq!(stage.host.events(Event::PvWaitNode), 0);
}

/// CPU 1 is head when its tenure, of no length, is over, and so is its slice.
#[test]
fn a_head_gives_up_a_slice_that_ends_before_it_insists() {
    let stage = Conserving::new(Cpus::impatient(2));
    stage.while_held(
        || stage.host.until_counted(1, Event::PvWaitHead),
        |_| {
            stage.host.set_slice_ends_soon(true);
            Cpus::hook_once(Point::HeadSpinning, move || {
                let given_up = stage.host.slices_given_up();
                assert_eq!(given_up, 2, "once before it asked for the lock, once before it closes it");
            });
            stage.visit();
        },
    );
}
