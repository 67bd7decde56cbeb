//! The run record: what one run of one cell was asked, what it found, and what it cannot tell.
//!
//! The shape is public (`haltkick schema`): adding a field is a minor change, renaming one or changing its unit
//! raises [`SCHEMA_VERSION`]. Units are part of the keys. What this host cannot tell is `null`, with the reason
//! under the field's path in `why`; it is never 0.

pub(crate) mod config;
pub(crate) mod failure;
pub(crate) mod figure;
pub(crate) mod linux;
pub(crate) mod memory;
pub(crate) mod per_node;
pub(crate) mod run_id;
pub(crate) mod timeline;
pub(crate) mod trace;
pub(crate) mod why;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::experiment::place::Place;
use crate::host::identity::Host;
use crate::host::noise::Noise;
use crate::record::memory::GuestMemory;
use crate::record::per_node::PerNode;
use crate::record::timeline::Timeline;
use crate::record::trace::Traced;

pub(crate) use config::Config;

/// Name of the record's schema.
pub(crate) const SCHEMA: &str = "haltkick.run";
/// Version of the record's schema.
pub(crate) const SCHEMA_VERSION: u32 = 1;

/// One run of one cell.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Record {
    /// "haltkick.run".
    pub(crate) schema: String,
    /// 1.
    pub(crate) schema_version: u32,
    /// Unique among all runs; the records of guests that ran at once have the same.
    pub(crate) run_id: String,
    /// When the run began, RFC 3339.
    pub(crate) started: String,
    /// Place of the run in an experiment; null for a run by itself.
    pub(crate) place: Option<Place>,
    /// The request.
    pub(crate) config: Config,
    /// The host, in short; an experiment's manifest.json has all of it.
    pub(crate) host: Host,
    /// Whether the system calls of the process and of threads that ran vCPUs were filtered; `why` says why not. Null in records
    /// older than the filters.
    #[serde(default)]
    pub(crate) sandbox: Option<bool>,
    /// The version of Landlock that kept the process from files that it did not need; null where none did.
    #[serde(default)]
    pub(crate) landlock_abi: Option<u32>,
    /// How the host backed the guest's memory; null in records older than the field.
    #[serde(default)]
    pub(crate) memory: Option<GuestMemory>,
    /// How the run went.
    pub(crate) timing: Timing,
    /// The lock's uncontended cost.
    pub(crate) lock_cost: LockCost,
    /// All vCPUs together, inside the window.
    pub(crate) totals: Totals,
    /// How evenly the acquisitions fell on the vCPUs.
    pub(crate) fairness: Fairness,
    /// From asking for the lock to having it, inside the window.
    pub(crate) wait_ns: Distribution,
    /// From having the lock to the end of the section, inside the window. In records of format 1 before there was
    /// `unlock_ns`: to having released it.
    pub(crate) hold_ns: Distribution,
    /// From the end of the section to having released the lock, kicks included, inside the window; empty in records from before
    /// it was measured.
    #[serde(default)]
    pub(crate) unlock_ns: Distribution,
    /// Further times of the workload, in nanoseconds, under its own names (`haltkick list workloads`).
    #[serde(default)]
    pub(crate) times_ns: BTreeMap<String, Distribution>,
    /// Lock events of all vCPUs since boot, under the names that Linux uses: counts, and of `pv_latency_...` the sum in
    /// nanoseconds.
    pub(crate) lock_events: BTreeMap<String, u64>,
    /// Exits of all vCPUs, whole run, by reason.
    pub(crate) vm_exits: BTreeMap<String, u64>,
    /// KVM's counts for all vCPUs, whole run, under its names.
    pub(crate) kvm_stats: Option<BTreeMap<String, u64>>,
    /// With `--pmu on`: cache events that the host's PMU counted in the guest, inside the window; null where it cannot.
    #[serde(default)]
    pub(crate) pmu: Option<BTreeMap<String, Option<u64>>>,
    /// Times a running vCPU was taken off its pCPU inside the window, by what it was doing.
    pub(crate) preemptions: Option<Activities>,
    /// Time that those vCPUs were off for, by what they were doing.
    pub(crate) preempted_ns: Option<Activities>,
    /// Time that all other vCPUs spun or waited for a lock because of them. Exact for holders, a lower bound for heads
    /// and waiters. Under the host's scheduler, without reports of its switches, only for vCPUs that were taken off on
    /// purpose.
    #[serde(default)]
    pub(crate) lost_ns: Option<Activities>,
    /// Returns of vCPUs at which the VMM did not look for lost time, since its looks had taken 1 % of the vCPU's time; if there are
    /// any, `lost_ns` is a lower bound.
    #[serde(default)]
    pub(crate) skipped_losses: u64,
    /// Heads of a paravirtual qspinlock that were taken off while their pending bit forbade stealing, inside the window; null for
    /// other locks, under the host's scheduler, and in records older than the field.
    #[serde(default)]
    pub(crate) closed_by_heads: Option<ClosedByHeads>,
    /// Whether the `preempted` flag told the truth; null where the workload does not look (`hint-check` does).
    #[serde(default)]
    pub(crate) hint: Option<HintErrors>,
    /// Slices that were extended for a vCPU that said it held a lock; null where that was not asked for.
    #[serde(default)]
    pub(crate) grace: Option<GraceCounts>,
    /// Times that a quota kept vCPUs from running, inside the window; null where the guest had none, and in older records.
    #[serde(default)]
    pub(crate) throttled: Option<ThrottledCounts>,
    /// Times that a vCPU was run because another one named it, in a yield or a kick, whole run; null where the host's
    /// scheduler decides.
    #[serde(default)]
    pub(crate) handed_over: Option<u64>,
    /// Under the host's scheduler: reports of switches of the vCPUs' threads, from which `preemptions`, `preempted_ns` and
    /// `lost_ns` are; null where there are none.
    #[serde(default)]
    pub(crate) switches: Option<SwitchCounts>,
    /// Times that a vCPU was taken off on purpose; null if no injection was requested.
    #[serde(default)]
    pub(crate) injected: Option<Activities>,
    /// How much of a recorded schedule was repeated; null if none was to be.
    #[serde(default)]
    pub(crate) schedule: Option<ScheduleKept>,
    /// Each vCPU, in order.
    pub(crate) per_vcpu: Vec<PerVcpu>,
    /// vCPUs by the NUMA nodes that they began on; null where all pCPUs are on one,
    /// where the scheduler does not say, and in older records.
    #[serde(default)]
    pub(crate) per_node: Option<Vec<PerNode>>,
    /// Place of each vCPU in the beginning of the window; of an experiment in the first block only, and null if
    /// unknown.
    #[serde(default)]
    pub(crate) timeline: Option<Timeline>,
    /// With `--profile`: samples of instruction pointers, by function and by what the vCPU was doing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "serde_json::Value"))]
    pub(crate) profile: Option<serde_json::Value>,
    /// With `--trace`: what the file holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) trace: Option<Traced>,
    /// Other load on the pCPUs meanwhile.
    pub(crate) noise: Noise,
    /// False: finished, but read `warnings` before believing a figure.
    pub(crate) trusted: bool,
    /// Warnings about this run.
    pub(crate) warnings: Vec<Warning>,
    /// Why a field is null, by the field's path.
    pub(crate) why: BTreeMap<String, String>,
}

