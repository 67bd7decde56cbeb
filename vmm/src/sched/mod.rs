//! The schedulers of vCPUs. Two schedulers with one interface: start, interrupt, hand back the books.
//!
//! A vCPU's turn under `--sched vmm`, from ready to ready: `run_queues` says which vCPU is next on a pCPU; a driver, `runners` with
//! threads or `simulated` in virtual time, runs it; `core` says whether its turn ends and what becomes of it; `account` enters how
//! long it was where; `ready` has it wait for its next turn. Under `--sched host` all of that is `host_threads`.

pub(crate) mod account;
pub(crate) mod books;
mod core;
pub(crate) mod deschedule;
mod fair_queue;
pub(crate) mod guest_run;
pub(crate) mod hints;
mod host_threads;
mod idle;
pub(crate) mod loss;
mod pcpu;
pub(crate) mod quota;
mod ready;
pub(crate) mod run_delay;
mod run_queues;
mod runners;
pub(crate) mod simulated;
mod sleepers;
mod slice;
pub(crate) mod starts;
pub(crate) mod steal_record;
pub(crate) mod switch_books;
mod task;
#[cfg(any(test, fuzzing))]
pub(crate) mod tests;
pub(crate) mod window;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::Scope;
use std::time::Duration;

use haltkick_sim::board::Witness;
use haltkick_sim::hosts::Host;
use haltkick_sim::schedule::Schedule;

use crate::host::clock::process_cpu_time;
use crate::machine::vcpu::Vcpu;
use crate::observe::Whereabouts;
use crate::sched::account::Account;
use crate::sched::deschedule::Plan;
use crate::sched::guest_run::GuestRun;
use crate::sched::run_delay::SchedStat;

use host_threads::HostThreads;
use runners::Runners;
use simulated::Simulated;

pub use simulated::Repeated;

/// The atomics of [`idle`] and [`sleepers`], for which `tests/models.rs` puts the model checker's.
mod sync {
    pub(super) use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering, fence};
}

/// The scheduler that decides which vCPU runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sched {
    /// One pinned runner thread per pCPU multiplexes the vCPUs; a timer signal ends the slice.
    Vmm,
    /// One thread per vCPU, pinned to the set of pCPUs; the host's scheduler decides.
    Host,
}

/// The unit that has equal shares of the pCPUs when several guests run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Share {
    /// Every guest, whatever its number of vCPUs.
    Guest,
    /// Every vCPU.
    #[default]
    Vcpu,
}

/// The rules that vCPUs are scheduled by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Scheduler of the vCPUs.
    pub sched: Sched,
    /// The unit that has equal shares, under [`Sched::Vmm`].
    pub share: Share,
    /// Length of a slice under [`Sched::Vmm`].
    pub slice: Duration,
    /// Under [`Sched::Vmm`]: how much longer a vCPU may run that says it holds a lock when its slice ends; zero: no longer.
    pub grace: Duration,
    /// Under [`Sched::Vmm`]: a vCPU that kicks another one awake hands it the pCPU.
    pub kick_yields: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            sched: Sched::Vmm,
            share: Share::Vcpu,
            slice: Duration::from_millis(1),
            grace: Duration::ZERO,
            kick_yields: false,
        }
    }
}

/// The record of one vCPU that a scheduler hands back.
pub(crate) struct Finished {
    /// Position of its guest among those of the run.
    pub(crate) guest: usize,
    pub(crate) id: u32,
    pub(crate) vcpu: Vcpu,
    pub(crate) account: Account,
    /// Its place when the run ended.
    pub(crate) whereabouts: Whereabouts,
}

