//! The run record: what one run of one cell was asked, what it found, and what it cannot tell.
//!
//! The shape is public (`haltkick schema`): adding a field is a minor change, renaming one or changing its unit
//! raises [`SCHEMA_VERSION`]. Units are part of the keys. What this host cannot tell is `null`, with the reason
//! under the field's path in `why`; it is never 0.

use std::collections::BTreeMap;
use std::time::SystemTime;

use haltkick_vmm::{
    Accelerator, ByActivity, Engine, Graces, HintCheck, Outcome, PreemptedSource, Ring, RunConfig, Sched,
    Share, TicksHistogram, VcpuOutcome,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::deschedule::Policy;
use crate::experiment::{self, slug};
use crate::host::Host;
use crate::run;
use crate::timestamp;
use crate::trace::Traced;

/// Name of the record's schema.
pub(crate) const SCHEMA: &str = "haltkick.run";
/// Version of the record's schema.
pub(crate) const SCHEMA_VERSION: u32 = 1;

/// One run of one cell.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
pub(crate) struct Record {
    /// "haltkick.run".
    pub(crate) schema: String,
    /// 1.
    pub(crate) schema_version: u32,
    /// Unique among all runs; the records of guests that ran at once have the same.
    pub(crate) run_id: String,
    /// When the run began, RFC 3339.
    pub(crate) started: String,
    /// Where the run belongs in an experiment; null for a run by itself.
    pub(crate) place: Option<Place>,
    /// What was asked.
    pub(crate) config: Config,
    /// Where it ran, in short; an experiment's manifest.json has all of it.
    pub(crate) host: Host,
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
    /// From having the lock to having released it, inside the window.
    pub(crate) hold_ns: Distribution,
    /// Lock events of all vCPUs since boot, under the names that Linux uses.
    pub(crate) lock_events: BTreeMap<String, u64>,
    /// Exits of all vCPUs, whole run, by reason.
    pub(crate) vm_exits: BTreeMap<String, u64>,
    /// What KVM counted for all vCPUs, whole run, under its names.
    pub(crate) kvm_stats: Option<BTreeMap<String, u64>>,
    /// With `--pmu on`: cache events that the host's PMU counted in the guest, inside the window; null where it cannot.
    #[serde(default)]
    pub(crate) pmu: Option<BTreeMap<String, Option<u64>>>,
    /// Times a running vCPU was taken off its pCPU inside the window, by what it was doing.
    pub(crate) preemptions: Option<Activities>,
    /// Time that those vCPUs were off for, by what they were doing.
    pub(crate) preempted_ns: Option<Activities>,
    /// Time that all other vCPUs spun or waited for a lock because of them. Exact for holders, a lower bound for heads and
    /// waiters; under the host's scheduler for those only that were taken off on purpose.
    #[serde(default)]
    pub(crate) lost_ns: Option<Activities>,
    /// Whether the `preempted` flag told the truth; null where the workload does not look (`hint-check` does).
    #[serde(default)]
    pub(crate) hint: Option<HintErrors>,
    /// Slices that were extended for a vCPU that said it held a lock; null where that was not asked for.
    #[serde(default)]
    pub(crate) grace: Option<GraceCounts>,
    /// Times that a vCPU was run because another one named it, in a yield or a kick, whole run; null where the host's
    /// scheduler decides.
    #[serde(default)]
    pub(crate) handed_over: Option<u64>,
    /// Those that were taken off on purpose; null where nobody was to be.
    #[serde(default)]
    pub(crate) injected: Option<Activities>,
    /// Each vCPU, in order.
    pub(crate) per_vcpu: Vec<PerVcpu>,
    /// With `--profile`: samples of instruction pointers, by function and by what the vCPU was doing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "serde_json::Value")]
    pub(crate) profile: Option<serde_json::Value>,
    /// With `--trace`: what the file holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) trace: Option<Traced>,
    /// What else ran on the pCPUs meanwhile.
    pub(crate) noise: Noise,
    /// False: finished, but read `warnings` before believing a figure.
    pub(crate) trusted: bool,
    /// What speaks against this run.
    pub(crate) warnings: Vec<Warning>,
    /// Why a field is null, by the field's path.
    pub(crate) why: BTreeMap<String, String>,
}

/// Where a run belongs in an experiment.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
pub(crate) struct Place {
    /// Name of the experiment.
    pub(crate) experiment: String,
    /// Stable name of the cell; the same in every block.
    pub(crate) cell_id: String,
    /// The arm, "lock-free" for the ideal.
    pub(crate) arm: String,
    /// What the run is for.
    pub(crate) role: Role,
    /// The settings that the experiment varies, as text.
    pub(crate) setting: BTreeMap<String, String>,
    /// Pass over all cells, from 0.
    pub(crate) block: u32,
    /// Position in the experiment's order, from 0.
    pub(crate) order_index: u64,
}

/// What a run is for.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Role {
    /// A thing to compare.
    Arm,
    /// The same without a lock: the ideal, and the calibration that brackets the arms.
    Ideal,
    /// The second half of the A/A pair.
    Control,
    /// A guest that ran beside the arm's.
    Beside,
}