/// A recorded schedule that was repeated.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct ScheduleKept {
    /// Times that a vCPU was to be off its pCPU, inside the window.
    pub(crate) absences: u64,
    /// How long vCPUs were to be off, all together.
    pub(crate) absent_ns: u64,
    /// Share of that time in which they were off.
    pub(crate) honoured: f64,
}

/// Times that a quota kept vCPUs from running, inside the window.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct ThrottledCounts {
    /// How often a vCPU was kept until the next period; null under `sched` host, where the kernel keeps the quota.
    pub(crate) times: Option<u64>,
    /// How often it held a lock; null under `sched` host.
    pub(crate) holders: Option<u64>,
    /// How long vCPUs were kept, all together; null under `sched` host.
    pub(crate) total_ns: Option<u64>,
    /// Periods of the kernel's quota that ended; null under `sched` vmm, and in older records.
    #[serde(default)]
    pub(crate) periods: Option<u64>,
    /// Periods in which the guest used up the kernel's quota; null under `sched` vmm, and in older records.
    #[serde(default)]
    pub(crate) throttled_periods: Option<u64>,
    /// Time for which the kernel's quota kept pCPUs from the guest, summed over pCPUs, counted when it ends; null under
    /// `sched` vmm, and in older records.
    #[serde(default)]
    pub(crate) pcpu_ns: Option<u64>,
}

