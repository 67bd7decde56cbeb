//! The other locks and the reader-writer locks, but not the unfair ticket lock: loom cannot order its plain store of 0 against
//! the exchanges of others, and lets a waiter read the same stale word forever. Shuttle and the host threads check that one.

// Locks without memory of their own have the platform for a domain.
use std::convert::identity as platform;

use haltkick_locks::*;
use haltkick_testing::tests;

use crate::model::{BOTH, Bounds, Cpus, READER, WRITER, check, check_rw};

const TWO: Bounds = Bounds { rounds: 2, preemptions: 3, pauses: 8 };
const THREE: Bounds = Bounds { rounds: 1, preemptions: 2, pauses: 8 };

/// Checks one lock with two and with three CPUs.
macro_rules! family {
    ($($name:ident: $lock:expr, $two:expr, $three:expr;)+) => {$(
        mod $name {
            use super::*;

            tests! {
                with_two_cpus: check(2, TWO, $two, || $lock, |_| {});
                with_three_cpus: check(3, THREE, $three, || $lock, |_| {});
            }
        }
    )+};
}

fn owner_does_not_run<const CPUS: usize>(machine: Cpus) -> OwnerYieldDomain<Cpus, CPUS> {
    machine.set_preempted(0, true);
    OwnerYieldDomain::new(machine)
}

/// Waiters give up when others have paused twice.
fn hasty<const CPUS: usize>(machine: Cpus) -> RqSpinDomain<Cpus, CPUS> {
    RqSpinDomain::new(machine.limited(2))
}

family! {
    tas: Tas::new(), platform, platform;
    ticket: Ticket::new(), platform, platform;
    pv_ticket: PvTicket::new(), PvTicketDomain::<Cpus, 2>::new, PvTicketDomain::<Cpus, 3>::new;
    mcs: Mcs::new(), McsDomain::<Cpus, 2>::new, McsDomain::<Cpus, 3>::new;
    gcr: Gcr::new(), GcrDomain::<Cpus, 2>::new, GcrDomain::<Cpus, 3>::new;
    rqspinlock: RqSpinLock::<Whole>::new(), RqSpinDomain::<Cpus, 2>::new, RqSpinDomain::<Cpus, 3>::new;
    rqspinlock_in_haste: RqSpinLock::<Whole>::new(), hasty::<2>, hasty::<3>;
    owner_yield: OwnerYield::new(), OwnerYieldDomain::<Cpus, 2>::new, OwnerYieldDomain::<Cpus, 3>::new;
    owner_yield_yields: OwnerYield::new(), owner_does_not_run::<2>, owner_does_not_run::<3>;
}

/// Checks one reader-writer lock with two and with three CPUs.
macro_rules! rw_family {
    ($($name:ident: $lock:expr, $two:expr, $three:expr, $pauses:expr;)+) => {$(
        mod $name {
            use super::*;

            tests! {
                with_two_cpus:
                    check_rw([WRITER, BOTH], Bounds { rounds: 2, preemptions: 4, pauses: $pauses }, $two, || $lock);
                with_a_writer_and_two_readers:
                    check_rw([WRITER, READER, READER], Bounds { pauses: $pauses, ..THREE }, $three, || $lock);
                with_two_writers_and_a_reader:
                    check_rw([WRITER, WRITER, READER], Bounds { pauses: $pauses, ..THREE }, $three, || $lock);
            }
        }
    )+};
}

fn with_slots<const CPUS: usize>(machine: Cpus) -> PerCpuRwDomain<Box<Cpus>, [ReaderSlot; CPUS]> {
    PerCpuRwDomain::new(Box::new(machine), std::array::from_fn(|_| ReaderSlot::new()))
}

rw_family! {
    unfair: UnfairRwLock::new(), platform, platform, 8;
    fair: FairRwLock::new(Ticket::new()), platform, platform, 8;
    fair_on_a_sleeping_queue: FairRwLock::new(PvTicket::new()),
        PvTicketDomain::<Cpus, 2>::new, PvTicketDomain::<Cpus, 3>::new, 6;
    per_cpu: PerCpuRwLock::new(UnfairRwLock::new()), with_slots::<2>, with_slots::<3>, 6;
    per_cpu_on_a_fair_one: PerCpuRwLock::new(FairRwLock::new(Ticket::new())), with_slots::<2>, with_slots::<3>, 6;
}
