//! Support for every test on threads of the host, in addition to the CPUs themselves.

use std::{thread, time::Duration};

use haltkick_locks::{Lock, Platform};
pub(crate) use haltkick_testing::{Cpus, Plain, Signal, until};

/// How much work a test does: Miri is some thousand times slower than the processor.
pub(crate) const fn rounds(native: usize) -> usize {
    if cfg!(miri) { native / 500 + 2 } else { native }
}

/// CPU 0 takes a lock, and goes on with its token. The others begin once it has the lock.
pub(crate) fn once_held<T>(
    host: &Cpus,
    lock: impl Fn() -> T + Sync,
    goes_on: impl Fn(T) + Sync,
    others: impl Fn(usize) + Sync,
) {
    let [held] = Signal::several();
    host.run(|cpu| {
        if cpu == 0 {
            let token = lock();
            held.give();
            goes_on(token);
        } else {
            held.await_it();
            others(cpu);
        }
    });
}

/// A lock, its domain and its CPUs. It stays until the process ends, so that hooks may refer to it.
pub(crate) struct Stage<D, L> {
    pub(crate) host: Cpus,
    pub(crate) domain: D,
    pub(crate) lock: L,
    pub(crate) counter: Plain,
    /// CPUs that have come in by `visit_in_turn`.
    pub(crate) order: std::sync::Mutex<Vec<usize>>,
}

impl<D: Sync + 'static, L: Lock<D, Token = ()> + 'static> Stage<D, L> {
    pub(crate) fn set_up(host: Cpus, domain: fn(Cpus) -> D, lock: L) -> &'static Self {
        let domain = domain(host.clone());
        let (counter, order) = (Plain::default(), Default::default());
        Box::leak(Box::new(Self { host, domain, lock, counter, order }))
    }

    pub(crate) fn lock(&self) {
        self.lock.lock(&self.domain);
    }

    pub(crate) fn unlock(&self) {
        self.lock.unlock(&self.domain, ());
    }

    /// Takes the lock, increments the counter, releases.
    pub(crate) fn visit(&self) {
        self.lock();
        self.counter.increment();
        self.unlock();
    }

    /// Takes the lock, says so, releases.
    pub(crate) fn visit_in_turn(&self) {
        self.lock();
        self.order.lock().unwrap().push(self.host.cpu());
        self.unlock();
    }

    /// Calls the function of this name.
    pub(crate) fn once_held(&self, goes_on: impl Fn() + Sync, others: impl Fn(usize) + Sync) {
        once_held(&self.host, || self.lock(), |()| goes_on(), others);
    }

    /// Calls [`Self::once_held`]: CPU 0 does something `meanwhile`, and releases the lock.
    pub(crate) fn while_held(&self, meanwhile: impl Fn() + Sync, others: impl Fn(usize) + Sync) {
        let goes_on = || {
            meanwhile();
            self.unlock();
        };
        self.once_held(goes_on, others);
    }
}

/// All CPUs increment one plain counter `rounds` times each under one lock, which they take by `try_lock` where they can and
/// try first.
pub(crate) fn no_increment_is_lost<D: Sync, L: Lock<D>>(
    host: &Cpus,
    domain: &D,
    lock: &L,
    (rounds, try_first): (usize, bool),
) {
    let counter = Plain::default();
    host.run(|_| {
        for _ in 0..rounds {
            let tried = if try_first { lock.try_lock(domain) } else { None };
            let token = tried.unwrap_or_else(|| lock.lock(domain));
            counter.increment();
            lock.unlock(domain, token);
        }
    });
    assert_eq!(counter.get(), host.count_cpus() * rounds);
}

