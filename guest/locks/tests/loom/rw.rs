//! The reader-writer locks.

use std::convert::identity as platform;

use haltkick_locks::*;
use haltkick_testing::tests;

use crate::model::{BOTH, Bounds, Cpus, READER, Role, WRITER, check_rw};

/// One that writes, one that does either in turn.
const TWO: [Role; 2] = [WRITER, BOTH];
/// One that writes, two that read.
const THREE: [Role; 3] = [WRITER, READER, READER];
/// Two that write, one that reads.
const TWO_WRITERS: [Role; 3] = [WRITER, WRITER, READER];

/// Checks one lock with two and with three CPUs.
macro_rules! rw_family {
    ($($name:ident: $lock:expr, $two:expr, $three:expr, $pauses:expr;)+) => {$(
        mod $name {
            use super::*;

            tests! {
                with_two_cpus:
                    check_rw(TWO, Bounds { rounds: 2, preemptions: 4, pauses: $pauses }, $two, || $lock);
                with_a_writer_and_two_readers:
                    check_rw(THREE, Bounds { rounds: 1, preemptions: 2, pauses: $pauses }, $three, || $lock);
                with_two_writers_and_a_reader:
                    check_rw(TWO_WRITERS, Bounds { rounds: 1, preemptions: 2, pauses: $pauses }, $three, || $lock);
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
