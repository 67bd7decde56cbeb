//! The sleeping locks. They spin on an owner that runs and sleep behind one that does not, so each is tried with no CPU
//! preempted and with some.

use haltkick_locks::{
    osq::{Packed, PrevCpu},
    *,
};
use haltkick_testing::tests;

use crate::model::{Bounds, Cpus, Plain, assert_reached, check, machine, play_out};

/// Which CPUs are always found preempted.
type Preempted = fn(usize) -> bool;

/// Sleepers of `CPUS` CPUs. The layout of the spin queue has models of its own.
type Domain<const CPUS: usize> = SleepDomain<Cpus, PrevCpu, CPUS>;

const NOBODY: Preempted = |_| false;
const EVERYBODY: Preempted = |_| true;
const FIRST: Preempted = |cpu| cpu == 0;

const ONCE: Bounds = Bounds { rounds: 1, preemptions: 2, pauses: 4 };
const TWICE: Bounds = Bounds { rounds: 2, preemptions: 3, pauses: 4 };
const SPINNING: Bounds = Bounds { rounds: 2, preemptions: 2, pauses: 4 };

/// A domain of CPUs that are found preempted.
fn domain<const CPUS: usize>(
    preempted: Preempted,
) -> impl Fn(Cpus) -> Domain<CPUS> + Copy + Sync + Send + 'static {
    move |machine| {
        (0..CPUS).for_each(|cpu| machine.set_preempted(cpu, preempted(cpu)));
        Domain::new(machine)
    }
}

fn mutex<const CPUS: usize>(bounds: Bounds, preempted: Preempted) {
    check(CPUS, bounds, domain::<CPUS>(preempted), Mutex::<PrevCpu>::new, |_| {});
}

fn rwsem<const CPUS: usize>(bounds: Bounds, preempted: Preempted) {
    check(CPUS, bounds, domain::<CPUS>(preempted), RwSem::<PrevCpu>::new, |_| {});
}

#[test]
fn futex_with_two_and_with_three_cpus() {
    check(2, TWICE, SleepDomain::<Cpus, Packed, 2>::new, FutexMutex::new, |_| {});
    check(3, ONCE, SleepDomain::<Cpus, Packed, 3>::new, FutexMutex::new, |_| {});
}

tests! {
    mutex_with_two_cpus_that_spin: mutex::<2>(SPINNING, NOBODY);
    mutex_with_two_cpus_that_sleep: mutex::<2>(TWICE, EVERYBODY);
}

/// A sleeper is woken and overtaken, and insists: the next unlock hands the lock to it.
#[test]
fn mutex_is_handed_to_an_overtaken_sleeper() {
    mutex::<3>(ONCE, EVERYBODY);
    assert_reached([Event::MutexHandoff]);
}

tests! {
    mutex_with_three_cpus_of_which_one_is_preempted: mutex::<3>(ONCE, FIRST);
    rwsem_with_two_writers_that_spin: rwsem::<2>(SPINNING, NOBODY);
    rwsem_with_two_writers_that_sleep: rwsem::<2>(TWICE, EVERYBODY);
    rwsem_with_three_writers_that_sleep:
        rwsem::<3>(Bounds { rounds: 1, preemptions: 2, pauses: 2 }, EVERYBODY);
}

/// The CPUs below `writers` write, the others read; readers must find what whole writes have left.
fn share<const CPUS: usize>(bounds: Bounds, preempted: Preempted, writers: usize, downgrade: bool) {
    share_by::<RulesToday, CPUS>(|machine| machine, bounds, preempted, writers, downgrade);
}

/// `share` by other rules, on a machine that tells the lock more.
fn share_by<R: RwSemRules, const CPUS: usize>(
    tell: fn(Cpus) -> Cpus,
    bounds: Bounds,
    preempted: Preempted,
    writers: usize,
    downgrade: bool,
) {
    let Bounds { rounds, pauses, .. } = bounds;
    let scene = move || {
        let domain = domain::<CPUS>(preempted)(tell(machine(CPUS, pauses)));
        (domain, RwSem::with_rules(), Plain::default())
    };
    let play = move |cpu, (domain, lock, counter): &(Domain<CPUS>, RwSem<PrevCpu, R>, Plain)| {
        for _ in 0..rounds {
            if cpu < writers {
                lock.write(domain);
                counter.increment();
                if downgrade {
                    let written = counter.get();
                    lock.downgrade(domain);
                    assert_eq!(counter.get(), written);
                    lock.read_unlock(domain);
                } else {
                    lock.write_unlock(domain);
                }
            } else {
                lock.read(domain);
                counter.get();
                lock.read_unlock(domain);
            }
        }
    };
    play_out(CPUS, &bounds, scene, play, move |(_, _, counter)| assert_eq!(counter.get(), writers * rounds));
}

/// Sleepers insist as soon as they have been overtaken.
fn insistent(machine: Cpus) -> Cpus {
    machine.set_insistent(true);
    machine
}

/// A sleeper that has been woken and overtaken forbids stealing at once: no CPU may overtake it from then on.
#[test]
fn rwsem_is_promised_to_an_overtaken_sleeper() {
    share_by::<RulesToday, 3>(
        insistent,
        Bounds { rounds: 1, preemptions: 2, pauses: 3 },
        EVERYBODY,
        2,
        false,
    );
    assert_reached([Event::RwsemWlockHandoff]);
}

/// A promised lock with one CPU that overtakes again and again.
#[test]
fn rwsem_is_promised_by_one_that_comes_back() {
    share_by::<RulesToday, 2>(insistent, TWICE, EVERYBODY, 2, false);
    assert_reached([Event::RwsemWlockHandoff]);
}

tests! {
    rwsem_is_handed_from_a_writer_to_a_reader_and_back: share::<2>(TWICE, EVERYBODY, 1, false);
    rwsem_with_two_readers_and_a_writer: share::<3>(ONCE, EVERYBODY, 1, false);
    rwsem_with_a_reader_and_two_writers: share::<3>(ONCE, EVERYBODY, 2, false);
    rwsem_with_a_spinning_writer_and_a_reader: share::<2>(SPINNING, NOBODY, 1, false);
    rwsem_downgraded_beside_a_reader_and_a_writer: share::<3>(ONCE, EVERYBODY, 2, true);
    rwsem_of_2018_is_handed_from_writer_to_reader_and_back:
        share_by::<Rules2018, 2>(|machine| machine, TWICE, EVERYBODY, 1, false);
    rwsem_of_2018_with_two_readers_and_a_writer:
        share_by::<Rules2018, 3>(|machine| machine, ONCE, EVERYBODY, 1, false);
    rwsem_of_2018_with_a_reader_and_two_writers:
        share_by::<Rules2018, 3>(|machine| machine, ONCE, EVERYBODY, 2, false);
}
