//! The reader-writer locks on host threads: what all of them must do, and what only the fair one does.

use std::{
    sync::{
        Barrier,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use haltkick_locks::*;
use haltkick_testing::{read_or_write, tests};

use crate::support::{CPUS, Cpus, Plain, Signal, once_held, rounds, until};

type Slots = PerCpuRwDomain<Box<Cpus>, [ReaderSlot; CPUS]>;

fn slots(host: Cpus) -> Slots {
    PerCpuRwDomain::new(Box::new(host), [const { ReaderSlot::new() }; CPUS])
}

/// Waiters that spin first, and impatient ones of which every second is off its CPU.
fn hosts() -> [Cpus; 2] {
    let half_off = Cpus::impatient(CPUS);
    (0..CPUS).step_by(2).for_each(|cpu| half_off.set_preempted(cpu, true));
    [Cpus::new(CPUS, Duration::from_micros(20)), half_off]
}

/// The tests of one lock. `$domain` makes the domain from a host, `$lock` a new lock.
macro_rules! rw_family {
    ($($name:ident: $lock:expr, $domain:expr;)+) => {$(
        mod $name {
            use super::*;

            tests! {
                writers_are_alone: for host in hosts() {
                    super::writers_are_alone(&host, &$domain(host.clone()), &$lock);
                };
                readers_share: {
                    let host = Cpus::impatient(CPUS);
                    super::readers_share(&host, &$domain(host.clone()), &$lock);
                };
            }
        }
    )+};
}

rw_family! {
    unfair: UnfairRwLock::new(), |host| host;
    fair: FairRwLock::new(Ticket::new()), |host| host;
    fair_on_qspinlock_pv: FairRwLock::new(QSpinLock::<Pv, Whole>::new()), QSpinDomain::<Cpus, CPUS>::new;
    fair_on_mcs: FairRwLock::new(Mcs::new()), McsDomain::<Cpus, CPUS>::new;
    per_cpu: PerCpuRwLock::new(UnfairRwLock::new()), slots;
    per_cpu_on_a_fair_one: PerCpuRwLock::new(FairRwLock::new(Ticket::new())), slots;
    rwsem: RwSem::<osq::Packed>::new(), SleepDomain::<Cpus, osq::Packed, CPUS>::new;
    rwsem_of_2018: RwSem::<_, Rules2018>::new(), SleepDomain::<Cpus, osq::Packed, CPUS>::new;
}

/// Each CPU writes one round in four. Two counters that are written together are always seen together.
fn writers_are_alone<D: Sync, L: RwLock<D>>(host: &Cpus, domain: &D, lock: &L) {
    let counters = [Plain::default(), Plain::default()];
    let rounds = rounds(1_000);
    host.run(|cpu| {
        for round in 0..rounds {
            read_or_write(domain, lock, &counters, (round + cpu) % 4 == 0);
        }
    });
    let all = (0..CPUS).flat_map(|cpu| (0..rounds).map(move |round| round + cpu));
    let written = all.filter(|n| n % 4 == 0).count();
    assert_eq!(counters.map(|counter| counter.get()), [written, written]);
}

/// CPUs 0 and 1 are inside at once.
fn readers_share<D: Sync, L: RwLock<D>>(host: &Cpus, domain: &D, lock: &L) {
    let both_inside = Barrier::new(2);
    host.run_some(2, |_| {
        let token = lock.read(domain);
        both_inside.wait();
        lock.read_unlock(domain, token);
    });
}

/// CPU 0 reads; CPU 1 wants to write, and is kept where it has said so. A reader that comes while CPU 0 is inside, and a writer that
/// comes when it has left, must not get ahead of CPU 1.
#[test]
fn t17_nobody_gets_ahead_of_a_writer_that_waits() {
    let host = Cpus::impatient(4);
    let lock = FairRwLock::new(Ticket::new());
    let [waiting, left, checked] = Signal::several();
    let order = std::sync::Mutex::new(vec![]);
    let until_queued = |cpu| {
        let queues = || host.does(cpu, Activity::Waiter) || host.does(cpu, Activity::Head);
        until(|| queues() || !order.lock().unwrap().is_empty());
    };
    once_held(
        &host,
        || lock.read(&host),
        |()| {
            until_queued(2);
            lock.read_unlock(&host, ());
            left.give();
            until_queued(3);
            checked.give();
        },
        |cpu| {
            match cpu {
                1 => Cpus::stand_at(Point::WriterWaits, waiting, checked),
                2 => waiting.await_it(),
                _ => left.await_it(),
            }
            if cpu == 2 {
                lock.read(&host);
                order.lock().unwrap().push(cpu);
                return lock.read_unlock(&host, ());
            }
            lock.write(&host);
            order.lock().unwrap().push(cpu);
            lock.write_unlock(&host, ());
        },
    );
    assert_eq!(order.lock().unwrap()[0], 1, "somebody has overtaken the writer");
}

/// CPU 0 holds the lock for writing until a writer waits and readers queue behind it. Each side gets its turn.
#[test]
fn the_fair_lock_serves_in_the_order_of_arrival() {
    let host = Cpus::impatient(3);
    let lock = FairRwLock::new(Ticket::new());
    let order = std::sync::Mutex::new(vec![]);
    once_held(
        &host,
        || lock.write(&host),
        |()| {
            // First in the queue that is a ticket lock, and second in that of the lock.
            host.until_doing(2, Activity::Head);
            lock.write_unlock(&host, ());
        },
        |cpu| {
            if cpu == 1 {
                lock.write(&host);
                order.lock().unwrap().push("writer");
                return lock.write_unlock(&host, ());
            }
            host.until_doing(1, Activity::Head);
            lock.read(&host);
            order.lock().unwrap().push("reader");
            lock.read_unlock(&host, ());
        },
    );
    assert_eq!(*order.lock().unwrap(), ["writer", "reader"]);
}

/// CPU 0 reads two locks of one domain: one by its slot, and one underneath. CPU 1 writes to each as soon as CPU 0 has left it.
#[test]
fn a_cpu_may_read_several_per_cpu_locks_at_a_time() {
    let host = Cpus::impatient(2);
    let domain = PerCpuRwDomain::new(Box::new(host.clone()), [const { ReaderSlot::new() }; 2]);
    let locks = [const { PerCpuRwLock::new(UnfairRwLock::new()) }; 2];
    let (written, too_early) = (AtomicUsize::new(0), AtomicUsize::new(0));
    once_held(
        &host,
        || locks.each_ref().map(|lock| lock.read(&domain)),
        |tokens| {
            assert_eq!(domain.readers(), 1, "one slot for each CPU");
            let waits = [Activity::Head, Activity::Waiter];
            for (which, token) in tokens.into_iter().enumerate() {
                until(|| written.load(SeqCst) > which || host.does(1, waits[which]));
                too_early.fetch_add(usize::from(written.load(SeqCst) > which), SeqCst);
                locks[which].read_unlock(&domain, token);
            }
        },
        |_| {
            for lock in &locks {
                lock.write(&domain);
                written.fetch_add(1, SeqCst);
                lock.write_unlock(&domain, ());
            }
        },
    );
    assert_eq!((too_early.into_inner(), domain.readers()), (0, 0));
}

/// CPU 0 reads by its slot, CPU 1 has the lock underneath and waits for that slot. To read once more, CPU 0 would have
/// to wait for CPU 1, fair or not.
fn a_lock_that_is_read_already_cannot_be_read_again<U: RwLock<Cpus>>(underneath: U) {
    let host = Cpus::impatient(2);
    let domain = PerCpuRwDomain::new(Box::new(host.clone()), [const { ReaderSlot::new() }; 2]);
    let lock = PerCpuRwLock::new(underneath);
    once_held(
        &host,
        || lock.read(&domain),
        |outer| {
            host.until_doing(1, Activity::Head);
            let again = std::panic::AssertUnwindSafe(|| _ = lock.read(&domain));
            let refused = std::panic::catch_unwind(again).expect_err("a reader waits for its own writer");
            let message = refused.downcast_ref::<String>().expect("a formatted message");
            assert!(message.contains("CPU 0 reads this lock already"), "{message}");
            lock.read_unlock(&domain, outer);
        },
        |_| {
            let token = lock.write(&domain);
            lock.write_unlock(&domain, token);
        },
    );
    assert_eq!(domain.readers(), 0);
}

tests! {
    a_per_cpu_lock_that_is_read_already_cannot_be_read_again:
        a_lock_that_is_read_already_cannot_be_read_again(UnfairRwLock::new());
    a_fair_per_cpu_lock_read_already_cannot_be_read_again:
        a_lock_that_is_read_already_cannot_be_read_again(FairRwLock::new(Ticket::new()));
}
