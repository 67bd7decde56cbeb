//! Locks that are told when the kernel boots whether they are native.

use std::time::Duration;

use haltkick_qspin::*;

use crate::support::{Cpus, Signal, no_increment_is_lost, rounds};

const CPUS: usize = 4;

type Domain = QSpinDomain<Cpus, CPUS>;

/// CPU 1 waits for a lock that CPU 0 has, until `seen`; then all take it by turns.
pub(crate) fn contend<M: Mode, W: Word>(seen: impl Fn(&Cpus) + Sync) -> Cpus {
    let host = Cpus::new(CPUS, Duration::ZERO);
    let (domain, lock) = (Domain::new(host.clone()), QSpinLock::<M, W>::new());
    let held = Signal::default();
    host.run_some(2, |cpu| {
        if cpu == 0 {
            lock.lock(&domain);
            held.give();
            seen(&host);
        } else {
            held.await_it();
            lock.lock(&domain);
        }
        lock.unlock(&domain, ());
    });
    no_increment_is_lost(&host, &domain, &lock, rounds(500));
    host
}

pub(crate) fn sleeps(host: &Cpus) -> u64 {
    host.events(Event::PvWaitHead) + host.events(Event::PvWaitNode)
}

#[test]
fn a_lock_that_is_told_so_is_paravirtual() {
    choice! { Form; }
    Form::choose(true).unwrap();
    let until_asleep = |host: &Cpus| host.until_counted(1, Event::PvWaitHead);
    let hosts = [
        contend::<Chosen<Form>, DefaultWord>(until_asleep),
        contend::<Chosen<Form>, Whole>(until_asleep),
        contend::<Chosen<Form, WorkConserving>, DefaultWord>(until_asleep),
    ];
    assert!(hosts.iter().all(|host| host.events(Event::LockPending) == 0));
}

#[test]
fn a_lock_that_is_told_nothing_is_native() {
    choice! { Form; }
    let until_it_spins = |host: &Cpus| host.until_paused(1, 100);
    let hosts = [
        contend::<Chosen<Form>, DefaultWord>(until_it_spins),
        contend::<Chosen<Form, WorkConserving>, Whole>(until_it_spins),
    ];
    for host in hosts {
        assert_eq!(sleeps(&host) + host.events(Event::PvLockStealing), 0);
        assert!(host.events(Event::LockPending) > 0);
    }
    let too_late = Form::choose(true).unwrap_err();
    assert_eq!(
        too_late.to_string(),
        "locks are native already: one of them had to know, or somebody has decided"
    );
    assert_eq!(Form::choose(false), Ok(()));
}

/// An unlock has to know; so has a lock that is not free, but not one that is.
#[test]
fn an_unlock_decides_and_a_free_lock_does_not() {
    choice! { Form; }
    let domain = Domain::new(Cpus::impatient(CPUS));
    let lock = QSpinLock::<Chosen<Form>>::new();
    Cpus::become_cpu(0);
    lock.lock(&domain);
    Form::choose(true).expect("nobody has looked");
    lock.unlock(&domain, ());
    assert!(lock.try_lock(&domain).is_some(), "taken before the choice, released by the other form");
    lock.unlock(&domain, ());
    assert!(Form::choose(false).unwrap_err().to_string().starts_with("locks are paravirtual"));
}
