//! The sleeping locks. They spin on an owner that runs and sleep behind one that does not, so each is tried with no CPU
//! preempted and with some.

use haltkick_locks::{
    osq::{Packed, PrevCpu},
    *,
};
use haltkick_testing::tests;

use crate::model::{Bounds, Cpus, READER, Role, WRITER, assert_reached, check, check_rw};

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

tests! {
    futex_with_two_cpus: check(2, TWICE, SleepDomain::<Cpus, Packed, 2>::new, FutexMutex::new, |_| {});
    futex_with_three_cpus: check(3, ONCE, SleepDomain::<Cpus, Packed, 3>::new, FutexMutex::new, |_| {});
    mutex_with_two_cpus_that_spin: mutex::<2>(SPINNING, NOBODY);
    mutex_with_two_cpus_that_sleep: mutex::<2>(TWICE, EVERYBODY);
    /// A sleeper is woken and overtaken, and insists: the next unlock hands the lock to it.
    mutex_is_handed_to_an_overtaken_sleeper: {
        mutex::<3>(ONCE, EVERYBODY);
        assert_reached([Event::MutexHandoff]);
    };
    mutex_with_three_cpus_of_which_one_is_preempted: mutex::<3>(ONCE, FIRST);
    rwsem_with_two_writers_that_spin: rwsem::<2>(SPINNING, NOBODY);
    rwsem_with_two_writers_that_sleep: rwsem::<2>(TWICE, EVERYBODY);
    rwsem_with_three_writers_that_sleep: rwsem::<3>(Bounds { pauses: 2, ..ONCE }, EVERYBODY);
}

/// CPUs read and write as their `roles` say, on a machine that is told something.
fn share<R: RwSemRules, const CPUS: usize>(
    (told, preempted): (fn(Cpus) -> Cpus, Preempted),
    bounds: Bounds,
    roles: [Role; CPUS],
) {
    check_rw(
        roles,
        bounds,
        move |machine| domain::<CPUS>(preempted)(told(machine)),
        RwSem::<PrevCpu, R>::new,
    );
}

/// Sleepers insist as soon as they have been overtaken.
const INSISTENT: (fn(Cpus) -> Cpus, Preempted) = (Cpus::insistent, EVERYBODY);
const SPIN: (fn(Cpus) -> Cpus, Preempted) = (|machine| machine, NOBODY);
const SLEEP: (fn(Cpus) -> Cpus, Preempted) = (|machine| machine, EVERYBODY);

tests! {
    /// A sleeper that has been woken and overtaken forbids stealing at once: no CPU may overtake it from then on.
    rwsem_is_promised_to_an_overtaken_sleeper: {
        share::<RulesToday, 3>(INSISTENT, Bounds { pauses: 3, ..ONCE }, [WRITER, WRITER, READER]);
        assert_reached([Event::RwsemWlockHandoff]);
    };
    /// A promised lock with one CPU that overtakes again and again.
    rwsem_is_promised_by_one_that_comes_back: {
        share::<RulesToday, 2>(INSISTENT, TWICE, [WRITER, WRITER]);
        assert_reached([Event::RwsemWlockHandoff]);
    };
    rwsem_is_handed_from_a_writer_to_a_reader_and_back: share::<RulesToday, 2>(SLEEP, TWICE, [WRITER, READER]);
    rwsem_with_two_readers_and_a_writer: share::<RulesToday, 3>(SLEEP, ONCE, [WRITER, READER, READER]);
    rwsem_with_a_reader_and_two_writers: share::<RulesToday, 3>(SLEEP, ONCE, [WRITER, WRITER, READER]);
    rwsem_with_a_spinning_writer_and_a_reader: share::<RulesToday, 2>(SPIN, SPINNING, [WRITER, READER]);
    rwsem_of_2018_is_handed_from_writer_to_reader_and_back: share::<Rules2018, 2>(SLEEP, TWICE, [WRITER, READER]);
    rwsem_of_2018_with_two_readers_and_a_writer: share::<Rules2018, 3>(SLEEP, ONCE, [WRITER, READER, READER]);
    rwsem_of_2018_with_a_reader_and_two_writers: share::<Rules2018, 3>(SLEEP, ONCE, [WRITER, WRITER, READER]);
}
