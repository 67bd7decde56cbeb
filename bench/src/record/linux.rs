//! The record of a run of a Linux guest.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::figure::Figure;
use super::{Activities, Distribution, Fairness, LockCost, Record, Totals, Warning};
use crate::experiment::figure_name::LOCK_EVENT;
use crate::experiment::place::Place;
use crate::host::identity::Host;
use crate::host::noise::Noise;

/// Name of the record's schema.
pub(crate) const SCHEMA: &str = "haltkick.linux";
/// The figure of a workload inside that counts its sections.
pub(crate) const THROUGHPUT: &str = "throughput";
/// Version of the record's schema.
pub(crate) const SCHEMA_VERSION: u32 = 1;

/// A run of a Linux guest. The output of `haltkick run --kernel --format json`. Fields of other records whose content
/// a Linux guest does not tell are there, and null.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct LinuxRecord {
    /// "haltkick.linux".
    pub(crate) schema: String,
    /// 1.
    pub(crate) schema_version: u32,
    /// Unique among all runs.
    pub(crate) run_id: String,
    /// When the run began, RFC 3339.
    pub(crate) started: String,
    /// Place of the run in an experiment; null for a run by itself.
    #[serde(default)]
    pub(crate) place: Option<Place>,
    /// The request.
    pub(crate) config: Config,
    /// The host, in short.
    pub(crate) host: Host,
    /// Whether the system calls of the process and of threads that ran vCPUs were filtered; `why` says why not.
    pub(crate) sandbox: bool,
    /// The version of Landlock that kept the process from files that it did not need; null where none did.
    pub(crate) landlock_abi: Option<u32>,
    /// "power-off", "reset", "panic", "time-limit" or "failed".
    pub(crate) end: String,
    /// Whether the guest switched itself off.
    pub(crate) clean: bool,
    /// Why it failed; null if it did not.
    pub(crate) failure: Option<String>,
    /// How the run went.
    pub(crate) timing: Timing,
    /// The lock's uncontended cost: null.
    pub(crate) lock_cost: Option<LockCost>,
    /// Sections completed: null.
    pub(crate) totals: Option<Totals>,
    /// How evenly they fell on the vCPUs: null.
    pub(crate) fairness: Option<Fairness>,
    /// From asking for a lock to having it: null.
    pub(crate) wait_ns: Option<Distribution>,
    /// From having it to having released it: null.
    pub(crate) hold_ns: Option<Distribution>,
    /// Figures that the guest printed on its console, as `haltkick: name=value unit`, by name; with a workload inside those of its
    /// record instead.
    #[serde(default)]
    pub(crate) figures: BTreeMap<String, Figure>,
    /// The record of the workload that ran inside, as of `haltkick schema run`; `host.kernel` in it names the kernel. Null if
    /// there was none.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
    pub(crate) inside: Option<Box<Record>>,
    /// The kernel's counts of its locks, if the guest printed them as `haltkick: lock_event.NAME=value count`; null if
    /// not.
    pub(crate) lock_events: Option<BTreeMap<String, f64>>,
    /// Exits of all vCPUs that the VMM saw, by reason.
    pub(crate) vm_exits: BTreeMap<String, u64>,
    /// KVM's counts for all vCPUs, under its names.
    pub(crate) kvm_stats: Option<BTreeMap<String, u64>>,
    /// By what the vCPU was doing: null. `per_vcpu` counts how often.
    pub(crate) preemptions: Option<Activities>,
    /// Time of these preemptions: null.
    pub(crate) preempted_ns: Option<Activities>,
    /// Time that the others lost by it: null.
    pub(crate) lost_ns: Option<Activities>,
    /// Times that a vCPU was taken off on purpose; null if no injection was requested.
    pub(crate) injected: Option<u64>,
    /// Each vCPU, in order, from outside.
    pub(crate) per_vcpu: Vec<PerVcpu>,
    /// Other load on the pCPUs meanwhile.
    pub(crate) noise: Noise,
    /// False: finished, but read `warnings` before believing a figure.
    pub(crate) trusted: bool,
    /// Warnings about this run.
    pub(crate) warnings: Vec<Warning>,
    /// Why a field is null, by the field's path.
    pub(crate) why: BTreeMap<String, String>,
}

