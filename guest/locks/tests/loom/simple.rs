//! The locks without paravirtual form.

use haltkick_locks::*;

use crate::model::{Bounds, Machine, check};

const TWO: Bounds = Bounds { cpus: 2, rounds: 1, preemptions: 3 };
const THREE: Bounds = Bounds { cpus: 3, rounds: 1, preemptions: 2 };

fn platform(machine: Machine) -> Machine {
    machine
}

#[test]
fn tas_with_two_cpus() {
    check(TWO, platform, Tas::new, |_| {});
}

#[test]
fn ticket_with_two_cpus() {
    check(TWO, platform, Ticket::new, |_| {});
}

#[test]
fn mcs_with_two_cpus() {
    check(TWO, McsDomain::<Machine, 2>::new, Mcs::new, |_| {});
}

#[test]
fn ticket_with_three_cpus() {
    check(THREE, platform, Ticket::new, |_| {});
}

#[test]
fn mcs_with_three_cpus() {
    check(THREE, McsDomain::<Machine, 3>::new, Mcs::new, |_| {});
}
