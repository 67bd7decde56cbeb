//! The other locks, but for the unfair ticket lock: loom cannot order its plain store of 0 against the exchanges of
//! others, and lets a waiter read the same stale word forever. Shuttle and the host threads check that one.

use haltkick_locks::*;

use crate::model::{Bounds, Cpus, check};

const TWO: Bounds = Bounds { rounds: 2, preemptions: 3, pauses: 8 };
const THREE: Bounds = Bounds { rounds: 1, preemptions: 2, pauses: 8 };

/// Checks one lock with two and with three CPUs.
macro_rules! family {
    ($($name:ident: $lock:expr, $two:expr, $three:expr;)+) => {$(
        mod $name {
            use super::*;

            #[test]
            fn with_two_cpus() {
                check(2, TWO, $two, || $lock, |_| {});
            }

            #[test]
            fn with_three_cpus() {
                check(3, THREE, $three, || $lock, |_| {});
            }
        }
    )+};
}

/// Locks without memory of their own have the platform for a domain.
fn platform(machine: Cpus) -> Cpus {
    machine
}

/// Waiters that are stale only when some time has passed.
fn fresh<const CPUS: usize>(machine: Cpus) -> McsTpDomain<Cpus, CPUS> {
    McsTpDomain::new(machine.patient(2))
}

fn cpu_1_does_not_run<const CPUS: usize>(machine: Cpus) -> CnaDomain<Cpus, CPUS> {
    machine.set_preempted(1, true);
    CnaDomain::new(machine)
}

fn none_runs<const CPUS: usize>(machine: Cpus) -> FlexGuardDomain<Cpus, CPUS> {
    (0..CPUS).for_each(|cpu| machine.set_preempted(cpu, true));
    FlexGuardDomain::new(machine)
}

fn cpu_0_does_not_run<const CPUS: usize>(machine: Cpus) -> FlexGuardDomain<Cpus, CPUS> {
    machine.set_preempted(0, true);
    FlexGuardDomain::new(machine)
}

fn owner_does_not_run<const CPUS: usize>(machine: Cpus) -> OwnerYieldDomain<Cpus, CPUS> {
    machine.set_preempted(0, true);
    OwnerYieldDomain::new(machine)
}

/// The switches of powerpc that are off by default.
#[derive(Debug)]
enum Sticky {}

impl Rules for Sticky {
    const IS_STICKY: bool = true;
    const PRODS_HEAD: bool = true;
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
    mcs_tp: McsTp::new(), McsTpDomain::<Cpus, 2>::new, McsTpDomain::<Cpus, 3>::new;
    mcs_tp_fresh: McsTp::new(), fresh::<2>, fresh::<3>;
    cna_live: CnaLive::new(), CnaDomain::<Cpus, 2>::new, CnaDomain::<Cpus, 3>::new;
    cna_live_skips: CnaLive::new(), cpu_1_does_not_run::<2>, cpu_1_does_not_run::<3>;
    flexguard: FlexGuard::<1>::new(), FlexGuardDomain::<Cpus, 2>::new, FlexGuardDomain::<Cpus, 3>::new;
    flexguard_sleeps: FlexGuard::<1>::new(), none_runs::<2>, none_runs::<3>;
    flexguard_stops: FlexGuard::<1>::new(), cpu_0_does_not_run::<2>, cpu_0_does_not_run::<3>;
    clh: Clh::new(), ClhDomain::<Cpus, 2, 1>::new, ClhDomain::<Cpus, 3, 1>::new;
    gcr: Gcr::new(), GcrDomain::<Cpus, 2>::new, GcrDomain::<Cpus, 3>::new;
    rqspinlock: RqSpinLock::<Whole>::new(), RqSpinDomain::<Cpus, 2>::new, RqSpinDomain::<Cpus, 3>::new;
    rqspinlock_in_haste: RqSpinLock::<Whole>::new(), hasty::<2>, hasty::<3>;
    owner_yield: OwnerYield::new(), OwnerYieldDomain::<Cpus, 2>::new, OwnerYieldDomain::<Cpus, 3>::new;
    powerpc: Powerpc::new(), OwnerYieldDomain::<Cpus, 2>::new, OwnerYieldDomain::<Cpus, 3>::new;
    powerpc_yields: Powerpc::new(), owner_does_not_run::<2>, owner_does_not_run::<3>;
    powerpc_marks: OwnerQueue::<Sticky>::new(), owner_does_not_run::<2>, owner_does_not_run::<3>;
}