impl Place {
    /// Of a guest that runs beside the one that this is for.
    pub(crate) fn beside(&self, guest: &str) -> Self {
        Self {
            cell_id: format!("{}_{}", self.cell_id, slug(guest)),
            arm: experiment::beside(&self.arm, guest),
            role: if self.role == Role::Arm { Role::Beside } else { self.role },
            ..self.clone()
        }
    }
}

/// What was asked.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
pub(crate) struct Config {
    /// What ran the guest: "kvm", "threads", "qemu-kvm" or "qemu-tcg".
    pub(crate) engine: String,
    /// Name of the guest among those of the run.
    #[serde(default)]
    pub(crate) guest: String,
    /// Names of the other guests that ran at the same time.
    #[serde(default)]
    pub(crate) beside: Vec<String>,
    /// What had equal shares of the pCPUs: "vcpu" or "guest".
    #[serde(default)]
    pub(crate) share: String,
    /// Number of vCPUs.
    pub(crate) vcpus: u32,
    /// Host CPUs that they share.
    pub(crate) cpus: Vec<u32>,
    /// vCPUs per pCPU.
    pub(crate) ratio: f64,
    /// How much longer a vCPU could run that said it held a lock when its slice ended.
    #[serde(default)]
    pub(crate) grace_ns: u64,
    /// How much of a slice had to be left for locks that ask for that; null in records from before there were any.
    #[serde(default)]
    pub(crate) slice_margin_ns: Option<u64>,
    /// Whether a kick handed the pCPU to the vCPU that it woke.
    #[serde(default)]
    pub(crate) kick_yield: bool,
    /// Whether descheduling was attributed to what the vCPU was doing.
    #[serde(default = "yes")]
    pub(crate) attribution: bool,
    /// Whom to take off on purpose, how often and for how long; null: nobody.
    #[serde(default)]
    pub(crate) deschedule: Option<String>,
    /// Name of the lock.
    pub(crate) lock: String,
    /// Whether its paravirtual form.
    pub(crate) pv: bool,
    /// Whether the lock's call sites were rewritten; else they called through a table.
    pub(crate) patch: bool,
    /// Whether `vcpu_is_preempted` could read the flag.
    pub(crate) preempted_hint: bool,
    /// How long a paravirtual waiter spins before it sleeps.
    pub(crate) spin_threshold_ns: u64,
    /// Memory that the guest managed, in bytes; 0 in workloads that manage none, and in records older than the field.
    #[serde(default)]
    pub(crate) memory_bytes: u64,
    /// "vmm" or "host".
    pub(crate) sched: String,
    /// Length of a slice; null where the host decides.
    pub(crate) slice_ns: Option<u64>,
    /// The ring that was used: 0 or 3.
    pub(crate) ring: u32,
    /// Why that ring.
    pub(crate) ring_reason: String,
    /// How vCPUs slept and were woken: "vmm", "kvm" or "ipi".
    pub(crate) pv_backend: String,
    /// Why so.
    pub(crate) pv_backend_reason: String,
    /// How long KVM polls before it lets a halted vCPU sleep; null where nobody asked, so that the host's setting holds.
    pub(crate) halt_poll_ns: Option<u64>,
    /// Whether spin loops in ring 0 may end in exits.
    pub(crate) pause_exits: bool,
    /// Whether HLT ends in an exit.
    pub(crate) hlt_exits: bool,
    /// Name of the workload.
    pub(crate) workload: String,
    /// Work inside a critical section.
    pub(crate) hold_ns: u64,
    /// Work between critical sections.
    pub(crate) think_ns: u64,
    /// Locks that the sections are spread over.
    pub(crate) locks: u32,
    /// Sections that make up the fixed amount of work; null: as many as fit into the window.
    pub(crate) work_sections: Option<u64>,
    /// Whether vCPUs went on, uncounted, when that was done.
    #[serde(default)]
    pub(crate) go_on: bool,
    /// Work inside a long critical section.
    #[serde(default)]
    pub(crate) long_hold_ns: u64,
    /// One section of so many is long; 0: none.
    #[serde(default)]
    pub(crate) long_one_in: u32,
    /// One section of so many has another inside; 0: none.
    #[serde(default)]
    pub(crate) nested_one_in: u32,
    /// Time between start and window.
    pub(crate) warmup_ns: u64,
    /// Length of the window as asked.
    pub(crate) window_ns: u64,
    /// The window doubled until so many sections were done in it; 0: it stayed as asked.
    #[serde(default)]
    pub(crate) min_sections: u64,
    /// Seed of everything random.
    pub(crate) seed: u64,
}