/// The request.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Config {
    /// The engine that ran the kernel: "kvm", "qemu-kvm" or "qemu-tcg"; empty in records older than the field, where it was "kvm".
    #[serde(default)]
    pub(crate) engine: String,
    /// The kernel's file.
    pub(crate) kernel: String,
    /// The initial RAM disk's file, or with a workload inside the program that it was made for; null: none.
    pub(crate) initrd: Option<String>,
    /// The kernel's command line, our own words first.
    pub(crate) command_line: String,
    /// Memory of the guest.
    pub(crate) memory_bytes: u64,
    /// Number of vCPUs.
    pub(crate) vcpus: u32,
    /// Host CPUs that they share.
    pub(crate) cpus: Vec<u32>,
    /// vCPUs per pCPU.
    pub(crate) ratio: f64,
    /// "vmm" or "host".
    pub(crate) sched: String,
    /// Length of a slice; null where the host decides.
    pub(crate) slice_ns: Option<u64>,
    /// Whether CPUID offers what Linux's paravirtual spin locks need.
    pub(crate) pv: bool,
    /// KVM's features that CPUID offered.
    pub(crate) pv_features: Vec<String>,
    /// vCPUs to take off on purpose, how often and for how long; null: none.
    pub(crate) deschedule: Option<String>,
    /// How long KVM polls before it lets a halted vCPU sleep; null: as the host is set up, or not at all under the VMM's scheduler.
    pub(crate) halt_poll_ns: Option<u64>,
    /// Whether spin loops may end in exits.
    pub(crate) pause_exits: bool,
    /// Text in a line of the console that says that user space is there.
    pub(crate) marker: String,
    /// How long the guest may take until it has powered off; null: as long as it likes.
    pub(crate) limit_ns: Option<u64>,
    /// Seed of everything random.
    pub(crate) seed: u64,
}

/// How the run went.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Timing {
    /// From the first instruction to the end.
    pub(crate) run_ns: u64,
    /// From the first instruction to the marker on the console; null if it was not seen.
    pub(crate) user_space_ns: Option<u64>,
    /// CPU time of the whole process meanwhile.
    pub(crate) cpu_ns: u64,
    /// TSC frequency.
    pub(crate) tsc_khz: u64,
}

/// One vCPU, whole run.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct PerVcpu {
    /// Time on a pCPU; under the host's scheduler, CPU time of its thread.
    pub(crate) run_ns: Option<u64>,
    /// Time runnable without a pCPU, or held back on purpose.
    pub(crate) descheduled_ns: Option<u64>,
    /// Time halted; null under the host's scheduler.
    pub(crate) halted_ns: Option<u64>,
    /// Times that it lost its pCPU while it could have gone on.
    pub(crate) descheduled: u64,
    /// Times that it was taken off on purpose; under the VMM's scheduler part of `descheduled`.
    pub(crate) injected: u64,
    /// Halts; null if they are not counted.
    pub(crate) halts: Option<u64>,
}

impl LinuxRecord {
    /// A figure by its name, or an event of the kernel's locks by its name with what all of them begin with.
    pub(crate) fn figure(&self, name: &str) -> Option<f64> {
        match name.strip_prefix(LOCK_EVENT) {
            Some(event) => self.lock_events.as_ref()?.get(event).copied(),
            None => self.figures.get(name).map(|figure| figure.value),
        }
    }

    /// All of those by these names, with their units.
    pub(crate) fn named(&self) -> BTreeMap<String, (f64, String)> {
        let figures = self.figures.iter().map(|(name, it)| (name.clone(), (it.value, it.unit.clone())));
        let events = self.lock_events.iter().flatten();
        let events =
            events.map(|(name, count)| (format!("{LOCK_EVENT}{name}"), (*count, "count".to_owned())));
        figures.chain(events).collect()
    }

    /// Something that speaks against the run.
    pub(crate) fn warn(&mut self, code: &str, message: String) {
        self.trusted = false;
        self.warnings.push(Warning { code: code.into(), message });
    }
}
