//! Data for programs about a guest that failed.

use haltkick_vmm::{Explanation, OurGuest};
use serde::Serialize;
#[cfg(feature = "schema")]
use serde_json::Value;

use crate::settings::choices::SCHEDULERS;
use crate::text::exit::Failure;

/// A run that failed in the guest. The output of `haltkick run --format json` then.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct FailureRecord {
    /// "haltkick.failure".
    pub(crate) schema: &'static str,
    /// 1.
    pub(crate) schema_version: u32,
    /// The exit code: 5, the guest failed; 6, no progress.
    pub(crate) exit_code: u8,
    /// One line: what failed, and where.
    pub(crate) message: String,
    /// The request.
    pub(crate) config: Asked,
    /// Output of the guest to its console.
    pub(crate) console: String,
    /// Verdict, locks, and vCPUs as they were: see docs/explain.md.
    #[cfg_attr(feature = "schema", schemars(with = "Value"))]
    pub(crate) explanation: haltkick_vmm::Explanation,
}

/// The request of a run that failed.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Asked {
    /// Number of vCPUs.
    pub(crate) vcpus: u32,
    /// Host CPUs that they shared.
    pub(crate) cpus: Vec<u32>,
    /// "vmm" or "host".
    pub(crate) sched: &'static str,
    /// Name of the lock.
    pub(crate) lock: String,
    /// Whether its paravirtual form.
    pub(crate) pv: bool,
    /// Name of the workload.
    pub(crate) workload: String,
    /// Work inside a critical section.
    pub(crate) hold_ns: u64,
    /// Work between critical sections.
    pub(crate) think_ns: u64,
    /// Locks that the sections were spread over.
    pub(crate) locks: u32,
    /// Seed of everything random.
    pub(crate) seed: u64,
}

impl FailureRecord {
    pub(crate) fn new(
        asked: OurGuest<'_>,
        failure: &Failure,
        console: String,
        explanation: Explanation,
    ) -> Self {
        Self {
            schema: "haltkick.failure",
            schema_version: 1,
            exit_code: failure.exit as u8,
            message: failure.message.clone(),
            config: Asked {
                vcpus: asked.guest.vcpus,
                cpus: asked.run.cpus.clone(),
                sched: SCHEDULERS.of(asked.run.rules.sched),
                lock: asked.ours.lock.clone(),
                pv: asked.guest.pv,
                workload: asked.ours.workload.clone(),
                hold_ns: asked.ours.hold.as_nanos() as u64,
                think_ns: asked.ours.think.as_nanos() as u64,
                locks: asked.ours.lock_count,
                seed: asked.guest.seed,
            },
            console,
            explanation,
        }
    }
}
