//! The outcome of a Linux guest, of which nothing inside is known.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::host::error::RunError;
use crate::host::known::Known;

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

/// One vCPU, seen from outside, whole run.
#[derive(Clone, Debug)]
pub struct LinuxVcpu {
    /// Time on a pCPU; `None` where the kernel does not say.
    pub run_ns: Option<u64>,
    /// Time runnable without a pCPU, or held back on purpose; `None` where the kernel does not say.
    pub descheduled_ns: Option<u64>,
    /// Time halted; `None` under the host's scheduler, which does not tell it from time held back.
    pub halted_ns: Option<u64>,
    /// Times that it lost its pCPU while it could have gone on.
    pub descheduled: u64,
    /// Number of these losses that were on purpose; under the host's scheduler they come in addition to `descheduled`.
    pub injected: u64,
    /// Halts; `None` where neither the scheduler nor KVM counted them.
    pub halts: Option<u64>,
}

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
    pub vcpus: Vec<LinuxVcpu>,
    /// The kernel's complaints on its console.
    pub complaints: Complaints,
    /// Report on a pinned thread that did not stay on its pCPU.
    pub pinning_lost: Option<String>,
}
