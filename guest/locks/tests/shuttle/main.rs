//! More CPUs than loom can exhaust: random schedules with few, but ill-chosen, preemptions.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test --release -p haltkick-locks --test shuttle`
//!
//! `haltkick_testing::try_schedules` says how to try more schedules, and how to run a failure again.

#![cfg(shuttle)]

use std::{slice, sync::atomic::AtomicUsize};

use haltkick_locks::*;
use haltkick_testing::{Cpus, Plain, assert_reached, play_once, read_or_write, tests, try_schedules};

/// `cpus` CPUs take turns at `locks`, `rounds` times each, and must all come through.
fn explore<D, L>(
    cpus: usize,
    rounds: usize,
    domain: fn(Cpus) -> D,
    lock: fn() -> L,
    at_rest: impl Fn(&D) + Send + Sync + 'static,
) where
    D: Sync + Send + 'static,
    L: Lock<D> + Send + 'static,
{
    let scene =
        move || (domain(Cpus::impatient(cpus)), [lock(), lock()], [Plain::default(), Plain::default()]);
    let play = move |cpu: usize, (domain, locks, counters): &(D, [L; 2], [Plain; 2])| {
        for round in 0..rounds {
            // Mostly one lock; sometimes a second one inside it.
            let outer = locks[0].lock(domain);
            counters[0].increment();
            let inner = (round + cpu).is_multiple_of(3).then(|| locks[1].lock(domain));
            if let Some(inner) = inner {
                counters[1].increment();
                locks[1].unlock(domain, inner);
            }
            locks[0].unlock(domain, outer);
            if (round + cpu) % 3 == 1 {
                let token = locks[1].try_lock(domain).unwrap_or_else(|| locks[1].lock(domain));
                counters[1].increment();
                locks[1].unlock(domain, token);
            }
        }
    };
    play_out(cpus, scene, play, move |(domain, _, counters)| {
        assert_eq!(counters[0].get(), cpus * rounds);
        let all = (0..cpus).flat_map(|cpu| (0..rounds).map(move |round| round + cpu));
        assert_eq!(counters[1].get(), all.filter(|n| n % 3 != 2).count());
        at_rest(domain);
    });
}

/// Sets up a scene, lets `cpus` CPUs play on it, and looks at it when all have come through.
fn play_out<S: Sync + Send + 'static>(
    cpus: usize,
    scene: impl Fn() -> S + Send + Sync + 'static,
    play: impl Fn(usize, &S) + Copy + Send + Sync + 'static,
    at_rest: impl Fn(&S) + Send + Sync + 'static,
) {
    try_schedules(4, move || play_once(cpus, scene(), play, &at_rest));
}

fn nobody_left<const CPUS: usize>(domain: &QSpinDomain<Cpus, CPUS, 1>) {
    assert_eq!(domain.sleeping_heads(), 0, "an entry has been left in the table");
}

fn explore_mode<M: Mode, const CPUS: usize>() {
    explore(CPUS, 2, QSpinDomain::<Cpus, CPUS, 1>::new, QSpinLock::<M, Whole>::new, nobody_left::<CPUS>);
}

tests! {
    pv_with_four_cpus: explore_mode::<Pv, 4>();
    pv_with_eight_cpus: {
        explore_mode::<Pv, 8>();
        assert_reached([Event::PvWaitEarly, Event::PvWaitAgain, Event::PvLockStealing, Event::PvSpuriousWakeup]);
    };
    bounded_with_four_cpus: explore_mode::<Bounded, 4>();
    wc_with_four_cpus: explore_mode::<WorkConserving, 4>();
    wc_with_eight_cpus: {
        explore_mode::<WorkConserving, 8>();
        assert_reached([Event::PvWaitHead, Event::PvWaitAgain, Event::PvWaitNode, Event::PvSpuriousWakeup]);
    };
    v16_with_four_cpus: explore_mode::<V16, 4>();
    v16_with_eight_cpus: explore_mode::<V16, 8>();
    native_with_six_cpus: explore_mode::<Native, 6>();
    virt_with_four_cpus: explore_mode::<VirtTas, 4>();
    pv_ticket_with_four_cpus: explore(4, 2, PvTicketDomain::<Cpus, 4>::new, PvTicket::new, |_| {});
    pv_ticket_with_eight_cpus: explore(8, 2, PvTicketDomain::<Cpus, 8>::new, PvTicket::new, |_| {});
    tickets_with_four_cpus: explore(4, 2, |machine| machine, Ticket::new, |_| {});
    unfair_tickets_with_four_cpus: explore(4, 2, |machine| machine, UnfairTicket::new, |_| {});
    mcs_with_four_cpus: explore(4, 2, McsDomain::<Cpus, 4>::new, Mcs::new, |_| {});
    owner_yield_with_four_cpus: explore(4, 2, OwnerYieldDomain::<Cpus, 4>::new, OwnerYield::new, |_| {});
    gcr_with_four_cpus: explore(4, 2, GcrDomain::<Cpus, 4>::new, Gcr::new, |_| {});
    gcr_with_eight_cpus: {
        explore(8, 2, GcrDomain::<Cpus, 8>::new, Gcr::new, |_| {});
        assert_reached([Event::PvWaitHead, Event::PvWaitNode, Event::PvSpuriousWakeup, Event::PvKickWake]);
    };
    /// Eight CPUs whose limits are drawn at each look may send each other away for longer than a schedule may last.
    rqspinlock_with_four_cpus: {
        explore(4, 2, RqSpinDomain::<Cpus, 4>::new, RqSpinLock::<Whole>::new, |domain| {
            assert_eq!([0, 1, 2, 3].map(|cpu| domain.held_by(cpu)), [0; 4]);
        });
        assert_reached([Event::LockTimedOut, Event::LockDissolved, Event::LockPending]);
    };
}