/// Either scheduler.
pub(crate) enum Scheduler<'a> {
    Vmm(Box<Runners<'a>>),
    /// One per guest: what they share is the host's scheduler.
    Host(Vec<HostThreads<'a>>),
    /// The VMM's, on a simulated machine.
    Simulated(Box<Simulated<'a>>),
}

impl<'a> Scheduler<'a> {
    /// The scheduler that `rules` ask for on `pcpus`, with the vCPUs of each of `guests` in its hands.
    pub(crate) fn new(
        rules: Rules,
        pcpus: &[u32],
        guests: &'a [GuestRun<'a>],
        vcpus: Vec<Vec<Vcpu>>,
        plan: Option<Plan>,
    ) -> Self {
        match rules.sched {
            Sched::Vmm => Self::Vmm(Box::new(Runners::new(rules, pcpus, guests, vcpus, plan))),
            Sched::Host => {
                let of_guest = |(guest, vcpus)| HostThreads::new(guest, vcpus, plan);
                Self::Host(guests.iter().zip(vcpus).map(of_guest).collect())
            }
        }
    }

    /// The VMM's, that of a model of a host or a recorded one, on CPUs of a simulated machine, whose costs scatter as a seed says.
    /// `looks`: what ends the simulation, and what looks at the CPUs.
    pub(crate) fn simulated(
        schedulers: (Rules, Option<&Host>, Option<&Arc<Schedule>>),
        guests: &'a [GuestRun<'a>],
        vcpus: Vec<Vec<Vcpu>>,
        plan: Option<Plan>,
        machine: (&Arc<haltkick_sim::machine::Machine>, &[u32], u64),
        looks: (&'a AtomicBool, Option<Box<dyn Witness>>),
    ) -> Self {
        Self::Simulated(Box::new(Simulated::new(schedulers, guests, vcpus, plan, machine, looks)))
    }

    /// Starts its threads on `cpus`.
    pub(crate) fn start<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, cpus: &'scope [u32]) {
        match self {
            Self::Vmm(runners) => runners.start(scope, cpus),
            Self::Host(guests) => guests.iter().for_each(|threads| threads.start(scope, cpus)),
            Self::Simulated(_) => {}
        }
    }

    /// Lets this much time pass: by sleeping while threads run the vCPUs, or by simulating them.
    pub(crate) fn pass(&self, time: Duration) {
        match self {
            Self::Vmm(_) | Self::Host(_) => std::thread::sleep(time),
            Self::Simulated(simulated) => simulated.pass(time, &mut |_| ()),
        }
    }

    /// Lets this much simulated time pass. `stopped` is told how many vCPUs sleep, whenever a witness has one stand still.
    pub(crate) fn pass_watched(&self, time: Duration, stopped: &mut dyn FnMut(u32)) {
        if let Self::Simulated(simulated) = self {
            simulated.pass(time, stopped);
        }
    }

    /// CPU time that the guests' vCPUs, or all of this process, have had.
    pub(crate) fn cpu_time(&self) -> Duration {
        match self {
            Self::Vmm(_) | Self::Host(_) => process_cpu_time(),
            Self::Simulated(simulated) => simulated.busy(),
        }
    }

    /// Gets every thread out of its vCPU and to its end. [`GuestRun::stop`] comes first.
    pub(crate) fn interrupt(&self) {
        match self {
            Self::Vmm(runners) => runners.interrupt(),
            Self::Host(guests) => guests.iter().for_each(HostThreads::interrupt),
            Self::Simulated(simulated) => simulated.interrupt(),
        }
    }

    /// Gets the vCPUs of `guest` out; those of the others go on. [`GuestRun::stop`] comes first.
    pub(crate) fn interrupt_guest(&self, guest: usize) {
        match self {
            // The pCPU that runs one of the guest's vCPUs looks at the end of its slice.
            Self::Vmm(_) | Self::Simulated(_) => {}
            Self::Host(guests) => guests[guest].interrupt(),
        }
    }

    /// Whether a thread failed that all guests need.
    pub(crate) fn is_broken(&self) -> bool {
        match self {
            Self::Vmm(runners) => runners.is_broken(),
            Self::Host(_) | Self::Simulated(_) => false,
        }
    }

    /// How much of a recorded schedule was repeated; `None`: there was none.
    pub(crate) fn repeated(&self) -> Option<Repeated> {
        match self {
            Self::Vmm(_) | Self::Host(_) => None,
            Self::Simulated(simulated) => simulated.repeated(),
        }
    }

    /// Whether every vCPU of `guest` that has not left sleeps, as far as the scheduler does not end it for that itself.
    pub(crate) fn all_asleep(&self, guest: usize) -> bool {
        match self {
            Self::Vmm(_) | Self::Simulated(_) => false,
            Self::Host(guests) => guests[guest].all_asleep(),
        }
    }

    /// Work that the vCPUs of a simulated machine have done; elsewhere it is not counted.
    pub(crate) fn worked(&self) -> Duration {
        match self {
            Self::Vmm(_) | Self::Host(_) => Duration::ZERO,
            Self::Simulated(simulated) => simulated.worked(),
        }
    }

    /// Time in which pCPUs of a simulated machine were idle, and in the VMM.
    pub(crate) fn outside(&self) -> [Duration; 2] {
        match self {
            Self::Vmm(_) | Self::Host(_) => [Duration::ZERO; 2],
            Self::Simulated(simulated) => simulated.outside(),
        }
    }

    /// Places of the vCPUs of all guests, in order.
    pub(crate) fn whereabouts(&self) -> Vec<Whereabouts> {
        match self {
            Self::Vmm(runners) => runners.whereabouts(),
            Self::Host(guests) => guests.iter().flat_map(HostThreads::whereabouts).collect(),
            Self::Simulated(simulated) => simulated.whereabouts(),
        }
    }

    /// Whether every vCPU that is ready has run since `since_ns`, as far as the scheduler knows.
    pub(crate) fn everybody_ran_since(&self, since_ns: u64) -> bool {
        match self {
            Self::Vmm(runners) => runners.everybody_ran_since(since_ns),
            Self::Host(_) => true,
            Self::Simulated(simulated) => simulated.everybody_ran_since(since_ns),
        }
    }

    /// The kernel's statistics of the thread of each vCPU of `guest`; empty where vCPUs have no threads of their own.
    pub(crate) fn sched_stats(&self, guest: usize) -> Vec<Option<SchedStat>> {
        match self {
            Self::Vmm(_) | Self::Simulated(_) => Vec::new(),
            Self::Host(guests) => guests[guest].sched_stats(),
        }
    }

    /// All vCPUs' books, guest by guest in order, once the threads have ended.
    pub(crate) fn finish(self) -> Vec<Finished> {
        let mut all = match self {
            Self::Vmm(runners) => runners.finish(),
            Self::Host(guests) => guests.into_iter().flat_map(HostThreads::finish).collect(),
            Self::Simulated(simulated) => simulated.finish(),
        };
        all.sort_by_key(|vcpu| (vcpu.guest, vcpu.id));
        all
    }
}
