//! The queue spinlock, in the layout that loom can see.

use haltkick_locks::*;
use haltkick_testing::tests;

use crate::model::{Bounds, Cpus, check};

/// Checks a mode on a host that has been told something.
fn check_on<M: Mode, const CPUS: usize>(bounds: Bounds, told: fn(Cpus) -> Cpus) {
    let domain = move |machine| QSpinDomain::<Cpus, CPUS, 1>::new(told(machine));
    check(CPUS, bounds, domain, QSpinLock::<M, Whole>::new, |domain| {
        assert_eq!(domain.sleeping_heads(), 0, "an entry has been left in the table");
    });
}

fn check_mode<M: Mode, const CPUS: usize>(bounds: Bounds) {
    check_on::<M, CPUS>(bounds, |machine| machine);
}

tests! {
    native_with_two_cpus: check_mode::<Native, 2>(Bounds { rounds: 2, preemptions: 4, pauses: 8 });
    native_with_three_cpus: check_mode::<Native, 3>(Bounds { rounds: 1, preemptions: 3, pauses: 8 });
    /// Owner, pending, head, and one behind.
    native_with_four_cpus: check_mode::<Native, 4>(Bounds { rounds: 1, preemptions: 2, pauses: 6 });
    v16_with_two_cpus: check_mode::<V16, 2>(Bounds { rounds: 2, preemptions: 3, pauses: 3 });
    /// Owner, head, and one behind.
    v16_with_three_cpus: check_mode::<V16, 3>(Bounds { rounds: 1, preemptions: 2, pauses: 6 });
    pv_with_two_cpus: check_mode::<Pv, 2>(Bounds { rounds: 2, preemptions: 3, pauses: 6 });
    /// Owner, head, and one behind, or a thief.
    pv_with_three_cpus: check_mode::<Pv, 3>(Bounds { rounds: 1, preemptions: 2, pauses: 6 });
    bounded_with_two_cpus: check_mode::<Bounded, 2>(Bounds { rounds: 2, preemptions: 3, pauses: 6 });
    /// Owner, head, and a thief.
    bounded_with_three_cpus: check_mode::<Bounded, 3>(Bounds { rounds: 1, preemptions: 2, pauses: 6 });
    wc_with_two_cpus: check_mode::<WorkConserving, 2>(Bounds { rounds: 2, preemptions: 3, pauses: 6 });
    /// Owner, head, and a thief.
    wc_with_three_cpus: check_mode::<WorkConserving, 3>(Bounds { rounds: 1, preemptions: 2, pauses: 6 });
    virt_with_three_cpus: check_mode::<VirtTas, 3>(Bounds { rounds: 1, preemptions: 3, pauses: 8 });
}

fn patient(machine: Cpus) -> Cpus {
    machine.patient(1)
}

fn on_an_idle_host(machine: Cpus) -> Cpus {
    machine.set_overcommitted(false);
    machine.patient(1)
}

fn slices_end(machine: Cpus) -> Cpus {
    machine.set_slice_ends_soon(true);
    machine
}

tests! {
    /// The head looks more than once, and yields before its tenure is over.
    wc_with_two_cpus_that_are_patient:
        check_on::<WorkConserving, 2>(Bounds { rounds: 2, preemptions: 2, pauses: 12 }, patient);
    /// Owner, head, and a sleeper that the head wakes.
    wc_with_three_cpus_that_are_patient:
        check_on::<WorkConserving, 3>(Bounds { rounds: 1, preemptions: 2, pauses: 4 }, patient);
    /// No CPU sleeps.
    wc_with_two_cpus_on_an_idle_host:
        check_on::<WorkConserving, 2>(Bounds { rounds: 2, preemptions: 3, pauses: 6 }, on_an_idle_host);
    wc_with_three_cpus_on_an_idle_host:
        check_on::<WorkConserving, 3>(Bounds { rounds: 1, preemptions: 2, pauses: 6 }, on_an_idle_host);
    /// Every attempt begins with giving up the slice.
    wc_with_two_cpus_whose_slices_end:
        check_on::<WorkConserving, 2>(Bounds { rounds: 2, preemptions: 3, pauses: 6 }, slices_end);
}