/// How the run went.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Timing {
    /// From the start of the run to the first section entered.
    pub(crate) start_up_ns: u64,
    /// From the start of the run until all vCPUs of all its guests had started; null in records older than the field.
    #[serde(default)]
    pub(crate) all_started_ns: Option<u64>,
    /// CPU time of the process from the start of the run to the opening of the window; null in records older than the field.
    #[serde(default)]
    pub(crate) cpu_before_ns: Option<u64>,
    /// Length of the window as it was.
    pub(crate) window_ns: u64,
    /// How long the fixed amount of work took; null without one, or if it was not done in the window.
    pub(crate) completion_ns: Option<u64>,
    /// TSC frequency.
    pub(crate) tsc_khz: u64,
    /// Iterations of the work loop per 2^20 ns, as calibrated.
    pub(crate) work_rate: u64,
    /// How fast the work really went; null where too little of it was timed, and in records older than the field.
    #[serde(default)]
    pub(crate) work_speed: Option<WorkSpeed>,
    /// Times that the TSC of a vCPU was seen to step back between two readings; such a time counts as none.
    #[serde(default)]
    pub(crate) tsc_steps_back: u64,
    /// Writer of the `preempted` flag: "vmm", "kvm" or "bpf"; null if it is not written.
    pub(crate) preempted_flag: Option<String>,
}

/// How fast the calibrated work really went: each vCPU times one piece of it in 61. As shares of the promised speed: 1 means
/// that a section of 1 us took 1 us of its vCPU's time on a pCPU.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct WorkSpeed {
    /// Median over the vCPUs of the median of their last 30 pieces.
    pub(crate) over_promised: f64,
    /// The least of the vCPUs' medians.
    pub(crate) slowest_vcpu: f64,
    /// The largest.
    pub(crate) fastest_vcpu: f64,
    /// Pieces that were timed.
    pub(crate) pieces: u64,
}

/// Cost of the uncontended lock, and the memory that it takes. Cycles of the TSC per pair of lock and unlock with a
/// rest after it: the best of several short runs at boot, less what the rests take alone.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct LockCost {
    /// At call sites that the VMM has rewritten; null with patch off, and for locks without call sites.
    pub(crate) patched_tsc_cycles: Option<f64>,
    /// Called through a table.
    pub(crate) through_table_tsc_cycles: Option<f64>,
    /// Compiled into the caller.
    pub(crate) compiled_in_tsc_cycles: Option<f64>,
    /// Bytes of one lock.
    pub(crate) lock_bytes: Option<u32>,
    /// Bytes that each vCPU needs for all locks of this kind.
    pub(crate) cpu_bytes: Option<u32>,
    /// Call sites that were rewritten.
    pub(crate) patched_sites: u64,
    /// Measurement overhead; null in records from before it was measured.
    #[serde(default)]
    pub(crate) instrument: Option<InstrumentCost>,
}

