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
pub(crate) mod switch_books;
mod task;
#[cfg(any(test, fuzzing))]
pub(crate) mod tests;
pub(crate) mod window;

use std::thread::Scope;
use std::time::Duration;

use crate::host::clock::process_cpu_time;
use crate::machine::vcpu::Vcpu;
use crate::observe::Whereabouts;
use crate::sched::account::Account;
use crate::sched::deschedule::Plan;
use crate::sched::guest_run::GuestRun;
use crate::sched::run_delay::SchedStat;

use host_threads::HostThreads;
use runners::Runners;

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
    pub(crate) vcpu: Vcpu,
    pub(crate) account: Account,
    pub(crate) whereabouts: Whereabouts,
}

/// A scheduler with the vCPUs of all guests in its hands. What only one of them can tell, or needs to be told, has a default.
pub(crate) trait Scheduler {
    fn start<'scope>(&'scope self, _scope: &'scope Scope<'scope, '_>, _cpus: &'scope [u32]) {}

    /// Lets this much time pass: by sleeping while threads run the vCPUs, or by simulating them. `stopped` is told how many vCPUs sleep,
    /// whenever a witness of a simulation has one stand still.
    fn pass_watched(&self, time: Duration, _stopped: &mut dyn FnMut(u32)) {
        std::thread::sleep(time);
    }

    fn pass(&self, time: Duration) {
        self.pass_watched(time, &mut |_| ());
    }

    /// CPU time that the guests' vCPUs, or all of this process, have had.
    fn cpu_time(&self) -> Duration {
        process_cpu_time()
    }

    /// Gets every thread out of its vCPU and to its end. [`GuestRun::stop`] comes first.
    fn interrupt(&self);

    /// Gets the vCPUs of `guest` out; those of the others go on. [`GuestRun::stop`] comes first. Under the VMM's scheduler the pCPU that
    /// runs one of them looks at the end of its slice.
    fn interrupt_guest(&self, _guest: usize) {}

    /// Whether a thread failed that all guests need.
    fn is_broken(&self) -> bool {
        false
    }

    /// How much of a recorded schedule was repeated; `None`: there was none.
    fn repeated(&self) -> Option<Repeated> {
        None
    }

    /// Whether every vCPU of `guest` that has not left sleeps, as far as the scheduler does not end it for that itself.
    fn all_asleep(&self, _guest: usize) -> bool {
        false
    }

    /// Work that the vCPUs of a simulated machine have done, and time in which its pCPUs were idle, and in the VMM; elsewhere nothing is
    /// counted.
    fn spent(&self) -> [Duration; 3] {
        [Duration::ZERO; 3]
    }

    /// Places of the vCPUs of all guests, in order.
    fn whereabouts(&self) -> Vec<Whereabouts>;

    /// Whether every vCPU that is ready, or descheduled on purpose, has run since `since_ns`, as far as the scheduler knows.
    fn everybody_ran_since(&self, _since_ns: u64) -> bool {
        true
    }

    /// The kernel's statistics of the thread of each vCPU of `guest`; empty where vCPUs have no threads of their own.
    fn sched_stats(&self, _guest: usize) -> Vec<Option<SchedStat>> {
        Vec::new()
    }

    /// All vCPUs' books, guest by guest in order, once the threads have ended.
    fn finish(self: Box<Self>) -> Vec<Finished>;
}

/// The scheduler that `rules` ask for on `pcpus` of this host, with the vCPUs of each of `guests` in its hands.
pub(crate) fn on_threads<'a>(
    rules: Rules,
    pcpus: &[u32],
    guests: &'a [GuestRun<'a>],
    vcpus: Vec<Vec<Vcpu>>,
    plan: Option<Plan>,
) -> Box<dyn Scheduler + 'a> {
    match rules.sched {
        Sched::Vmm => Box::new(Runners::new(rules, pcpus, guests, vcpus, plan)),
        Sched::Host => {
            let of_guest = |(guest, vcpus)| HostThreads::new(guest, vcpus, plan);
            Box::new(guests.iter().zip(vcpus).map(of_guest).collect::<Vec<_>>())
        }
    }
}
