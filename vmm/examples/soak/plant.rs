//! Faults put in on purpose: what finds none of them would not find others.

use std::fs::File;
use std::time::Duration;

use haltkick_vmm::{Guest, Rules, Sched, Share};
use support::Settings as _;

use crate::case::{Attack, Case};

/// How long an honest guest may stand still where a fault is put in.
const PATIENCE: Duration = Duration::from_secs(2);
/// Runs of a life that are made before the fault, so that a process is warm.
const BEFORE: u64 = 12;

/// A fault, and how it is to be reported.
pub(crate) struct Plant {
    pub(crate) name: &'static str,
    /// `soak` or `attacks`.
    pub(crate) kind: &'static str,
    /// Words of a report of it.
    pub(crate) says: &'static str,
    /// In what the run is.
    case: fn(&mut Case),
    /// In the process, after a run.
    process: fn(),
}

pub(crate) const PLANTS: [Plant; 10] = [
    // Under the host's scheduler it is not always known that all sleep.
    case("lost-kick", "soak", "no progress", lose_kicks),
    case("hang", "soak", "nothing has moved", |case| of_honest(case, "selftest-hang", false)),
    case("lost-update", "soak", "exclusion", |case| of_honest(case, "selftest-exclusion", false)),
    case("small-share", "attacks", "of its share", halve_the_share),
    case("attack-panics", "attacks", "the attack ended early: panic", |case| {
        beside(case, "selftest-panic");
    }),
    // As after a runner that never comes back, the process says nothing.
    process("stopped", "hung", || {
        loop {
            std::thread::park();
        }
    }),
    process("crash", "ended by itself with 134", || std::process::abort()),
    process("leaked-descriptors", "descriptors more", || std::mem::forget(File::open("/proc/self/stat"))),
    process("leaked-threads", "threads more", || drop(std::thread::spawn(std::thread::park))),
    process("leaked-memory", "KiB of memory more", || {
        std::mem::forget(std::hint::black_box(vec![1_u8; 4 << 20]));
    }),
];

const fn case(name: &'static str, kind: &'static str, says: &'static str, fault: fn(&mut Case)) -> Plant {
    Plant { name, kind, says, case: fault, process: || () }
}

const fn process(name: &'static str, says: &'static str, fault: fn()) -> Plant {
    Plant { name, kind: "attacks", says, case: |_| (), process: fault }
}

impl Plant {
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        PLANTS.iter().find(|plant| plant.name == name)
    }

    /// Changes every third run.
    pub(crate) fn change(&self, case: &mut Case, number: u64) {
        case.run.watchdog = Some(PATIENCE);
        if number % 3 == 1 {
            (self.case)(case);
        }
    }

    /// Puts the fault into the process, once enough `runs` were made.
    pub(crate) fn after(&self, runs: u64) {
        if runs > BEFORE {
            (self.process)();
        }
    }
}

/// Has an honest guest alone do `workload`.
fn of_honest(case: &mut Case, workload: &str, pv: bool) {
    case.group = format!("planted {workload}");
    case.run.guests.truncate(1);
    case.run.deschedule = None;
    case.run = case.run.clone().form("qspinlock", pv).workload(workload).lock_count(1);
}

fn lose_kicks(case: &mut Case) {
    of_honest(case, "selftest-lost-kick", true);
    case.run.guests[0].vcpus = 4 * case.run.cpus.len() as u32;
    let (grace, sched) = (Duration::ZERO, Sched::Host);
    case.run.rules = Rules { sched, grace, kick_yields: false, ..case.run.rules };
}

/// The other guest has thrice the vCPUs, each with a share of its own.
fn halve_the_share(case: &mut Case) {
    beside(case, "selftest-feeder");
    case.run.rules = Rules { sched: Sched::Vmm, share: Share::Vcpu, ..case.run.rules };
    let thrice = 3 * case.run.guests[0].vcpus;
    case.run.guests[1..].iter_mut().for_each(|other| other.vcpus = thrice);
}

fn beside(case: &mut Case, workload: &'static str) {
    case.group = "planted vmm 3".into();
    case.attack = Some(Attack::lasting(workload));
    let others = case.run.guests[1..].iter_mut().filter_map(Guest::ours_mut);
    others.for_each(|ours| ours.workload = workload.into());
}