/// How the run went.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
pub(crate) struct Timing {
    /// From the start of the run to the first section entered.
    pub(crate) start_up_ns: u64,
    /// Length of the window as it was.
    pub(crate) window_ns: u64,
    /// How long the fixed amount of work took; null without one, or if it was not done in the window.
    pub(crate) completion_ns: Option<u64>,
    /// TSC frequency.
    pub(crate) tsc_khz: u64,
    /// Iterations of the work loop per 2^20 ns.
    pub(crate) work_rate: u64,
    /// Who wrote the `preempted` flag: "vmm", "kvm" or "bpf"; null where nobody does.
    pub(crate) preempted_flag: Option<String>,
}

/// What the lock costs when nobody contends for it, and the memory that it takes. Cycles of the TSC per pair of lock and
/// unlock with a rest after it: the best of several short runs at boot, less what the rests take alone.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
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
}

/// All vCPUs together, inside the window.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
pub(crate) struct Totals {
    /// Sections completed.
    pub(crate) acquisitions: u64,
    /// Sections completed per second of window.
    pub(crate) acquisitions_per_second: f64,
    /// min(the same cell with no lock at all, locks / hold): no cost of locking, nobody preempted while others wait.
    pub(crate) ideal_per_second: Option<f64>,
    /// `acquisitions_per_second` / `ideal_per_second`.
    pub(crate) efficiency: Option<f64>,
    /// CPU time of the whole process.
    pub(crate) cpu_ns: u64,
    /// Time of all vCPUs on pCPUs; null where nobody measures it.
    pub(crate) run_ns: Option<u64>,
    /// The part of it that went into acquiring and releasing locks.
    pub(crate) lock_cpu_ns: Option<u64>,
    /// `lock_cpu_ns` / `run_ns`.
    pub(crate) lock_cpu_share: Option<f64>,
    /// Updates of the plain counter under the lock that were lost; null without a lock.
    pub(crate) lost_updates: Option<u64>,
}

/// How evenly the acquisitions fell on the vCPUs.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
pub(crate) struct Fairness {
    /// Jain's index: 1 when all vCPUs did the same, 1/n when one did all; null when nobody did anything.
    pub(crate) jain: Option<f64>,
    /// Fewest acquisitions of a vCPU.
    pub(crate) min_per_vcpu: u64,
    /// Most acquisitions of a vCPU.
    pub(crate) max_per_vcpu: u64,
}

