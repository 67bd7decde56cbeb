//! Faults put in on purpose: what finds none of them would not find others.

use std::fs::File;
use std::time::Duration;

use haltkick_vmm::{RunConfig, Sched, Share};

use crate::case::{Attack, Case, Kind};

/// How long an honest guest may stand still where a fault is put in.
const PATIENCE: Duration = Duration::from_secs(2);
/// Runs of a life that are made before the fault, so that a process is warm.
const BEFORE: u64 = 12;

/// A fault, and how it is to be reported.
pub(crate) struct Plant {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// What a report of it says.
    pub(crate) says: &'static str,
    fault: Fault,
}

enum Fault {
    /// In what the run is.
    Case(fn(&mut Case)),
    /// In the process, after a run.
    Process(fn()),
}

pub(crate) const PLANTS: [Plant; 10] = [
    // Who sleeps under the host's scheduler is not known.
    case("lost-kick", Kind::Soak, "nothing has moved", lose_kicks),
    case("hang", Kind::Soak, "nothing has moved", |case| of_honest(case, "selftest-hang", false)),
    case("lost-update", Kind::Soak, "exclusion", |case| of_honest(case, "selftest-exclusion", false)),
    case("small-share", Kind::Attack, "of its share", halve_the_share),
    case("attack-panics", Kind::Attack, "the attack ended early: panic", |case| {
        beside(case, "selftest-panic");
    }),
    // As with a runner that never comes back, nothing is heard any more.
    process("stopped", "hung", || {
        loop {
            std::thread::park();
        }
    }),
    process("crash", "signal: 6", || std::process::abort()),
    process("leaked-descriptors", "descriptors more", || std::mem::forget(File::open("/proc/self/stat"))),
    process("leaked-threads", "threads more", || drop(std::thread::spawn(std::thread::park))),
    process("leaked-memory", "KiB of memory more", || {
        std::mem::forget(std::hint::black_box(vec![1_u8; 4 << 20]));
    }),
];

const fn case(name: &'static str, kind: Kind, says: &'static str, fault: fn(&mut Case)) -> Plant {
    Plant { name, kind, says, fault: Fault::Case(fault) }
}

const fn process(name: &'static str, says: &'static str, fault: fn()) -> Plant {
    Plant { name, kind: Kind::Attack, says, fault: Fault::Process(fault) }
}

impl Plant {
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        PLANTS.iter().find(|plant| plant.name == name)
    }

    /// It is found in a process that has made many runs.
    pub(crate) fn needs_a_long_life(&self) -> bool {
        matches!(self.fault, Fault::Process(_))
    }

    /// Changes every third run.
    pub(crate) fn change(&self, case: &mut Case, number: u64) {
        case.config.watchdog = Some(PATIENCE);
        case.config.beside.iter_mut().for_each(|other| other.watchdog = Some(PATIENCE));
        if let Fault::Case(fault) = self.fault
            && number % 3 == 1
        {
            fault(case);
        }
    }

    /// Does to the process what is to be found, once so many `runs` were made.
    pub(crate) fn after(&self, runs: u64) {
        if let Fault::Process(fault) = self.fault
            && runs > BEFORE
        {
            fault();
        }
    }
}

/// Has an honest guest alone do `workload`.
fn of_honest(case: &mut Case, workload: &str, pv: bool) {
    let lock = "qspinlock".into();
    case.group = format!("planted {workload}");
    let watchdog = Some(PATIENCE);
    case.config = RunConfig {
        workload: workload.into(),
        lock,
        pv,
        watchdog,
        lock_count: 1,
        deschedule: None,
        beside: vec![],
        ..case.config.clone()
    };
}

fn lose_kicks(case: &mut Case) {
    of_honest(case, "selftest-lost-kick", true);
    let vcpus = 4 * case.config.cpus.len() as u32;
    let (grace, sched) = (Duration::ZERO, Sched::Host);
    case.config = RunConfig { vcpus, sched, grace, kick_yields: false, ..case.config.clone() };
}

/// The other guest has thrice the vCPUs, each with a share of its own.
fn halve_the_share(case: &mut Case) {
    beside(case, "selftest-feeder");
    case.config.sched = Sched::Vmm;
    case.config.share = Share::Vcpu;
    let vcpus = 3 * case.config.vcpus;
    let honest = case.config.clone();
    for other in &mut case.config.beside {
        *other = RunConfig {
            vcpus,
            workload: other.workload.clone(),
            name: other.name.clone(),
            beside: vec![],
            ..honest.clone()
        };
    }
}

fn beside(case: &mut Case, workload: &'static str) {
    case.group = "planted vmm 3".into();
    case.attack = Some(Attack::lasting(workload));
    case.config.beside.iter_mut().for_each(|other| other.workload = workload.into());
}
