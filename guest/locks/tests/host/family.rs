//! What every lock of the family must do, on host threads.

use std::time::Duration;

use haltkick_locks::*;

use crate::support::{self, Host, rounds};

/// CPUs in a test: more than the machine that runs it is likely to have to spare. Miri has one thread for
/// all.
const CPUS: usize = if cfg!(miri) { 3 } else { 8 };

/// The tests of one lock. `$domain` makes the domain from a host, `$lock` a new lock.
macro_rules! family {
    ($($name:ident: $lock:expr, $domain:expr;)+) => {$(
        mod $name {
            use super::*;

            #[test]
            fn no_increment_is_lost() {
                let host = Host::new(CPUS, Duration::from_micros(20));
                support::no_increment_is_lost(&host, &$domain(host.clone()), &CachePadded::new($lock), rounds(1_500));
            }

            #[test]
            fn no_sleeper_is_forgotten_when_all_are_impatient() {
                let host = Host::impatient(CPUS);
                support::no_increment_is_lost(&host, &$domain(host.clone()), &$lock, rounds(1_500));
            }

            #[test]
            fn no_increment_is_lost_when_trying_first() {
                let host = Host::impatient(CPUS);
                support::no_increment_is_lost_when_trying(&host, &$domain(host.clone()), &$lock, rounds(1_500));
            }

            #[test]
            fn try_lock_tells_held_from_free() {
                let host = Host::impatient(2);
                support::try_lock_tells_held_from_free(&$domain(host), &$lock);
            }

            #[test]
            fn two_locks_may_be_released_in_any_order() {
                let host = Host::impatient(CPUS);
                let (a, b) = ($lock, $lock);
                support::two_locks_may_be_released_in_any_order(&host, &$domain(host.clone()), [&a, &b], rounds(700));
            }
        }
    )+};
}

family! {
    tas: Tas::new(), |host| host;
    slice_tas: SliceTas::new(), |host| host;
    ticket: Ticket::new(), |host| host;
    unfair_ticket: UnfairTicket::new(), |host| host;
    pv_ticket: PvTicket::new(), PvTicketDomain::<Host, CPUS>::new;
    mcs: Mcs::new(), McsDomain::<Host, CPUS>::new;
    clh: Clh::new(), ClhDomain::<Host, CPUS>::new;
    owner_yield: OwnerYield::new(), OwnerYieldDomain::<Host, CPUS>::new;
    mutex_packed: Mutex::<osq::Packed>::new(), SleepDomain::<Host, osq::Packed, CPUS>::new;
    mutex_split: Mutex::<osq::Split>::new(), SleepDomain::<Host, osq::Split, CPUS>::new;
    mutex_cached: Mutex::<osq::Cached>::new(), SleepDomain::<Host, osq::Cached, CPUS>::new;
    mutex_prev_cpu: Mutex::<osq::PrevCpu>::new(), SleepDomain::<Host, osq::PrevCpu, CPUS>::new;
    futex: FutexMutex::new(), SleepDomain::<Host, osq::Packed, CPUS>::new;
    rwsem_packed: RwSem::<osq::Packed>::new(), SleepDomain::<Host, osq::Packed, CPUS>::new;
    rwsem_prev_cpu: RwSem::<osq::PrevCpu>::new(), SleepDomain::<Host, osq::PrevCpu, CPUS>::new;
    qspinlock_native_whole: QSpinLock::<Native, Whole>::new(), QSpinDomain::<Host, CPUS>::new;
    qspinlock_virt_whole: QSpinLock::<VirtTas, Whole>::new(), QSpinDomain::<Host, CPUS>::new;
    qspinlock_pv_whole: QSpinLock::<Pv, Whole>::new(), QSpinDomain::<Host, CPUS>::new;
    qspinlock_wc_whole: QSpinLock::<WorkConserving, Whole>::new(), QSpinDomain::<Host, CPUS>::new;
    qspinlock_v16_whole: QSpinLock::<V16, Whole>::new(), QSpinDomain::<Host, CPUS>::new;
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
family! {
    qspinlock_native_packed: QSpinLock::<Native, Packed>::new(), QSpinDomain::<Host, CPUS>::new;
    qspinlock_virt_packed: QSpinLock::<VirtTas, Packed>::new(), QSpinDomain::<Host, CPUS>::new;
    qspinlock_pv_packed: QSpinLock::<Pv, Packed>::new(), QSpinDomain::<Host, CPUS>::new;
    qspinlock_wc_packed: QSpinLock::<WorkConserving, Packed>::new(), QSpinDomain::<Host, CPUS>::new;
    qspinlock_v16_packed: QSpinLock::<V16, Packed>::new(), QSpinDomain::<Host, CPUS>::new;
}

#[test]
fn no_lock_admits_everybody_at_once() {
    let (host, lock) = (Host::impatient(1), NoLock::new());
    lock.lock(&host);
    assert!(lock.try_lock(&host).is_some());
}