/// A distribution of times.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
pub(crate) struct Distribution {
    /// Values seen.
    pub(crate) count: u64,
    /// Arithmetic mean.
    pub(crate) mean: Option<f64>,
    /// Median.
    pub(crate) p50: Option<f64>,
    /// 90th percentile.
    pub(crate) p90: Option<f64>,
    /// 99th percentile.
    pub(crate) p99: Option<f64>,
    /// 99.9th percentile.
    pub(crate) p999: Option<f64>,
    /// Largest.
    pub(crate) max: Option<f64>,
    /// Pairs of a bucket's lower bound and the number of values in it, empty buckets left out.
    pub(crate) buckets: Vec<(f64, u64)>,
}

/// One value per thing that a vCPU can be doing.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
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
    /// Neither.
    pub(crate) other: u64,
}

/// Looks of vCPUs at the `preempted` flags of others, inside the window.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
pub(crate) struct HintErrors {
    /// Looks.
    pub(crate) samples: u64,
    /// Those at which the flag was set and yet the vCPU moved.
    pub(crate) moved_while_marked: u64,
    /// Those at which the flag was clear and yet the vCPU did not move: also where the host took its pCPU away.
    pub(crate) still_while_unmarked: u64,
    /// Looks that were compared with the scheduler's books; 0 where the host's scheduler decides, who shows none.
    pub(crate) compared: u64,
    /// Those that the books contradict.
    pub(crate) contradicted: u64,
    /// Share of wrong looks: where there are books, those that they contradict or that moved while marked; else those of both
    /// kinds that the vCPUs saw for themselves.
    pub(crate) error_rate: f64,
}

/// Slices that were extended, inside the window.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
pub(crate) struct GraceCounts {
    /// How often.
    pub(crate) granted: u64,
    /// Those at the end of which the vCPU was taken off all the same.
    pub(crate) expired: u64,
    /// How long the vCPUs ran beyond the end of their slices; charged to the next ones.
    pub(crate) overrun_ns: u64,
}

/// One vCPU.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
pub(crate) struct PerVcpu {
    /// Sections completed inside the window.
    pub(crate) acquisitions: u64,
    /// Time on a pCPU inside the window; null where nobody measures it.
    pub(crate) run_ns: Option<u64>,
    /// Time runnable without a pCPU, whole run; null where nobody measures it.
    pub(crate) steal_ns: Option<u64>,
    /// Times taken off a pCPU while running, whole run.
    pub(crate) preemptions: u64,
    /// Sleeps in `pv_wait`, whole run; null where nobody counts them.
    pub(crate) waits: Option<u64>,
    /// Kicks received, whole run; null where nobody counts them.
    pub(crate) kicks: Option<u64>,
}

/// What else ran on the pCPUs meanwhile, as shares of their time.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
pub(crate) struct Noise {
    /// Busy with other processes and interrupts.
    pub(crate) others_share: Option<f64>,
    /// Taken by the machine below this one.
    pub(crate) steal_share: Option<f64>,
}

/// Something that speaks against a run.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
pub(crate) struct Warning {
    /// Stable name.
    pub(crate) code: String,
    /// What it is, with figures, and what to do.
    pub(crate) message: String,
}

/// What the records of one run have in common.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    run_id: String,
    started: String,
    host: Host,
    noise: Result<(Noise, f64), String>,
}

impl Origin {
    pub(crate) fn new(started: SystemTime, host: Host, noise: Result<(Noise, f64), String>) -> Self {
        Self { run_id: run::run_id(started), started: timestamp::rfc3339(started), host, noise }
    }

    /// The smallest share of the pCPUs' time that can be told from none.
    pub(crate) fn tick_resolution(&self) -> f64 {
        self.noise.as_ref().map_or(0.0, |(_, resolution)| *resolution)
    }

    pub(crate) fn context(&self, place: Option<Place>, lock_free_per_second: Result<f64, String>) -> Context {
        Context {
            run_id: self.run_id.clone(),
            started: self.started.clone(),
            place,
            host: self.host.clone(),
            lock_free_per_second,
            noise: self.noise.as_ref().map(|(noise, _)| noise.clone()).map_err(Clone::clone),
        }
    }
}

/// What a record is made of beside the outcome.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    pub(crate) run_id: String,
    pub(crate) started: String,
    pub(crate) place: Option<Place>,
    pub(crate) host: Host,
    /// Lock-free throughput of the same cell per second, or why there is none.
    pub(crate) lock_free_per_second: Result<f64, String>,
    /// What else ran, or why that is not known.
    pub(crate) noise: Result<Noise, String>,
}

