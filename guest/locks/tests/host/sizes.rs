//! The bytes that the README promises.

use haltkick_locks::*;

use crate::support::Cpus;

/// Bytes that one more CPU adds to a domain.
macro_rules! per_cpu {
    ($domain:ident $(, $layout:ty)?) => {
        size_of::<$domain<(), $($layout,)? 129>>() - size_of::<$domain<(), $($layout,)? 128>>()
    };
}

#[test]
fn locks_are_as_small_as_the_readme_says() {
    assert_eq!(size_of::<NoLock>(), 0);
    assert_eq!(size_of::<Tas>(), 4);
    assert_eq!(size_of::<Ticket>(), 8);
    assert_eq!(size_of::<UnfairTicket>(), 4);
    assert_eq!(size_of::<PvTicket>(), 8);
    assert_eq!(size_of::<Mcs>(), 4);
    assert_eq!(size_of::<OwnerYield>(), 4);
    assert_eq!(size_of::<Gcr>(), 12);
    assert_eq!(size_of::<QSpinLock<Pv>>(), 4);
    assert_eq!(size_of::<RqSpinLock>(), 4);
    assert_eq!(size_of::<Mutex>(), 20);
    assert_eq!(size_of::<RwSem>(), 24);
    assert_eq!(size_of::<FutexMutex>(), 16);
    assert_eq!(size_of::<Osq<osq::PrevCpu>>(), 4);
    assert_eq!(size_of::<UnfairRwLock>(), 4);
    assert_eq!(size_of::<FairRwLock<QSpinLock<Pv>>>(), 8);
    assert_eq!(size_of::<PerCpuRwLock<FairRwLock<QSpinLock<Pv>>>>(), 12);
    assert_eq!(align_of::<CachePadded<QSpinLock<Pv>>>(), 128);
}

#[test]
fn domains_are_as_small_as_the_readme_says() {
    assert_eq!(size_of::<QSpinDomain<Cpus, 64>>(), 64 * 128 + 4096 + 64, "and a line for the platform");
    assert_eq!(size_of::<QSpinDomain<(), 1024, 1024>>(), 1024 * (128 + 64));
    assert_eq!(per_cpu!(OwnerYieldDomain), 128);
    assert_eq!(per_cpu!(GcrDomain), 128);
    assert_eq!(per_cpu!(McsDomain), 1152);
    assert_eq!(per_cpu!(RqSpinDomain), 384);
    assert_eq!(per_cpu!(SleepDomain, osq::Packed), 256);
    assert_eq!(size_of::<ReaderSlot>(), 128);
    assert_eq!(size_of::<PvTicketDomain<(), 1024>>(), 1024 * 129);
}