/// Measurement overhead without other vCPUs, in cycles of the TSC, measured like the pairs of lock and unlock.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct InstrumentCost {
    /// Reading the clock as it is.
    pub(crate) stamp_tsc_cycles: Option<f64>,
    /// Reading the clock between fences.
    pub(crate) ordered_stamp_tsc_cycles: Option<f64>,
    /// Cost of the exclusion checker in a section; null where it is off.
    pub(crate) oracle_tsc_cycles: Option<f64>,
    /// All that is around an empty section, its four stamps and the oracle included, the lock left out.
    pub(crate) section_tsc_cycles: Option<f64>,
    /// Counting a section's times, after it.
    pub(crate) counting_tsc_cycles: Option<f64>,
}

/// All vCPUs together, inside the window.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Totals {
    /// Sections completed.
    pub(crate) acquisitions: u64,
    /// Number of these that only read, in workloads that count them apart.
    #[serde(default)]
    pub(crate) reads: u64,
    /// Sections completed per second of window.
    pub(crate) acquisitions_per_second: f64,
    /// Sections per second of the same cell with no lock at all.
    #[serde(default)]
    pub(crate) lock_free_per_second: Option<f64>,
    /// The cell with no lock at all, for sections of one length at most locks / hold: no cost of locking, and no vCPU
    /// preempted while others wait. Null where the workload has no such ideal.
    pub(crate) ideal_per_second: Option<f64>,
    /// `acquisitions_per_second` / `ideal_per_second`.
    pub(crate) efficiency: Option<f64>,
    /// CPU time of the whole process.
    pub(crate) cpu_ns: u64,
    /// Time of all vCPUs on pCPUs; null if it is not measured.
    pub(crate) run_ns: Option<u64>,
    /// The part of it that went into acquiring and releasing locks.
    pub(crate) lock_cpu_ns: Option<u64>,
    /// `lock_cpu_ns` / `run_ns`.
    pub(crate) lock_cpu_share: Option<f64>,
    /// Updates of the plain counter under the lock that were lost; null without a lock, and with the oracle off.
    pub(crate) lost_updates: Option<u64>,
}

/// How evenly the acquisitions fell on the vCPUs.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Fairness {
    /// Jain's index: 1 when all vCPUs did the same, 1/n when one did all; null when too little was done to tell.
    pub(crate) jain: Option<f64>,
    /// vCPUs that completed no section inside the window; null in records older than the field.
    #[serde(default)]
    pub(crate) starved_vcpus: Option<u32>,
    /// Fewest acquisitions of a vCPU.
    pub(crate) min_per_vcpu: u64,
    /// Most acquisitions of a vCPU.
    pub(crate) max_per_vcpu: u64,
}

/// A distribution of times. Quantiles count each value once, so that they are made by the vCPUs that get many sections;
/// `half_of_time` and `longest` tell what the others bear.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Distribution {
    /// Values that came to their end inside the window.
    pub(crate) count: u64,
    /// Arithmetic mean of those.
    pub(crate) mean: Option<f64>,
    /// Median of those and of the pending ones; so the other quantiles. Null with fewer values than can tell.
    pub(crate) p50: Option<f64>,
    /// 90th percentile.
    pub(crate) p90: Option<f64>,
    /// 99th percentile.
    pub(crate) p99: Option<f64>,
    /// 99.9th percentile.
    pub(crate) p999: Option<f64>,
    /// Largest of those that came to their end.
    pub(crate) max: Option<f64>,
    /// Values that had not come to their end when the window closed; null if unknown.
    #[serde(default)]
    pub(crate) pending: Option<u64>,
    /// Largest, the pending ones included.
    #[serde(default)]
    pub(crate) longest: Option<f64>,
    /// Half of the sum of all values, the pending ones included, is made of values at least as large as this.
    #[serde(default)]
    pub(crate) half_of_time: Option<f64>,
    /// Names of those figures above that are lower bounds, since pending values decide them.
    #[serde(default)]
    pub(crate) at_least: Vec<String>,
    /// Pairs of a bucket's lower bound and the number of values in it, empty buckets left out.
    pub(crate) buckets: Vec<(f64, u64)>,
}