impl Config {
    /// Mean work in a section and after it.
    pub(crate) fn section_ns(&self) -> u64 {
        let hold_ns = match u64::from(self.long_one_in) {
            0 => self.hold_ns,
            n => (self.hold_ns * (n - 1) + self.long_hold_ns) / n,
        };
        hold_ns + self.think_ns
    }
}

impl Record {
    pub(crate) fn new(config: &RunConfig, outcome: &Outcome, context: Context) -> Self {
        let mut why = BTreeMap::new();
        let totals = totals(config, outcome, context.lock_free_per_second, &mut why);
        let noise = context.noise.unwrap_or_else(|reason| {
            why.insert("noise.others_share".into(), reason.clone());
            why.insert("noise.steal_share".into(), reason);
            Noise::default()
        });
        let (unattributed, not_injected) = if config.attribution {
            (
                "the host's scheduler does not say what a vCPU was doing when it preempted it; per_vcpu counts how often",
                "nobody was to be descheduled on purpose",
            )
        } else {
            ("not asked for (attribution off)", "not asked for (attribution off)")
        };
        let mut record = Self {
            schema: SCHEMA.into(),
            schema_version: SCHEMA_VERSION,
            run_id: context.run_id,
            started: context.started,
            place: context.place,
            config: echo(config, outcome, &mut why),
            host: context.host,
            timing: timing(config, outcome, &mut why),
            lock_cost: lock_cost(config, outcome, &mut why),
            totals,
            fairness: fairness(&outcome.vcpus, &mut why),
            wait_ns: distribution("wait_ns", &outcome.wait, outcome.tsc_khz, &mut why),
            hold_ns: distribution("hold_ns", &outcome.hold, outcome.tsc_khz, &mut why),
            lock_events: outcome.lock_events.iter().cloned().collect(),
            vm_exits: outcome.vm_exits.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect(),
            kvm_stats: kvm_stats(outcome, &mut why),
            pmu: pmu(outcome, &mut why),
            preemptions: activities("preemptions", outcome.preemptions, unattributed, &mut why),
            preempted_ns: activities("preempted_ns", outcome.preempted_ns, unattributed, &mut why),
            lost_ns: activities("lost_ns", outcome.lost_ns, unattributed, &mut why),
            hint: hint(outcome, &mut why),
            grace: grace(config, outcome, &mut why),
            handed_over: handed_over(outcome, &mut why),
            injected: activities("injected", outcome.injected, not_injected, &mut why),
            per_vcpu: outcome.vcpus.iter().map(per_vcpu).collect(),
            profile: None,
            trace: None,
            noise,
            trusted: true,
            warnings: vec![],
            why,
        };
        for (path, reason) in record.host.why() {
            record.why.insert(format!("host.{path}"), reason);
        }
        let unmeasured = [
            ("per_vcpu.run_ns", record.per_vcpu.iter().any(|vcpu| vcpu.run_ns.is_none())),
            ("per_vcpu.waits", record.per_vcpu.iter().any(|vcpu| vcpu.waits.is_none())),
            ("per_vcpu.kicks", record.per_vcpu.iter().any(|vcpu| vcpu.kicks.is_none())),
            ("per_vcpu.steal_ns", record.per_vcpu.iter().any(|vcpu| vcpu.steal_ns.is_none())),
        ];
        for (path, _) in unmeasured.into_iter().filter(|(_, unmeasured)| *unmeasured) {
            let reason = "nobody measures it with this scheduler and back end on this host";
            record.why.insert(path.into(), reason.into());
        }
        record
    }

    /// Pairs of what the run needed and did not get become warnings.
    pub(crate) fn warn(&mut self, code: &str, message: String) {
        self.trusted = false;
        self.warnings.push(Warning { code: code.into(), message });
    }
}

type Why = BTreeMap<String, String>;

/// What records from before there was a choice mean.
fn yes() -> bool {
    true
}

