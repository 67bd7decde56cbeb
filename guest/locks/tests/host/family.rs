//! Requirements on every lock of the family, on host threads.

use haltkick_locks::*;

use crate::support::{self, CPUS, Cpus, family};

family! {
    tas: Tas::new(), |host| host;
    ticket: Ticket::new(), |host| host;
    qspinlock_native_whole: QSpinLock::<Native, Whole>::new(), QSpinDomain::<Cpus, CPUS>::new;
    qspinlock_virt_whole: QSpinLock::<VirtTas, Whole>::new(), QSpinDomain::<Cpus, CPUS>::new;
    qspinlock_pv_whole: QSpinLock::<Pv, Whole>::new(), QSpinDomain::<Cpus, CPUS>::new;
    qspinlock_wc_whole: QSpinLock::<WorkConserving, Whole>::new(), QSpinDomain::<Cpus, CPUS>::new;
    qspinlock_bounded_whole: QSpinLock::<Bounded, Whole>::new(), QSpinDomain::<Cpus, CPUS>::new;
    qspinlock_v16_whole: QSpinLock::<V16, Whole>::new(), QSpinDomain::<Cpus, CPUS>::new;
    slice_tas: SliceTas::new(), |host| host;
    unfair_ticket: UnfairTicket::new(), |host| host;
    pv_ticket: PvTicket::new(), PvTicketDomain::<Cpus, CPUS>::new;
    mcs: Mcs::new(), McsDomain::<Cpus, CPUS>::new;
    gcr: Gcr::new(), GcrDomain::<Cpus, CPUS>::new;
    owner_yield: OwnerYield::new(), OwnerYieldDomain::<Cpus, CPUS>::new;
    mutex_packed: Mutex::<osq::Packed>::new(), SleepDomain::<Cpus, osq::Packed, CPUS>::new;
    mutex_split: Mutex::<osq::Split>::new(), SleepDomain::<Cpus, osq::Split, CPUS>::new;
    mutex_cached: Mutex::<osq::Cached>::new(), SleepDomain::<Cpus, osq::Cached, CPUS>::new;
    mutex_prev_cpu: Mutex::<osq::PrevCpu>::new(), SleepDomain::<Cpus, osq::PrevCpu, CPUS>::new;
    futex: FutexMutex::new(), SleepDomain::<Cpus, osq::Packed, CPUS>::new;
    rwsem_packed: RwSem::<osq::Packed>::new(), SleepDomain::<Cpus, osq::Packed, CPUS>::new;
    rwsem_prev_cpu: RwSem::<osq::PrevCpu>::new(), SleepDomain::<Cpus, osq::PrevCpu, CPUS>::new;
    rqspinlock_whole: RqSpinLock::<Whole>::new(), RqSpinDomain::<Cpus, CPUS>::new;
    rqspinlock_in_haste: RqSpinLock::<Whole>::new(), |host: Cpus| RqSpinDomain::<_, CPUS>::new(host.limited(2_000));
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
family! {
    qspinlock_native_packed: QSpinLock::<Native, Packed>::new(), QSpinDomain::<Cpus, CPUS>::new;
    qspinlock_virt_packed: QSpinLock::<VirtTas, Packed>::new(), QSpinDomain::<Cpus, CPUS>::new;
    qspinlock_pv_packed: QSpinLock::<Pv, Packed>::new(), QSpinDomain::<Cpus, CPUS>::new;
    qspinlock_wc_packed: QSpinLock::<WorkConserving, Packed>::new(), QSpinDomain::<Cpus, CPUS>::new;
    qspinlock_bounded_packed: QSpinLock::<Bounded, Packed>::new(), QSpinDomain::<Cpus, CPUS>::new;
    qspinlock_v16_packed: QSpinLock::<V16, Packed>::new(), QSpinDomain::<Cpus, CPUS>::new;
    rqspinlock_packed: RqSpinLock::<Packed>::new(), RqSpinDomain::<Cpus, CPUS>::new;
    rqspinlock_packed_in_haste: RqSpinLock::<Packed>::new(), |host: Cpus| RqSpinDomain::<_, CPUS>::new(host.limited(2_000));
}

#[test]
fn waiters_of_strict_queues_are_served_in_order() {
    support::serves_in_the_order_of_arrival(McsDomain::<Cpus, 6>::new, &Mcs::new());
    support::serves_in_the_order_of_arrival(|host| host, &Ticket::new());
    support::serves_in_the_order_of_arrival(QSpinDomain::<Cpus, 6>::new, &QSpinLock::<Native>::new());
    support::serves_in_the_order_of_arrival(QSpinDomain::<Cpus, 6>::new, &QSpinLock::<V16>::new());
}
