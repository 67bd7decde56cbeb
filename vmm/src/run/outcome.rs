//! The outcome of one guest, raw facts without judgement, and the findings of a run: of all its guests together, and how each of them
//! ended. `bench` makes records of them. Of a Linux guest nothing inside is known: its outcome is [`LinuxOutcome`].

use std::collections::BTreeMap;
use std::time::Duration;

use crate::explain::Explanation;
use crate::guest::ByActivity;
use crate::host::cgroup::KernelThrottled;
use crate::host::error::{Known, RunError};
use crate::host::memory::Residence;
use crate::host::pmu::CacheEvents;
use crate::image::sites::Calls;
use crate::machine::{PvBackend, Ring};
use crate::observe::TicksHistogram;
use crate::observe::profile::Profile;
use crate::observe::trace::Trace;
use crate::sched::Repeated;
use crate::sched::books::{ClosedByHeads, Graces, Timeline};
use crate::sched::hints::PreemptedSource;
use crate::sched::quota::Throttled;
use crate::sched::run_delay::RunDelay;
use crate::sched::switch_books::SwitchReports;

/// Is the `preempted` flag true? From the workload that checks it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HintCheck {
    /// Looks of vCPUs at the flags of others, inside the window.
    pub samples: u64,
    /// Looks at which the flag was set and yet the vCPU moved.
    pub moved_while_marked: u64,
    /// Looks at which the flag was clear and yet the vCPU did not move.
    pub still_while_unmarked: u64,
    /// Looks that were compared with the scheduler's books; only the VMM's own scheduler keeps any.
    pub compared: u64,
    /// Compared looks that the books contradict.
    pub contradicted: u64,
}

/// One vCPU's share of an [`Outcome`] or a [`LinuxOutcome`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VcpuOutcome {
    /// Sections completed inside the window; 0 in a Linux guest.
    pub acquisitions: u64,
    /// Time on a pCPU inside the window, of a Linux guest in the whole run; `None` where it is not measured.
    pub run_ns: Option<u64>,
    /// Time runnable without a pCPU, or held back on purpose, whole run; `None` where it is not measured.
    pub steal_ns: Option<u64>,
    /// Time that a vCPU of a Linux guest was halted, whole run; `None` under the host's scheduler, which does not tell it from time
    /// held back.
    pub halted_ns: Option<u64>,
    /// Times taken off a pCPU while running, whole run; under the host's scheduler, as the kernel counts them for the thread.
    pub preemptions: u64,
    /// Number of these that were on purpose, in a Linux guest; under the host's scheduler they come in addition.
    pub injected: Option<u64>,
    /// Times taken off a pCPU while running, as reported switch by switch; `None` where switches are not reported.
    pub switched_out_ready: Option<u64>,
    /// Sleeps in `pv_wait`, of a Linux guest all halts, whole run; `None` where they are not counted.
    pub waits: Option<u64>,
    /// Kicks received, whole run; `None` where they are not counted.
    pub kicks: Option<u64>,
    /// Timeline of the window's beginning; `None` where the VMM's scheduler did not decide.
    pub timeline: Option<Timeline>,
}

/// How fast the calibrated work of one vCPU really went, from pieces of it that were timed now and then in the run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkSpeed {
    /// The middle piece: time that it was to take over the time that it took. 1: as promised; below 1: slower.
    pub over_promised: f64,
    /// Pieces that were timed.
    pub pieces: u32,
}

/// Uncontended cost of a lock, in TSC ticks per 1024 pairs of lock and unlock: the best of several
/// short runs at boot. `None`: this lock cannot be called like that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PairTicks {
    /// Compiled into the caller.
    pub compiled_in: Option<u64>,
    /// Called through a table.
    pub through_table: Option<u64>,
    /// Called at sites that the VMM has rewritten; `None` too if it was not to.
    pub patched: Option<u64>,
}

