//! The queue spinlock, in the layout that loom can see.

use haltkick_locks::*;

use crate::model::{Bounds, Machine, check};

fn nobody_left<const CPUS: usize>(domain: &QSpinDomain<Machine, CPUS, 1>) {
    assert_eq!(domain.sleeping_heads(), 0, "an entry has been left in the table");
}

fn check_mode<M: Mode, const CPUS: usize>(rounds: usize, preemptions: usize) {
    check(
        Bounds { cpus: CPUS, rounds, preemptions },
        QSpinDomain::<Machine, CPUS, 1>::new,
        QSpinLock::<M, Whole>::new,
        nobody_left::<CPUS>,
    );
}

#[test]
fn native_with_two_cpus() {
    check_mode::<Native, 2>(1, 3);
}

#[test]
fn native_with_three_cpus() {
    check_mode::<Native, 3>(1, 2);
}

#[test]
fn v16_with_two_cpus() {
    check_mode::<V16, 2>(1, 3);
}

#[test]
fn pv_with_two_cpus() {
    check_mode::<Pv, 2>(1, 3);
}

#[test]
fn v16_with_three_cpus() {
    check_mode::<V16, 3>(1, 2);
}

#[test]
fn pv_with_three_cpus() {
    check_mode::<Pv, 3>(1, 2);
}
