//! Properties of the semaphore beyond those of all reader-writer locks.

use std::{thread, time::Duration};

use haltkick_locks::*;
use haltkick_testing::tests;

use crate::support::{self, CPUS, Cpus, Plain, Signal, until};

type Stage<R> = support::Stage<SleepDomain<Cpus, osq::Packed, CPUS>, RwSem<osq::Packed, R>>;
type Today = Stage<RulesToday>;

impl<R: RwSemRules> Stage<R> {
    fn new(host: Cpus) -> &'static Self {
        Self::set_up(host, SleepDomain::new, RwSem::new())
    }

    fn read(&self) {
        self.lock.read(&self.domain);
        self.counter.get();
        self.lock.read_unlock(&self.domain, ());
    }
}

#[test]
fn kicks_of_sleeping_locks_are_not_taken_for_those_of_spinlocks() {
    let stage = Today::new(Cpus::impatient(2));
    stage.host.set_preempted(0, true);
    let [halts, kicked] = Signal::several();
    stage.once_held(
        || {
            halts.await_it();
            stage.unlock();
            kicked.give();
        },
        |_| {
            // Until it has been kicked: it might find first that it need not sleep, and would not be kicked then.
            Cpus::stand_at(Point::BeforeSleep, halts, kicked);
            stage.visit();
        },
    );
    let events = [Event::SleepKick, Event::SleepKickWake, Event::PvKickUnlock, Event::PvKickWake];
    assert_eq!(events.map(|event| stage.host.events(event)), [1, 1, 0, 0]);
    assert!(stage.host.events(Event::SleepLatencyWake) > 0 && stage.host.events(Event::PvLatencyWake) == 0);
}

/// CPU 0 owns the lock, and CPU 1 sleeps as a writer whose patience is over: it has been promised the lock. When CPU 0
/// releases it, and before it kicks, CPU 2 comes for it as a `thief`: CPU 1 is served first.
fn nobody_overtakes_a_writer_that_insists(thief: fn(&Today)) {
    let stage = Today::new(Cpus::impatient(3).insistent());
    stage.host.set_preempted(0, true);
    let [halts, comes, served, stolen] = Signal::several();
    stage.while_held(
        || {
            halts.await_it();
            assert_eq!(stage.host.events(Event::RwsemWlockHandoff), 1, "CPU 1 has insisted");
            Cpus::hook_before_kick(move || {
                comes.give();
                // It has looked and waits, after CPU 1 did so; or it has come in.
                let events = |event| stage.host.events(event);
                let has_looked = || events(Event::RwsemOptFail) + events(Event::RwsemRlock) == 2;
                until(|| stolen.given() || has_looked());
            });
        },
        |cpu| match cpu {
            1 => {
                // Only who is about to halt is kicked.
                Cpus::give_at(Point::BeforeSleep, halts);
                stage.lock();
                assert!(!stolen.given(), "somebody has overtaken a writer that insists");
                served.give();
                stage.unlock();
            }
            _ => {
                comes.await_it();
                thief(stage);
                stolen.give();
                assert!(served.given(), "somebody has overtaken a writer that insists");
            }
        },
    );
}

tests! {
    no_writer_overtakes_a_writer_that_insists: nobody_overtakes_a_writer_that_insists(Today::visit);
    no_reader_overtakes_a_writer_that_insists: nobody_overtakes_a_writer_that_insists(Today::read);
}

/// CPU 1 is woken as a writer whose patience is over since it went to sleep, and does not run. CPU 2, which does, must not come in
/// before it.
#[test]
fn an_overdue_writer_that_is_woken_is_served_next() {
    let stage = Today::new(Cpus::impatient(3));
    stage.host.set_preempted(0, true);
    let [halts, released, goes_on] = Signal::several();
    stage.once_held(
        || {
            halts.await_it();
            thread::sleep(Duration::from_millis(5));
            assert_eq!(stage.host.events(Event::RwsemWlockHandoff), 0, "CPU 1 has not insisted itself");
            stage.unlock();
            released.give();
            // CPU 2 sleeps, or has come in.
            let sleeps = || stage.host.events(Event::RwsemSleepWriter) >= 2;
            until(|| sleeps() || !stage.order.lock().unwrap().is_empty());
            goes_on.give();
        },
        |cpu| {
            match cpu {
                1 => Cpus::stand_at(Point::BeforeSleep, halts, goes_on),
                _ => released.await_it(),
            }
            stage.visit_in_turn();
        },
    );
    assert_eq!(*stage.order.lock().unwrap(), [1, 2]);
}