/// The upper bound of a workload's throughput with any lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ideal {
    /// The throughput without a lock, but at most locks / hold.
    Serial,
    /// The throughput without a lock.
    LockFree,
    /// Unknown: without a lock the workload does something else, or disturbs itself.
    #[default]
    Unknown,
}

/// Measurement overhead without contention, in TSC ticks per 1024 uses, as measured at boot. `None`: the image
/// does not say, or it is off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// Reading the clock as it is.
    pub stamp: Option<u64>,
    /// Reading it between fences.
    pub ordered_stamp: Option<u64>,
    /// The exclusion checker's work in one section.
    pub oracle: Option<u64>,
    /// All that is around an empty section, the lock left out.
    pub section: Option<u64>,
    /// Counting a section's times.
    pub counting: Option<u64>,
}

/// The results of a guest that came to its end.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The ring that was used.
    pub ring: Ring,
    /// Why that ring: measured rates, or "asked for".
    pub ring_reason: String,
    /// How vCPUs slept and were woken.
    pub pv_backend: PvBackend,
    /// Why so: what was tried and worked, or "asked for".
    pub pv_backend_reason: String,
    /// TSC frequency.
    pub tsc_khz: u64,
    /// Iterations of the work loop per 2^20 ns: measured at boot, or as given.
    pub work_rate: u64,
    /// Memory that the guest's memory manager had; 0 in workloads without one.
    pub memory_bytes: u64,
    /// How the host backed all of the guest's memory at the end.
    pub residence: Known<Residence>,
    /// From the start of [`crate::run`] to the first section entered.
    pub start_up: Duration,
    /// Call sites that were rewritten.
    pub patched_sites: usize,
    /// The uncontended cost of the lock.
    pub pair_ticks: PairTicks,
    /// How the lock is called and what memory it takes; `None` when the image does not say.
    pub calls: Option<Calls>,
    /// Length of the window as it really was.
    pub window: Duration,
    /// How long the fixed amount of work took; `None` without one, or if it was not done in the window.
    pub completion: Option<Duration>,
    /// Time of all vCPUs on pCPUs spent in acquiring and releasing locks, inside the window; `None` where it is not known.
    pub lock_cpu: Option<Duration>,
    /// Sections whose update of the plain counter was lost; `None` for a lock-free run.
    pub lost_updates: Option<u64>,
    /// Measurement overhead.
    pub costs: Costs,
    /// The upper bound of the throughput with any lock.
    pub ideal: Ideal,
    /// Time from asking for the lock to having it; empty from workloads that do not report it.
    pub wait: TicksHistogram,
    /// The waits that had not ended when the window closed, in TSC ticks up to then; or why they are unknown.
    pub pending_waits: Known<Vec<u64>>,
    /// Time from having the lock to the end of the section; empty from workloads that do not report it.
    pub hold: TicksHistogram,
    /// Time from there to having released the lock; empty from workloads that do not report it.
    pub unlock: TicksHistogram,
    /// Further times that the workload reports, under the workload's names.
    pub times: Vec<(String, TicksHistogram)>,
    /// Sections that only read, where these are counted apart.
    pub reads: u64,
    /// Times that the TSC of a vCPU was seen to step back.
    pub tsc_steps_back: u64,
    /// How fast each vCPU's work really went; `None` for one of which too few pieces were timed.
    pub work: Vec<Option<WorkSpeed>>,
    /// Sections of each lock that vCPUs have entered since boot, window or not; empty without the exclusion checker.
    pub entered: Vec<u64>,
    /// Lock events of all vCPUs since boot, under the image's names, in the image's order.
    pub lock_events: Vec<(String, u64)>,
    /// Exits of all vCPUs, whole run, by reason.
    pub vm_exits: Vec<(&'static str, u64)>,
    /// KVM's counters, summed over all vCPUs, whole run, under KVM's names; or why there are none.
    pub kvm_stats: Known<Vec<(String, u64)>>,
    /// Times a running vCPU was taken off, or went to sleep, inside the window; `None` where this is unknown.
    pub preemptions: Option<ByActivity>,
    /// Time those vCPUs were off for, in nanoseconds.
    pub preempted_ns: Option<ByActivity>,
    /// Time that all other vCPUs waited for a lock because of them, in nanoseconds. See `loss` for what counts.
    pub lost_ns: Option<ByActivity>,
    /// Returns of vCPUs at which `lost_ns` was not looked for, since the looks had taken too long already.
    pub skipped_losses: u64,
    /// Heads that were taken off while they forbade stealing, or why they are unknown.
    pub closed: Known<ClosedByHeads>,
    /// Looks at the `preempted` flag; `None` where the workload does not take any.
    pub hint: Option<HintCheck>,
    /// Slices that were extended; `None` where that was not asked for.
    pub graces: Option<Graces>,
    /// Times that the VMM's quota kept vCPUs from running; `None` without one.
    pub throttled: Option<Throttled>,
    /// Throttling by the kernel's quota; `None` without one.
    pub throttled_by_kernel: Option<KernelThrottled>,
    /// Times that a vCPU was run because another one named it, whole run; `None` where the host's scheduler decides.
    pub handed: Option<u64>,
    /// Number of `preemptions` that were on purpose.
    pub injected: Option<ByActivity>,
    /// Reports of switches of the vCPUs' threads under the host's scheduler, or why there are none.
    pub switches: Known<SwitchReports>,
    /// Writer of the `preempted` flag.
    pub preempted_source: Known<PreemptedSource>,
    /// Report on a pinned thread that was found on another pCPU at its end.
    pub pinning_lost: Option<String>,
    /// Per vCPU, in order.
    pub vcpus: Vec<VcpuOutcome>,
}