/// One value per thing that a vCPU can be doing.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Activities {
    /// Held a lock.
    pub(crate) holder: u64,
    /// First in a lock's queue.
    pub(crate) head: u64,
    /// Waiting elsewhere.
    pub(crate) waiter: u64,
    /// Asleep in `pv_wait`: it took itself off.
    #[serde(default)]
    pub(crate) halted: u64,
    /// Any other activity.
    pub(crate) other: u64,
}

/// Heads that were taken off while they forbade stealing.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct ClosedByHeads {
    /// How often.
    pub(crate) absences: u64,
    /// How long they were off.
    pub(crate) off_ns: u64,
    /// How long the lock was free meanwhile, and no vCPU could take it; absences in which it stayed held left out.
    pub(crate) free_ns: Distribution,
    /// Time that the other vCPUs waited for the lock while it was free, spinning, asleep or without a pCPU.
    pub(crate) lost_ns: u64,
}

/// Looks of vCPUs at the `preempted` flags of others, inside the window.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct HintErrors {
    /// Looks.
    pub(crate) samples: u64,
    /// Looks at which the flag was set and yet the vCPU moved.
    pub(crate) moved_while_marked: u64,
    /// Looks at which the flag was clear and yet the vCPU did not move: also where the host took its pCPU away.
    pub(crate) still_while_unmarked: u64,
    /// Looks that were compared with the scheduler's books; 0 where the host's scheduler decides, who shows none.
    pub(crate) compared: u64,
    /// Looks that the books contradict.
    pub(crate) contradicted: u64,
    /// Share of wrong looks: where there are books, those that they contradict or that moved while marked; else those of both
    /// kinds that the vCPUs saw for themselves.
    pub(crate) error_rate: f64,
}

/// Reports of a BPF program about the host's scheduler, whole run.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct SwitchCounts {
    /// Reports that were read.
    pub(crate) read: u64,
    /// Reports that got lost because they came too fast; their content is not counted.
    pub(crate) dropped: u64,
    /// Times that a vCPU's thread lost its CPU and could have gone on; the kernel's own count of them is the sum of
    /// `preemptions` in `per_vcpu`.
    pub(crate) switched_out_ready: u64,
}

/// Slices that were extended, inside the window.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct GraceCounts {
    /// How often.
    pub(crate) granted: u64,
    /// Extensions at the end of which the vCPU was taken off all the same.
    pub(crate) expired: u64,
    /// How long the vCPUs ran beyond the end of their slices; charged to the next ones.
    pub(crate) overrun_ns: u64,
}

/// One vCPU.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct PerVcpu {
    /// Sections completed inside the window.
    pub(crate) acquisitions: u64,
    /// Time on a pCPU inside the window; null if it is not measured.
    pub(crate) run_ns: Option<u64>,
    /// Time runnable without a pCPU, whole run; null if it is not measured.
    pub(crate) steal_ns: Option<u64>,
    /// Times taken off a pCPU while running, whole run; under the host's scheduler by the kernel's own count.
    pub(crate) preemptions: u64,
    /// Sleeps in `pv_wait`, whole run; null if they are not counted.
    pub(crate) waits: Option<u64>,
    /// Kicks received, whole run; null if they are not counted.
    pub(crate) kicks: Option<u64>,
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

impl Record {
    /// Work done per pCPU without a lock, over what the pCPU can do in that time: at most 1, but for the error of the
    /// calibration. Where an operation is known to be a section and a pause.
    pub(crate) fn lock_free_level(&self) -> Option<f64> {
        let is_section = matches!(self.config.workload.as_str(), "critical-section" | "mixed");
        let work_ns = Some(self.config.section_ns()).filter(|ns| *ns > 0 && is_section)?;
        let pcpus = self.config.cpus.len().min(self.config.vcpus as usize) as f64;
        Some(self.totals.lock_free_per_second? * work_ns as f64 / 1e9 / pcpus)
    }

    /// Pairs of what the run needed and did not get become warnings.
    pub(crate) fn warn(&mut self, code: &str, message: String) {
        self.trusted = false;
        self.warnings.push(Warning { code: code.into(), message });
    }
}