fn ns(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn echo(config: &RunConfig, outcome: &Outcome, why: &mut Why) -> Config {
    let slice_ns = match config.sched {
        Sched::Vmm => Some(ns(config.slice)),
        Sched::Host => {
            why.insert("config.slice_ns".into(), "the host's scheduler decides".into());
            None
        }
    };
    if config.mix.work_sections.is_none() {
        why.insert("config.work_sections".into(), "as many sections as fit into the window".into());
    }
    if config.halt_poll.is_none() {
        why.insert("config.halt_poll_ns".into(), "left as the host has it".into());
    }
    if config.deschedule.is_none() {
        why.insert("config.deschedule".into(), "nobody was to be descheduled on purpose".into());
    }
    Config {
        engine: match config.engine {
            Engine::Kvm => "kvm".into(),
            Engine::Threads => "threads".into(),
            Engine::Qemu(Accelerator::Kvm) => "qemu-kvm".into(),
            Engine::Qemu(Accelerator::Tcg) => "qemu-tcg".into(),
        },
        guest: config.name.clone(),
        beside: config.beside.iter().map(|guest| guest.name.clone()).collect(),
        share: match config.share {
            Share::Vcpu => "vcpu".into(),
            Share::Guest => "guest".into(),
        },
        vcpus: config.vcpus,
        cpus: config.cpus.clone(),
        ratio: f64::from(config.vcpus) / config.cpus.len() as f64,
        grace_ns: ns(config.grace),
        slice_margin_ns: Some(ns(config.slice_margin)),
        kick_yield: config.kick_yields,
        attribution: config.attribution,
        deschedule: config.deschedule.clone().map(|policy| Policy(policy).to_string()),
        lock: config.lock.clone(),
        pv: config.pv,
        patch: config.patch,
        preempted_hint: config.preempted_hint,
        spin_threshold_ns: ns(config.spin_threshold),
        memory_bytes: outcome.memory_bytes,
        sched: match config.sched {
            Sched::Vmm => "vmm".into(),
            Sched::Host => "host".into(),
        },
        slice_ns,
        ring: if outcome.ring == Ring::Ring0 { 0 } else { 3 },
        ring_reason: outcome.ring_reason.clone(),
        pv_backend: outcome.pv_backend.name().into(),
        pv_backend_reason: outcome.pv_backend_reason.clone(),
        halt_poll_ns: config.halt_poll.map(ns),
        pause_exits: config.pause_exits,
        hlt_exits: config.hlt_exits,
        workload: config.workload.clone(),
        hold_ns: ns(config.hold),
        think_ns: ns(config.think),
        locks: config.lock_count,
        work_sections: config.mix.work_sections,
        go_on: config.mix.go_on,
        long_hold_ns: ns(config.mix.long_hold),
        long_one_in: config.mix.long_one_in,
        nested_one_in: config.mix.nested_one_in,
        warmup_ns: ns(config.warmup),
        window_ns: ns(config.window),
        min_sections: config.min_sections,
        seed: config.seed,
    }
}

fn timing(config: &RunConfig, outcome: &Outcome, why: &mut Why) -> Timing {
    let preempted_flag = match &outcome.preempted_source {
        PreemptedSource::Vmm => Some("vmm".into()),
        PreemptedSource::Kvm => Some("kvm".into()),
        PreemptedSource::Bpf => Some("bpf".into()),
        PreemptedSource::Unavailable(reason) => {
            why.insert("timing.preempted_flag".into(), reason.clone());
            None
        }
    };
    if outcome.completion.is_none() {
        let reason = match config.mix.work_sections {
            None => "no fixed amount of work was asked for".into(),
            Some(sections) => format!("the {sections} sections were not done within the window"),
        };
        why.insert("timing.completion_ns".into(), reason);
    }
    Timing {
        start_up_ns: ns(outcome.start_up),
        window_ns: ns(outcome.window),
        completion_ns: outcome.completion.map(ns),
        tsc_khz: outcome.tsc_khz,
        work_rate: outcome.work_rate,
        preempted_flag,
    }
}

fn lock_cost(config: &RunConfig, outcome: &Outcome, why: &mut Why) -> LockCost {
    let ticks = outcome.pair_ticks;
    let cycles = |ticks: Option<u64>| ticks.map(|ticks| ticks as f64 / 1024.0);
    let called = ticks.through_table.is_some();
    let unpatched = match config.engine {
        Engine::Qemu(_) => "QEMU starts the image as it is, and nobody patches it",
        _ if !config.patch => "patch is off",
        _ => "no call site was patched",
    };
    let no_site = "no call site: this lock is compiled into the workloads";
    for (field, known, reason) in [
        ("patched_tsc_cycles", ticks.patched.is_some(), if called { unpatched } else { no_site }),
        ("through_table_tsc_cycles", called, no_site),
        ("compiled_in_tsc_cycles", ticks.compiled_in.is_some(), "the guest image does not measure it"),
        ("lock_bytes", outcome.calls.is_some(), "the guest image does not say"),
        ("cpu_bytes", outcome.calls.is_some(), "the guest image does not say"),
    ] {
        if !known {
            why.insert(format!("lock_cost.{field}"), reason.into());
        }
    }
    LockCost {
        patched_tsc_cycles: cycles(ticks.patched),
        through_table_tsc_cycles: cycles(ticks.through_table),
        compiled_in_tsc_cycles: cycles(ticks.compiled_in),
        lock_bytes: outcome.calls.map(|calls| calls.lock_bytes),
        cpu_bytes: outcome.calls.map(|calls| calls.cpu_bytes),
        patched_sites: outcome.patched_sites as u64,
    }
}

fn totals(config: &RunConfig, outcome: &Outcome, lock_free: Result<f64, String>, why: &mut Why) -> Totals {
    let acquisitions = outcome.acquisitions();
    let acquisitions_per_second = acquisitions as f64 / outcome.window.as_secs_f64();
    let lock_free = lock_free.and_then(|per_second| {
        let none = || "the lock-free run completed no section inside its window".to_owned();
        if per_second > 0.0 { Ok(per_second) } else { Err(none()) }
    });
    let ideal_per_second = match lock_free {
        Ok(lock_free) => Some(ideal(lock_free, config)),
        Err(reason) => {
            why.insert("totals.ideal_per_second".into(), reason.clone());
            why.insert("totals.efficiency".into(), reason);
            None
        }
    };
    if outcome.lost_updates.is_none() {
        why.insert("totals.lost_updates".into(), "without a lock, updates may be lost".into());
    }
    let run_ns: Option<u64> = outcome.vcpus.iter().map(|vcpu| vcpu.run_ns).sum();
    let lock_cpu_ns = outcome.lock_cpu.map(ns);
    let lock_cpu_share = lock_cpu_ns.zip(run_ns).map(|(in_locks, run)| in_locks as f64 / run.max(1) as f64);
    if run_ns.is_none() {
        why.insert("totals.run_ns".into(), "nobody measures it with this scheduler on this host".into());
    }
    if lock_cpu_share.is_none() {
        let reason = "only the workload `mixed` measures it, with a lock, under --sched vmm";
        why.insert("totals.lock_cpu_ns".into(), reason.into());
        why.insert("totals.lock_cpu_share".into(), reason.into());
    }
    Totals {
        acquisitions,
        acquisitions_per_second,
        ideal_per_second,
        efficiency: ideal_per_second.map(|ideal| acquisitions_per_second / ideal),
        cpu_ns: ns(outcome.cpu_time),
        run_ns,
        lock_cpu_ns,
        lock_cpu_share,
        lost_updates: outcome.lost_updates,
    }
}

/// min(lock-free throughput, locks / hold).
fn ideal(lock_free_per_second: f64, config: &RunConfig) -> f64 {
    let hold = config.mix.mean_hold(config.hold).as_secs_f64();
    let serial = if hold > 0.0 { f64::from(config.lock_count) / hold } else { f64::INFINITY };
    lock_free_per_second.min(serial)
}

fn kvm_stats(outcome: &Outcome, why: &mut Why) -> Option<BTreeMap<String, u64>> {
    match &outcome.kvm_stats {
        Ok(stats) => Some(stats.iter().cloned().collect()),
        Err(reason) => {
            why.insert("kvm_stats".into(), reason.clone());
            None
        }
    }
}

fn pmu(outcome: &Outcome, why: &mut Why) -> Option<BTreeMap<String, Option<u64>>> {
    let counted = match &outcome.pmu {
        Ok(counted) => counted,
        Err(reason) => {
            why.insert("pmu".into(), reason.clone());
            return None;
        }
    };
    let mut count = |(name, count): &(&str, Result<u64, String>)| {
        if let Err(reason) = count {
            why.insert(format!("pmu.{name}"), reason.clone());
        }
        ((*name).to_owned(), count.as_ref().ok().copied())
    };
    Some(counted.iter().map(&mut count).collect())
}

fn fairness(vcpus: &[VcpuOutcome], why: &mut Why) -> Fairness {
    let counts = || vcpus.iter().map(|vcpu| vcpu.acquisitions);
    let sum: f64 = counts().map(|count| count as f64).sum();
    let squares: f64 = counts().map(|count| (count as f64).powi(2)).sum();
    let jain = (squares > 0.0).then(|| sum * sum / (vcpus.len() as f64 * squares));
    if jain.is_none() {
        why.insert("fairness.jain".into(), "no vCPU completed a section inside the window".into());
    }
    Fairness { jain, min_per_vcpu: counts().min().unwrap_or(0), max_per_vcpu: counts().max().unwrap_or(0) }
}

fn distribution(path: &str, histogram: &TicksHistogram, tsc_khz: u64, why: &mut Why) -> Distribution {
    let count: u64 = histogram.buckets.iter().sum();
    if count == 0 {
        why.insert(path.to_owned(), "no section was completed inside the window".into());
        return Distribution::default();
    }
    let to_ns = |ticks: u64| ticks as f64 * 1e6 / tsc_khz as f64;
    let quantile = |q| histogram.quantile(q).map(to_ns);
    Distribution {
        count,
        mean: Some(to_ns(histogram.sum) / count as f64),
        p50: quantile(0.5),
        p90: quantile(0.9),
        p99: quantile(0.99),
        p999: quantile(0.999),
        max: Some(to_ns(histogram.max)),
        buckets: histogram.occupied().map(|(ticks, count)| (to_ns(ticks), count)).collect(),
    }
}

fn activities(
    path: &str,
    values: Option<ByActivity<u64>>,
    reason: &str,
    why: &mut Why,
) -> Option<Activities> {
    let Some(ByActivity { holder, head, waiter, halted, other }) = values else {
        why.insert(path.to_owned(), reason.to_owned());
        return None;
    };
    Some(Activities { holder, head, waiter, halted, other })
}

fn hint(outcome: &Outcome, why: &mut Why) -> Option<HintErrors> {
    let Some(check) = outcome.hint else {
        why.insert("hint".into(), "this workload does not look: use --workload hint-check".into());
        return None;
    };
    let HintCheck { samples, moved_while_marked, still_while_unmarked, compared, contradicted } = check;
    let share = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
    let error_rate = if compared > 0 {
        share(contradicted, compared).max(share(moved_while_marked, samples))
    } else {
        share(moved_while_marked + still_while_unmarked, samples)
    };
    Some(HintErrors { samples, moved_while_marked, still_while_unmarked, compared, contradicted, error_rate })
}

fn grace(config: &RunConfig, outcome: &Outcome, why: &mut Why) -> Option<GraceCounts> {
    let Some(Graces { granted, expired, overrun_ns }) = outcome.graces else {
        let asked =
            if config.sched == Sched::Host { "the host's scheduler decides" } else { "not asked for" };
        why.insert("grace".into(), asked.into());
        return None;
    };
    Some(GraceCounts { granted, expired, overrun_ns })
}

fn handed_over(outcome: &Outcome, why: &mut Why) -> Option<u64> {
    if outcome.handed.is_none() {
        why.insert("handed_over".into(), "the host's scheduler takes no directions".into());
    }
    outcome.handed
}

fn per_vcpu(vcpu: &VcpuOutcome) -> PerVcpu {
    PerVcpu {
        acquisitions: vcpu.acquisitions,
        run_ns: vcpu.run_ns,
        steal_ns: vcpu.steal_ns,
        preemptions: vcpu.preemptions,
        waits: vcpu.waits,
        kicks: vcpu.kicks,
    }
}
