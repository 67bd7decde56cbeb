//! The run record: what one run of one cell was asked, what it found, and what it cannot tell.
//!
//! The shape is public (`haltkick schema run`): adding a figure is a minor change, renaming one or changing its unit raises
//! [`SCHEMA_VERSION`]. Units are part of the names. What a run cannot tell is `null`, with the reason under its name in `why`; it
//! is never 0.

pub(crate) mod failure;
pub(crate) mod figures;
pub(crate) mod names;
mod numbers;
pub(crate) mod place;
pub(crate) mod run_id;
pub(crate) mod settings;
pub(crate) mod timeline;
pub(crate) mod trace;
pub(crate) mod why;

use std::collections::BTreeMap;

use haltkick_vmm::{LinuxVcpu, VcpuOutcome};
use serde::{Deserialize, Serialize};

use crate::host::identity::Host;
use crate::host::noise::Noise;
use crate::record::figures::{Figure, LOCK_EVENT, Unit};
use crate::record::place::Place;
use crate::record::settings::Settings;
use crate::record::timeline::Timeline;
use crate::record::trace::Traced;

pub(crate) use numbers::{Counts, Figures};

/// Name of the record's schema.
pub(crate) const SCHEMA: &str = "haltkick.run";
/// Version of the record's schema.
pub(crate) const SCHEMA_VERSION: u32 = 2;

/// One run of one guest: of our own, or of Linux.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Record {
    /// "haltkick.run".
    pub(crate) schema: String,
    /// 2.
    pub(crate) schema_version: u32,
    /// Unique among all runs; the records of guests that ran at once have the same.
    pub(crate) run_id: String,
    /// When the run began, RFC 3339.
    pub(crate) started: String,
    /// Place of the run in an experiment; null for a run by itself.
    pub(crate) place: Option<Place>,
    /// The request, and what was left for the run to decide.
    pub(crate) settings: Settings,
    /// Files of the simulated machine and of the host whose scheduler is modelled, by the SHA-256 of their text. An experiment's
    /// runs.jsonl has none: they stand once, in its manifest.json.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) files: BTreeMap<String, String>,
    /// The host, in short; an experiment's manifest.json has all of it.
    pub(crate) host: Host,
    /// Whether the system calls of the process and of threads that ran vCPUs were filtered; `why` says why not.
    pub(crate) sandbox: bool,
    /// The version of Landlock that kept the process from files that it did not need; null where none did.
    pub(crate) landlock_abi: Option<u32>,
    /// End of the guest: "finished"; of a Linux guest "power-off", "reset", "panic", "time-limit" or "failed".
    pub(crate) end: String,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) failure: Option<String>,
    /// All figures by name: `haltkick list figures` says what each is. A Linux guest has what it printed on its console as
    /// `haltkick: NAME=VALUE UNIT`, or the figures of the workload that ran inside.
    pub(crate) figures: Figures,
    /// Units of figures that a guest printed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) units: BTreeMap<String, String>,
    /// Names of the figures that are lower bounds, since waits that had not ended decide them.
    pub(crate) at_least: Vec<String>,
    /// Distributions of times by name, "wait" for that from asking for the lock to having it: pairs of a bucket's lower bound in
    /// nanoseconds and the number of values in it.
    pub(crate) distributions: BTreeMap<String, Vec<(f64, u64)>>,
    /// Lock events of all vCPUs since boot, under the names that Linux uses: counts, and of `pv_latency_...` the sum in
    /// nanoseconds. Of a Linux guest those that it printed as `haltkick: lock_event.NAME=VALUE count`.
    pub(crate) lock_events: Counts,
    /// Exits of all vCPUs that the VMM saw, whole run, by reason.
    pub(crate) vm_exits: BTreeMap<String, u64>,
    /// KVM's counts for all vCPUs, whole run, under its names.
    pub(crate) kvm_stats: Option<BTreeMap<String, u64>>,
    /// Each vCPU, in order.
    pub(crate) per_vcpu: Vec<PerVcpu>,
    /// Place of each vCPU in the beginning of the window; of an experiment in the first block only, and null if
    /// unknown.
    pub(crate) timeline: Option<Timeline>,
    /// With `--profile`: samples of instruction pointers, by function and by what the vCPU was doing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "serde_json::Value"))]
    pub(crate) profile: Option<serde_json::Value>,
    /// With `--trace`: what the file holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) trace: Option<Traced>,
    /// The record of the workload that ran inside a Linux guest; `host.kernel` in it names the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "serde_json::Value"))]
    pub(crate) inside: Option<Box<Record>>,
    /// Other load on the pCPUs meanwhile.
    pub(crate) noise: Noise,
    /// False: finished, but read `warnings` before believing a figure.
    pub(crate) trusted: bool,
    /// Warnings about this run.
    pub(crate) warnings: Vec<Warning>,
    /// Why something is null, by its name; of a family of figures by that of the family.
    pub(crate) why: BTreeMap<String, String>,
}

