//! The reader-writer locks.

use haltkick_locks::*;

use crate::model::{Bounds, Machine, Role, check_rw};

/// One that writes, one that does either in turn.
const TWO: [Role; 2] = [Role::Writer, Role::Both];
/// One that writes, two that read.
const THREE: [Role; 3] = [Role::Writer, Role::Reader, Role::Reader];
/// Two that write, one that reads.
const TWO_WRITERS: [Role; 3] = [Role::Writer, Role::Writer, Role::Reader];

/// Checks one lock with two and with three CPUs.
macro_rules! rw_family {
    ($($name:ident: $lock:expr, $two:expr, $three:expr, $pauses:expr;)+) => {$(
        mod $name {
            use super::*;

            #[test]
            fn with_two_cpus() {
                check_rw(TWO, Bounds { rounds: 2, preemptions: 4, pauses: $pauses }, $two, || $lock);
            }

            #[test]
            fn with_a_writer_and_two_readers() {
                check_rw(THREE, Bounds { rounds: 1, preemptions: 2, pauses: $pauses }, $three, || $lock);
            }

            #[test]
            fn with_two_writers_and_a_reader() {
                check_rw(TWO_WRITERS, Bounds { rounds: 1, preemptions: 2, pauses: $pauses }, $three, || $lock);
            }
        }
    )+};
}

fn platform(machine: Machine) -> Machine {
    machine
}

fn with_slots<const CPUS: usize>(machine: Machine) -> PerCpuRwDomain<Box<Machine>, [ReaderSlot; CPUS]> {
    PerCpuRwDomain::new(Box::new(machine), std::array::from_fn(|_| ReaderSlot::new()))
}

rw_family! {
    unfair: UnfairRwLock::new(), platform, platform, 8;
    fair: FairRwLock::new(Ticket::new()), platform, platform, 8;
    fair_on_a_sleeping_queue: FairRwLock::new(PvTicket::new()),
        PvTicketDomain::<Machine, 2>::new, PvTicketDomain::<Machine, 3>::new, 6;
    per_cpu: PerCpuRwLock::new(UnfairRwLock::new()), with_slots::<2>, with_slots::<3>, 6;
    per_cpu_on_a_fair_one: PerCpuRwLock::new(FairRwLock::new(Ticket::new())), with_slots::<2>, with_slots::<3>, 6;
}