/// CPUs that arrive one by one while CPU 0 holds the lock are served in that order.
pub(crate) fn serves_in_the_order_of_arrival<D: Sync, L: Lock<D>>(domain: fn(Cpus) -> D, lock: &L) {
    const CPUS: usize = 6;
    let host = Cpus::new(CPUS, Duration::from_secs(3600));
    let domain = domain(host.clone());
    let arrivals = Signal::several::<CPUS>();
    let served = std::sync::Mutex::new(vec![]);
    host.run(|cpu| {
        if cpu > 0 {
            arrivals[cpu].await_it();
        }
        let token = lock.lock(&domain);
        served.lock().unwrap().push(cpu);
        if cpu == 0 {
            for (next, arrival) in arrivals.iter().enumerate().skip(1) {
                arrival.give();
                host.until_paused(next, 10);
            }
        }
        lock.unlock(&domain, token);
    });
    assert_eq!(served.into_inner().unwrap(), [0, 1, 2, 3, 4, 5]);
}

/// `try_lock` tells a held lock from a free one, on one CPU and across two.
pub(crate) fn try_lock_tells_held_from_free<D: Sync, L: Lock<D>>(domain: &D, lock: &L) {
    Cpus::become_cpu(0);
    let token = lock.try_lock(domain).expect("a new lock is free");
    thread::scope(|scope| {
        scope.spawn(|| {
            Cpus::become_cpu(1);
            assert!(lock.try_lock(domain).is_none(), "held by CPU 0");
        });
    });
    assert!(lock.try_lock(domain).is_none(), "held by this CPU");
    lock.unlock(domain, token);
    let token = lock.try_lock(domain).expect("released");
    lock.unlock(domain, token);
    let token = lock.lock(domain);
    assert!(lock.try_lock(domain).is_none(), "held by this CPU");
    lock.unlock(domain, token);
}

/// CPUs hold two locks at a time and release them in both orders.
pub(crate) fn two_locks_may_be_released_in_any_order<D: Sync, L: Lock<D>>(
    host: &Cpus,
    domain: &D,
    locks: &[L; 2],
    rounds: usize,
) {
    let counters = [Plain::default(), Plain::default()];
    host.run(|_| {
        for round in 0..rounds {
            let [a, b] = locks.each_ref().map(|lock| lock.lock(domain));
            counters.iter().for_each(Plain::increment);
            if round % 2 == 0 {
                locks[0].unlock(domain, a);
                locks[1].unlock(domain, b);
            } else {
                locks[1].unlock(domain, b);
                locks[0].unlock(domain, a);
            }
        }
    });
    assert_eq!(counters.map(|counter| counter.get()), [host.count_cpus() * rounds; 2]);
}

/// CPUs in a test: more than the machine that runs it is likely to have to spare. Miri has one thread for
/// all.
pub(crate) const CPUS: usize = if cfg!(miri) { 3 } else { 8 };

/// The tests of one lock. `$domain` makes the domain from a host, `$lock` a new lock.
macro_rules! family {
    ($($name:ident: $lock:expr, $domain:expr;)+) => {$(
        mod $name {
            use std::time::Duration;

            use super::*;
            use crate::support::{self, rounds};

            fn increment(host: Cpus, try_first: bool) {
                let (domain, lock) = ($domain(host.clone()), CachePadded::new($lock));
                support::no_increment_is_lost(&host, &domain, &*lock, (rounds(1_500), try_first));
            }

            haltkick_testing::tests! {
                no_increment_is_lost: increment(Cpus::new(CPUS, Duration::from_micros(20)), false);
                no_sleeper_is_forgotten_when_all_are_impatient: increment(Cpus::impatient(CPUS), false);
                no_increment_is_lost_when_trying_first: increment(Cpus::impatient(CPUS), true);
                try_lock_tells_held_from_free:
                    support::try_lock_tells_held_from_free(&$domain(Cpus::impatient(2)), &$lock);
                two_locks_may_be_released_in_any_order: {
                    let (host, locks) = (Cpus::impatient(CPUS), [$lock, $lock]);
                    support::two_locks_may_be_released_in_any_order(&host, &$domain(host.clone()), &locks, rounds(700));
                };
            }
        }
    )+};
}

pub(crate) use family;
