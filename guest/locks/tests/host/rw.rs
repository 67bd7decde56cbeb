//! The reader-writer locks on host threads: what all of them must do, and what only the fair one does.

use std::time::Duration;

use haltkick_locks::*;
use haltkick_testing::{read_or_write, tests};

use crate::support::{CPUS, Cpus, Plain, Signal, on_cpu_1, once_held, rounds};

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
                readers_share_and_a_writer_does_not:
                    super::readers_share_and_a_writer_does_not(&$domain(Cpus::impatient(CPUS)), &$lock);
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
            read_or_write(domain, lock, &counters, (round + cpu) % 4 == 0, round % 8 < 4);
        }
    });
    let all = (0..CPUS).flat_map(|cpu| (0..rounds).map(move |round| round + cpu));
    let written = all.filter(|n| n % 4 == 0).count();
    assert_eq!(counters.map(|counter| counter.get()), [written, written]);
}

fn readers_share_and_a_writer_does_not<D: Sync, L: RwLock<D>>(domain: &D, lock: &L) {
    Cpus::become_cpu(0);
    let token = lock.read(domain);
    on_cpu_1(|| {
        let second = lock.try_read(domain).expect("readers share");
        assert!(lock.try_write(domain).is_none(), "two readers inside");
        lock.read_unlock(domain, second);
    });
    assert!(lock.try_write(domain).is_none(), "one reader inside");
    lock.read_unlock(domain, token);
    let token = lock.write(domain);
    on_cpu_1(|| {
        assert!(lock.try_read(domain).is_none() && lock.try_write(domain).is_none(), "a writer inside");
    });
    lock.write_unlock(domain, token);
    let token = lock.try_write(domain).expect("free again");
    lock.write_unlock(domain, token);
    let token = lock.try_read(domain).expect("free again");
    lock.read_unlock(domain, token);
}

/// CPU 0 reads; CPU 1 wants to write, and is kept where it has said so. Newcomers must not get ahead of it: neither
/// while the reader is inside nor when it has left. The writer takes the lock only from a word that no reader stands in, so
/// those who try must not stand in it, not for a moment.
#[test]
fn t17_nobody_gets_ahead_of_a_writer_that_waits() {
    let host = Cpus::impatient(2);
    let lock = FairRwLock::new(Ticket::new());
    let [waiting, checked] = Signal::several();
    let counter = Plain::default();
    once_held(
        &host,
        || lock.read(&host),
        |()| {
            waiting.await_it();
            Cpus::hook(|point| {
                assert!(point != Point::ReaderAnnounced, "a writer has to wait for one that tries");
            });
            assert!(lock.try_read(&host).is_none(), "a reader has overtaken the writer");
            lock.read_unlock(&host, ());
            assert!(lock.try_write(&host).is_none(), "a writer has overtaken the writer");
            assert!(lock.try_read(&host).is_none(), "a reader has overtaken the writer");
            checked.give();
        },
        |_| {
            Cpus::stand_at(Point::WriterWaits, waiting, checked);
            lock.write(&host);
            counter.increment();
            lock.write_unlock(&host, ());
        },
    );
    assert_eq!(counter.get(), 1);
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

/// A CPU that reads two locks of one domain leaves both as they were: the second one underneath.
#[test]
fn a_cpu_may_read_several_per_cpu_locks_at_a_time() {
    let host = Cpus::impatient(2);
    let domain = PerCpuRwDomain::new(Box::new(host.clone()), [const { ReaderSlot::new() }; 2]);
    let locks = [const { PerCpuRwLock::new(UnfairRwLock::new()) }; 2];
    Cpus::become_cpu(0);
    let outer = locks[0].read(&domain);
    let inner = locks[1].read(&domain);
    assert_eq!(domain.readers(), 1, "one slot for each CPU");
    let nobody_writes = |which: [bool; 2]| {
        on_cpu_1(|| {
            for (lock, is_read) in locks.iter().zip(which) {
                let wrote = lock.try_write(&domain);
                assert_eq!(wrote.is_some(), !is_read);
                if let Some(token) = wrote {
                    lock.write_unlock(&domain, token);
                }
            }
        });
    };
    nobody_writes([true, true]);
    locks[0].read_unlock(&domain, outer);
    nobody_writes([false, true]);
    locks[1].read_unlock(&domain, inner);
    nobody_writes([false, false]);
    assert_eq!(domain.readers(), 0);
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
            assert!(lock.try_read(&domain).is_none(), "a try does not wait for the writer");
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