/// Something that speaks against a run.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Warning {
    /// Stable name.
    pub(crate) code: String,
    /// The problem, with figures, and what to do.
    pub(crate) message: String,
}

/// One vCPU. Null: it is not measured with this scheduler and back end on this host, or not of such a guest.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct PerVcpu {
    /// Sections completed inside the window.
    pub(crate) acquisitions: Option<u64>,
    /// Time on a pCPU: inside the window, of a Linux guest in the whole run.
    pub(crate) run_ns: Option<u64>,
    /// Time runnable without a pCPU or held back on purpose, whole run.
    pub(crate) steal_ns: Option<u64>,
    /// Time halted, whole run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) halted_ns: Option<u64>,
    /// Times taken off a pCPU while it could have gone on, whole run; under the host's scheduler by the kernel's own count.
    pub(crate) preemptions: u64,
    /// Number of these that were on purpose; under the host's scheduler they come in addition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) injected: Option<u64>,
    /// Sleeps in `pv_wait`, of a Linux guest all halts, whole run.
    pub(crate) waits: Option<u64>,
    /// Kicks received, whole run.
    pub(crate) kicks: Option<u64>,
}

impl From<&VcpuOutcome> for PerVcpu {
    fn from(vcpu: &VcpuOutcome) -> Self {
        Self {
            acquisitions: Some(vcpu.acquisitions),
            run_ns: vcpu.run_ns,
            steal_ns: vcpu.steal_ns,
            preemptions: vcpu.preemptions,
            waits: vcpu.waits,
            kicks: vcpu.kicks,
            ..Self::default()
        }
    }
}

impl From<&LinuxVcpu> for PerVcpu {
    fn from(vcpu: &LinuxVcpu) -> Self {
        Self {
            run_ns: vcpu.run_ns,
            steal_ns: vcpu.descheduled_ns,
            halted_ns: vcpu.halted_ns,
            preemptions: vcpu.descheduled,
            injected: Some(vcpu.injected),
            waits: vcpu.halts,
            ..Self::default()
        }
    }
}

impl Record {
    /// A figure by its name, or an event of the locks by its name with [`LOCK_EVENT`] before it.
    pub(crate) fn figure(&self, name: &str) -> Option<f64> {
        match name.strip_prefix(LOCK_EVENT) {
            Some(event) => self.lock_events.get(event),
            None => self.figures.get(name),
        }
    }

    /// A figure; 0 where there is none.
    pub(crate) fn amount(&self, name: &str) -> f64 {
        self.figure(name).unwrap_or_default()
    }

    /// Why the figure or field called `name` is null.
    pub(crate) fn why(&self, name: &str) -> Option<&str> {
        let family = || self.why.get(Figure::find(name)?.name);
        self.why.get(name).or_else(family).map(String::as_str)
    }

    /// The unit of a figure.
    pub(crate) fn unit(&self, name: &str) -> &str {
        let of_row = || Figure::find(name).map_or(Unit::Count.word(), |row| row.unit.word());
        self.units.get(name).map_or_else(of_row, String::as_str)
    }

    /// The file of the simulated machine.
    pub(crate) fn machine_text(&self) -> Option<&str> {
        self.files.get(self.settings.text("machine_sha256")?).map(String::as_str)
    }

    /// Whether nothing of it is known but what the guest printed.
    pub(crate) fn is_linux(&self) -> bool {
        self.settings.is_linux()
    }

    /// Work done per pCPU without a lock, over what the pCPU can do in that time: at most 1, but for the error of the
    /// calibration. Where an operation is known to be a section and a pause.
    pub(crate) fn lock_free_level(&self) -> Option<f64> {
        let is_section = matches!(self.settings.text("workload")?, "critical-section" | "mixed");
        let work_ns = Some(self.settings.section_ns()).filter(|ns| *ns > 0 && is_section)?;
        let pcpus = self.settings.pcpus().min(self.settings.vcpus() as usize) as f64;
        Some(self.figure(figures::LOCK_FREE)? * work_ns as f64 / 1e9 / pcpus)
    }

    /// Something that speaks against the run.
    pub(crate) fn warn(&mut self, code: &str, message: String) {
        self.trusted = false;
        self.warnings.push(Warning { code: code.into(), message });
    }
}