impl Outcome {
    /// Sections completed inside the window, of all vCPUs. The guest counted them, and may have counted anything.
    #[must_use]
    pub fn acquisitions(&self) -> u64 {
        self.vcpus.iter().fold(0, |sum, vcpu| sum.saturating_add(vcpu.acquisitions))
    }
}

/// How the guest came to its end.
#[derive(Debug)]
pub enum LinuxEnd {
    /// It switched itself off.
    PowerOff,
    /// It asked for a reset.
    Reset,
    /// It said on its console that it panics. What it does then is its own choice, and may be nothing.
    Panic,
    /// It was still there when its time was over.
    TimeLimit,
    /// It died.
    Failed(RunError),
}

/// A kind of message with which a guest's kernel says that it is in trouble, and goes on.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Complaint {
    /// A CPU did not get on with anything else for long.
    Lockup,
    /// RCU waits for a CPU or a task.
    Stall,
    /// A task sleeps for long.
    HungTask,
    /// An exception in the kernel.
    Oops,
    /// Another fault of the kernel.
    Bug,
    /// A doubt of the kernel.
    Warning,
}

/// How often a kernel complained, by kind, and the first line of each.
pub type Complaints = BTreeMap<Complaint, (u64, String)>;

/// Observations of a Linux guest from outside.
#[derive(Debug)]
pub struct LinuxOutcome {
    /// How it ended.
    pub end: LinuxEnd,
    /// From the first instruction to the end.
    pub run: Duration,
    /// From the first instruction to the marker on the console, if that was seen.
    pub user_space: Option<Duration>,
    /// The kernel's command line.
    pub command_line: String,
    /// Why this host is no place for a Linux guest: ring 0 is interpreted here.
    pub obstacle: Option<String>,
    /// KVM's paravirtual features that CPUID offered, by their names in KVM.
    pub pv_features: Vec<&'static str>,
    /// Frequency of the time stamp counter.
    pub tsc_khz: u64,
    /// Exits of all vCPUs by reason.
    pub vm_exits: Vec<(&'static str, u64)>,
    /// KVM's counters, summed over all vCPUs, or why they are unknown.
    pub kvm_stats: Known<Vec<(String, u64)>>,
    /// Each vCPU, in order.
    pub vcpus: Vec<VcpuOutcome>,
    /// The kernel's complaints on its console.
    pub complaints: Complaints,
    /// Report on a pinned thread that did not stay on its pCPU.
    pub pinning_lost: Option<String>,
}

/// Why nothing else is known to have run on a simulated machine.
pub const NOTHING_ELSE_RUNS: &str = "nothing else runs on a simulated machine";

/// The findings of a run.
#[derive(Debug)]
pub struct Found {
    /// From the start of the run until all vCPUs had started.
    pub started: Known<Duration>,
    /// CPU time of the process from the start of the run to the opening of the window.
    pub cpu_before: Known<Duration>,
    /// CPU time of the process inside the window.
    pub cpu_time: Duration,
    /// How many times the length asked for the window took: more than once where too few sections were done in it.
    pub windows: u32,
    /// How long the run's threads, one per pCPU, were ready and had no pCPU because others used it, whole run.
    pub run_delay: Known<RunDelay>,
    /// Cache events that the host's PMU counted in the guest, inside the window, by name.
    pub pmu: Known<CacheEvents>,
    /// How much of a recorded schedule was repeated, if one was to be.
    pub schedule: Option<Repeated>,
    /// The profile of the vCPUs' time, if that was asked for.
    pub profile: Option<Profile>,
    /// The trace of events, if that was asked for.
    pub trace: Option<Trace>,
    /// How each guest ended, in order.
    pub guests: Vec<Ended>,
}

/// How a guest of a run ended.
#[derive(Debug)]
pub struct Ended {
    /// Its name.
    pub name: String,
    /// Its outcome; a failure of one guest leaves the others' outcomes.
    pub result: Result<AnyOutcome, RunError>,
    /// Which vCPU is at fault, when it failed by itself.
    pub explanation: Option<Explanation>,
    /// Text that it wrote to its console.
    pub console: String,
}

/// The outcome of a guest, by the system that it booted.
#[derive(Debug)]
pub enum AnyOutcome {
    /// Outcome of our own guest.
    Ours(Box<Outcome>),
    /// Outcome of a Linux kernel.
    Linux(Box<LinuxOutcome>),
}

impl Ended {
    /// The outcome of our own guest.
    ///
    /// # Errors
    /// Its failure.
    ///
    /// # Panics
    /// If it booted Linux.
    pub fn outcome(self) -> Result<Outcome, RunError> {
        match self.result? {
            AnyOutcome::Ours(outcome) => Ok(*outcome),
            AnyOutcome::Linux(_) => panic!("guest `{}` booted Linux", self.name),
        }
    }
}

impl Found {
    /// Outcomes of our own guests that came to their end, in order.
    pub fn outcomes(&self) -> impl Iterator<Item = &Outcome> {
        self.guests.iter().filter_map(|guest| match &guest.result {
            Ok(AnyOutcome::Ours(outcome)) => Some(&**outcome),
            Ok(AnyOutcome::Linux(_)) | Err(_) => None,
        })
    }

    /// The first guest that failed.
    #[must_use]
    pub fn failed(&self) -> Option<&Ended> {
        self.guests.iter().find(|guest| guest.result.is_err())
    }

    /// The run, if all its guests came to their end.
    ///
    /// # Errors
    /// The first failure of a guest, which is named where there are several.
    pub fn all(mut self) -> Result<Self, RunError> {
        let Some(index) = self.guests.iter().position(|guest| guest.result.is_err()) else { return Ok(self) };
        let several = self.guests.len() > 1;
        let Ended { name, result, .. } = self.guests.swap_remove(index);
        result.map(|_| self).map_err(|error| match several {
            true => RunError::Guest { name, source: Box::new(error) },
            false => error,
        })
    }

    /// The outcome of the first guest, which is our own, if all came to their end.
    ///
    /// # Errors
    /// As [`Self::all`].
    ///
    /// # Panics
    /// If it booted Linux.
    pub fn outcome(self) -> Result<Outcome, RunError> {
        self.all()?.guests.swap_remove(0).outcome()
    }
}
