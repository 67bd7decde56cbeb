//! Requirements on every lock of the family, on host threads.

use haltkick_qspin::*;

use crate::support::{CPUS, Cpus, family};

family! {
    tas: Tas::new(), |host| host;
    ticket: Ticket::new(), |host| host;
    qspinlock_native_whole: QSpinLock::<Native, Whole>::new(), QSpinDomain::<Cpus, CPUS>::new;
    qspinlock_virt_whole: QSpinLock::<VirtTas, Whole>::new(), QSpinDomain::<Cpus, CPUS>::new;
    qspinlock_pv_whole: QSpinLock::<Pv, Whole>::new(), QSpinDomain::<Cpus, CPUS>::new;
    qspinlock_wc_whole: QSpinLock::<WorkConserving, Whole>::new(), QSpinDomain::<Cpus, CPUS>::new;
    qspinlock_bounded_whole: QSpinLock::<Bounded, Whole>::new(), QSpinDomain::<Cpus, CPUS>::new;
    qspinlock_v16_whole: QSpinLock::<V16, Whole>::new(), QSpinDomain::<Cpus, CPUS>::new;
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
family! {
    qspinlock_native_packed: QSpinLock::<Native, Packed>::new(), QSpinDomain::<Cpus, CPUS>::new;
    qspinlock_virt_packed: QSpinLock::<VirtTas, Packed>::new(), QSpinDomain::<Cpus, CPUS>::new;
    qspinlock_pv_packed: QSpinLock::<Pv, Packed>::new(), QSpinDomain::<Cpus, CPUS>::new;
    qspinlock_wc_packed: QSpinLock::<WorkConserving, Packed>::new(), QSpinDomain::<Cpus, CPUS>::new;
    qspinlock_bounded_packed: QSpinLock::<Bounded, Packed>::new(), QSpinDomain::<Cpus, CPUS>::new;
    qspinlock_v16_packed: QSpinLock::<V16, Packed>::new(), QSpinDomain::<Cpus, CPUS>::new;
}