/// Every CPU queues, and leaves when a look at the predecessor says that it is preempted, which is at random. The head
/// is alone, and every arrival is counted either way.
fn leave_the_queue<L: osq::Layout, const CPUS: usize>() {
    const ROUNDS: usize = 3;
    let scene = || {
        let (nodes, queue) = (OsqNodes::<L, CPUS>::new(), Osq::<L>::new());
        (Cpus::impatient(CPUS), nodes, queue, Plain::default(), AtomicUsize::new(0))
    };
    let play = |_, (machine, nodes, queue, heads, served): &(Cpus, _, Osq<L>, Plain, AtomicUsize)| {
        for _ in 0..ROUNDS {
            if queue.lock(nodes, machine, || false) {
                heads.increment();
                served.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                queue.unlock(nodes, machine);
            }
        }
    };
    play_out(CPUS, scene, play, |(_, _, queue, heads, served)| {
        assert_eq!(heads.get(), served.load(std::sync::atomic::Ordering::Relaxed));
        assert!(!queue.is_occupied(), "somebody has been left in the queue");
    });
}

tests! {
    osq_packed_with_five_cpus_that_leave: leave_the_queue::<osq::Packed, 5>();
    osq_split_with_five_cpus_that_leave: leave_the_queue::<osq::Split, 5>();
    osq_cached_with_five_cpus_that_leave: leave_the_queue::<osq::Cached, 5>();
    osq_prev_cpu_with_five_cpus_that_leave: leave_the_queue::<osq::PrevCpu, 5>();
}

type MutexSleepers<const CPUS: usize> = SleepDomain<Cpus, osq::PrevCpu, CPUS>;

tests! {
    mutex_with_four_cpus: explore(4, 2, MutexSleepers::<4>::new, Mutex::new, |_| {});
    mutex_with_eight_cpus: {
        explore(8, 2, MutexSleepers::<8>::new, Mutex::new, |_| {});
        assert_reached([Event::MutexHandoff]);
    };
    rwsem_with_four_writers: explore(4, 2, MutexSleepers::<4>::new, RwSem::<_, RulesToday>::new, |_| {});
    rwsem_of_2018_with_four_writers:
        explore(4, 2, MutexSleepers::<4>::new, RwSem::<_, Rules2018>::new, |_| {});
}

/// Each CPU writes, reads, and does one after the other, in an order of its own.
fn six_readers_and_writers<R: RwSemRules>() {
    const CPUS: usize = 6;
    type Scene<R> = (MutexSleepers<CPUS>, RwSem<osq::PrevCpu, R>, Plain);
    let scene = || (MutexSleepers::<CPUS>::new(Cpus::impatient(CPUS)), RwSem::new(), Plain::default());
    let play = |cpu: usize, (domain, lock, counter): &Scene<R>| {
        for round in 0..3 {
            let kind = (cpu + round) % 3;
            if kind != 1 {
                read_or_write(domain, lock, slice::from_ref(counter), true);
            }
            if kind != 0 {
                read_or_write(domain, lock, slice::from_ref(counter), false);
            }
        }
    };
    play_out(CPUS, scene, play, |(domain, lock, counter)| {
        assert_eq!(counter.get(), CPUS * 2);
        assert!(lock.try_lock(domain).is_some(), "a promise that has been kept binds nobody");
    });
}

tests! {
    rwsem_with_six_readers_and_writers: {
        six_readers_and_writers::<RulesToday>();
        assert_reached([
            Event::RwsemRlockHandoff,
            Event::RwsemWlockHandoff,
            Event::RwsemOptNospin,
            Event::RwsemRlockSteal,
        ]);
    };
    rwsem_of_2018_with_six_readers_and_writers: {
        six_readers_and_writers::<Rules2018>();
        assert_reached([Event::RwsemSleepReader, Event::RwsemSleepWriter, Event::RwsemWakeReader]);
    };
}