/// CPU 0 releases the write lock, and CPU 1 is about to be woken as a writer when CPU 2 comes to read: whether it overtakes.
fn a_reader_overtakes_a_woken_writer<R: RwSemRules>() -> bool {
    // A writer that has lost its patience forbids what is looked at here.
    let stage = Stage::<R>::new(Cpus::impatient(3).unhurried());
    stage.host.set_preempted(0, true);
    let [halts, comes] = Signal::several();
    let until_the_reader_has_looked = move || {
        until(|| stage.host.events(Event::RwsemRlockSteal) + stage.host.events(Event::RwsemSleepReader) > 0);
    };
    stage.while_held(
        || {
            halts.await_it();
            Cpus::hook_before_kick(move || {
                comes.give();
                until_the_reader_has_looked();
            });
        },
        |cpu| match cpu {
            1 => {
                // It might find first that it need not sleep, and have the lock before the reader comes.
                Cpus::hook_once(Point::BeforeSleep, move || {
                    halts.give();
                    until_the_reader_has_looked();
                });
                stage.visit();
            }
            _ => {
                comes.await_it();
                stage.read();
            }
        },
    );
    stage.host.events(Event::RwsemRlockSteal) == 1
}

/// CPU 0 writes; CPUs 1, 2 and 3 sleep as reader, writer, reader: how many are let in at once when it leaves.
fn readers_that_are_let_in<R: RwSemRules>() -> usize {
    let stage = Stage::<R>::new(Cpus::impatient(CPUS));
    stage.host.set_preempted(0, true);
    let (let_in, [counted]) = (Plain::default(), Signal::several());
    stage.once_held(
        || {
            stage.host.until_counted(2, Event::RwsemSleepReader);
            stage.unlock();
            (0..stage.host.events(Event::RwsemWakeReader)).for_each(|_| let_in.increment());
            counted.give();
        },
        |cpu| match cpu {
            1 => {
                stage.lock.read(&stage.domain);
                counted.await_it();
                stage.lock.read_unlock(&stage.domain, ());
            }
            2 => {
                stage.host.until_counted(1, Event::RwsemSleepReader);
                stage.visit();
            }
            3 => {
                stage.host.until_counted(1, Event::RwsemSleepWriter);
                stage.read();
            }
            _ => {}
        },
    );
    let_in.get()
}

/// CPU 0 reads until CPU 1 sleeps as a writer: how often that one has spun on it for as long as one may.
fn spins_on_a_reader<R: RwSemRules>() -> u64 {
    let stage = Stage::<R>::new(Cpus::impatient(2));
    support::once_held(
        &stage.host,
        || stage.lock.read(&stage.domain),
        |()| {
            stage.host.until_counted(1, Event::RwsemSleepWriter);
            stage.lock.read_unlock(&stage.domain, ());
        },
        |_| stage.visit(),
    );
    stage.host.events(Event::RwsemOptNospin)
}

/// CPU 1 sleeps as a writer whose patience is over while CPU 0 owns the lock: how often it was promised the lock.
fn promises<R: RwSemRules>() -> u64 {
    let stage = Stage::<R>::new(Cpus::impatient(2).insistent());
    stage.host.set_preempted(0, true);
    let [halts] = Signal::several();
    stage.while_held(
        || halts.await_it(),
        |_| {
            Cpus::give_at(Point::BeforeSleep, halts);
            stage.visit();
        },
    );
    stage.host.events(Event::RwsemWlockHandoff)
}

tests! {
    a_reader_overtakes_a_woken_writer_and_slept_behind_it_in_2018: assert!(
        a_reader_overtakes_a_woken_writer::<RulesToday>() && !a_reader_overtakes_a_woken_writer::<Rules2018>()
    );
    #[cfg_attr(miri, ignore = "there are three CPUs")]
    readers_are_let_past_a_writer_and_up_to_it_in_2018:
        assert_eq!((readers_that_are_let_in::<RulesToday>(), readers_that_are_let_in::<Rules2018>()), (2, 1));
    a_writer_spins_on_readers_briefly_and_did_not_in_2018:
        assert_eq!((spins_on_a_reader::<RulesToday>(), spins_on_a_reader::<Rules2018>()), (1, 0));
    a_sleeper_is_promised_the_lock_today_and_was_not_in_2018:
        assert_eq!((promises::<RulesToday>(), promises::<Rules2018>()), (1, 0));
}
