//! From an outcome to its record: every figure that the run did not find out becomes null, with the reason.

use std::collections::BTreeMap;
use std::time::SystemTime;

use haltkick_vmm::{
    Accelerator, ByActivity, Costs, Engine, Graces, HintCheck, Ideal, Outcome, PreemptedSource, Ring,
    RunConfig, RunDelay, Sched, Share, SwitchReports, VcpuOutcome,
};

use super::times::distribution;
use crate::analysis::statistics::median;
use crate::experiment::place::Place;
use crate::host::identity::Host;
use crate::host::noise::NO_STEAL;
use crate::host::noise::Noise;
use crate::record::run_id::run_id;
use crate::record::{
    Activities, Config, Distribution, Fairness, GraceCounts, HintErrors, InstrumentCost, LockCost, PerVcpu,
    Record, SCHEMA, SCHEMA_VERSION, SwitchCounts, Timing, Totals, WorkSpeed,
};
use crate::settings::deschedule::Policy;
use crate::text::timestamp;

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
        Self { run_id: run_id(started), started: timestamp::rfc3339(started), host, noise }
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

impl Record {
    pub(crate) fn new(config: &RunConfig, outcome: &Outcome, context: Context) -> Self {
        let mut why = BTreeMap::new();
        let totals = totals(config, outcome, context.lock_free_per_second, &mut why);
        let noise = noise(config, outcome, context.noise, &mut why);
        let (unattributed, not_injected) = if config.attribution {
            let unseen = outcome.switches.as_ref().err().map_or("", String::as_str);
            let unattributed = format!(
                "the host's scheduler does not say what a vCPU was doing when it preempted it, and {unseen}; per_vcpu counts \
                 how often"
            );
            (unattributed, "nobody was to be descheduled on purpose")
        } else {
            ("not asked for (attribution off)".into(), "not asked for (attribution off)")
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
            wait_ns: waits(outcome, &mut why),
            hold_ns: holds(outcome, &mut why),
            unlock_ns: unlocks(outcome, &mut why),
            times_ns: times(outcome, &mut why),
            lock_events: outcome.lock_events.iter().cloned().collect(),
            vm_exits: outcome.vm_exits.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect(),
            kvm_stats: kvm_stats(outcome, &mut why),
            pmu: pmu(outcome, &mut why),
            preemptions: activities("preemptions", outcome.preemptions, &unattributed, &mut why),
            preempted_ns: activities("preempted_ns", outcome.preempted_ns, &unattributed, &mut why),
            lost_ns: activities("lost_ns", outcome.lost_ns, &unattributed, &mut why),
            hint: hint(outcome, &mut why),
            grace: grace(config, outcome, &mut why),
            handed_over: handed_over(outcome, &mut why),
            switches: switches(outcome, &mut why),
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
}

type Why = BTreeMap<String, String>;

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
    if config.shape.arrivals.is_none() {
        why.insert(
            "config.arrivals_ns".into(),
            "vCPUs began their next section when they had thought".into(),
        );
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
        exponential_think: config.shape.exponential_think,
        hold_jitter_percent: config.shape.hold_jitter_percent,
        zipf: f64::from(config.shape.zipf_hundredths) / 100.0,
        arrivals_ns: config.shape.arrivals.map(ns),
        footprint_lines: config.shape.footprint_lines,
        dirty_lines: config.shape.dirty_lines,
        read_percent: config.shape.read_percent,
        read_hold_ns: if config.shape.read_percent > 0 { ns(config.shape.read_hold) } else { 0 },
        oracle: config.oracle,
        ordered_stamps: config.ordered_stamps,
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
        work_speed: work_speed(outcome, why),
        tsc_steps_back: outcome.tsc_steps_back,
        preempted_flag,
    }
}

fn work_speed(outcome: &Outcome, why: &mut Why) -> Option<WorkSpeed> {
    let told: Vec<_> = outcome.work.iter().flatten().collect();
    if told.is_empty() {
        let reason = "too few pieces of work were long enough, or done, to be timed";
        why.insert("timing.work_speed".into(), reason.into());
        return None;
    }
    let speeds: Vec<f64> = told.iter().map(|speed| speed.over_promised).collect();
    Some(WorkSpeed {
        over_promised: median(&speeds),
        slowest_vcpu: speeds.iter().copied().fold(f64::INFINITY, f64::min),
        fastest_vcpu: speeds.iter().copied().fold(0.0, f64::max),
        pieces: told.iter().map(|speed| u64::from(speed.pieces)).sum(),
    })
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
        instrument: Some(instrument_cost(config, outcome, why)),
    }
}

fn instrument_cost(config: &RunConfig, outcome: &Outcome, why: &mut Why) -> InstrumentCost {
    let cycles = |ticks: Option<u64>| ticks.map(|ticks| ticks as f64 / 1024.0);
    let Costs { stamp, ordered_stamp, oracle, section, counting } = outcome.costs;
    let unsaid = "the guest image does not measure it";
    for (field, known, reason) in [
        ("stamp_tsc_cycles", stamp.is_some(), unsaid),
        ("ordered_stamp_tsc_cycles", ordered_stamp.is_some(), unsaid),
        ("oracle_tsc_cycles", oracle.is_some(), if config.oracle { unsaid } else { "the oracle is off" }),
        ("section_tsc_cycles", section.is_some(), unsaid),
        ("counting_tsc_cycles", counting.is_some(), unsaid),
    ] {
        if !known {
            why.insert(format!("lock_cost.instrument.{field}"), reason.into());
        }
    }
    InstrumentCost {
        stamp_tsc_cycles: cycles(stamp),
        ordered_stamp_tsc_cycles: cycles(ordered_stamp),
        oracle_tsc_cycles: cycles(oracle),
        section_tsc_cycles: cycles(section),
        counting_tsc_cycles: cycles(counting),
    }
}

/// What the workload reports beside wait, hold and unlock.
fn times(outcome: &Outcome, why: &mut Why) -> BTreeMap<String, Distribution> {
    let named =
        outcome.times.iter().filter(|(_, histogram)| histogram.buckets.iter().any(|count| *count > 0));
    named
        .map(|(name, histogram)| {
            let path = format!("times_ns.{name}");
            (
                name.clone(),
                distribution(&path, histogram, Err("only waits are looked at"), outcome.tsc_khz, why),
            )
        })
        .collect()
}

fn totals(config: &RunConfig, outcome: &Outcome, lock_free: Result<f64, String>, why: &mut Why) -> Totals {
    let acquisitions = outcome.acquisitions();
    let acquisitions_per_second = acquisitions as f64 / outcome.window.as_secs_f64();
    let lock_free = lock_free.and_then(|per_second| {
        let none = || "the lock-free run completed no section inside its window".to_owned();
        if per_second > 0.0 { Ok(per_second) } else { Err(none()) }
    });
    let lock_free_per_second = lock_free.as_ref().ok().copied();
    let ideal_per_second = match lock_free.and_then(|lock_free| ideal(lock_free, config, outcome)) {
        Ok(ideal) => Some(ideal),
        Err(reason) => {
            why.insert("totals.lock_free_per_second".into(), reason.clone());
            why.insert("totals.ideal_per_second".into(), reason.clone());
            why.insert("totals.efficiency".into(), reason);
            None
        }
    };
    if outcome.lost_updates.is_none() {
        let reason = if config.oracle {
            "without a lock, updates may be lost"
        } else {
            "nobody watched (--oracle off)"
        };
        why.insert("totals.lost_updates".into(), reason.into());
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
        reads: outcome.reads,
        acquisitions_per_second,
        lock_free_per_second,
        ideal_per_second,
        efficiency: ideal_per_second.map(|ideal| acquisitions_per_second / ideal),
        cpu_ns: ns(outcome.cpu_time),
        run_ns,
        lock_cpu_ns,
        lock_cpu_share,
        lost_updates: outcome.lost_updates,
    }
}

/// The most that any lock lets through, if the workload has such a bound: lock-free throughput, and at most locks / hold where
/// all sections are of one length.
fn ideal(lock_free_per_second: f64, config: &RunConfig, outcome: &Outcome) -> Result<f64, String> {
    match outcome.ideal {
        Ideal::Serial => {
            let hold = config.mix.mean_hold(config.hold).as_secs_f64();
            let serial = if hold > 0.0 { f64::from(config.lock_count) / hold } else { f64::INFINITY };
            Ok(lock_free_per_second.min(serial))
        }
        Ideal::LockFree => Ok(lock_free_per_second),
        Ideal::Unknown => Err(format!(
            "workload {} has no ideal: its operations are neither sections of one known length nor the same without a lock",
            config.workload
        )),
    }
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

/// Fewer sections per vCPU than this say nothing of fairness: nine sections among 64 vCPUs cannot be spread evenly.
const FAIRNESS_NEEDS: f64 = 2.0;

fn fairness(vcpus: &[VcpuOutcome], why: &mut Why) -> Fairness {
    let counts = || vcpus.iter().map(|vcpu| vcpu.acquisitions);
    let sum: f64 = counts().map(|count| count as f64).sum();
    let squares: f64 = counts().map(|count| (count as f64).powi(2)).sum();
    let enough = sum >= FAIRNESS_NEEDS * vcpus.len() as f64;
    let jain = enough.then(|| sum * sum / (vcpus.len() as f64 * squares));
    if jain.is_none() {
        let reason =
            format!("{sum} sections among {} vCPUs do not tell: a longer --window does", vcpus.len());
        why.insert("fairness.jain".into(), reason);
    }
    let starved_vcpus = counts().filter(|count| *count == 0).count() as u32;
    Fairness {
        jain,
        starved_vcpus: Some(starved_vcpus),
        min_per_vcpu: counts().min().unwrap_or(0),
        max_per_vcpu: counts().max().unwrap_or(0),
    }
}

fn waits(outcome: &Outcome, why: &mut Why) -> Distribution {
    let pending = outcome.pending_waits.as_deref().map_err(String::as_str);
    distribution("wait_ns", &outcome.wait, pending, outcome.tsc_khz, why)
}

/// A section that is not over when the window closes is one of very many: holders do not starve.
fn holds(outcome: &Outcome, why: &mut Why) -> Distribution {
    distribution("hold_ns", &outcome.hold, Err("only waits are looked at"), outcome.tsc_khz, why)
}

fn unlocks(outcome: &Outcome, why: &mut Why) -> Distribution {
    distribution("unlock_ns", &outcome.unlock, Err("only waits are looked at"), outcome.tsc_khz, why)
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

fn switches(outcome: &Outcome, why: &mut Why) -> Option<SwitchCounts> {
    match &outcome.switches {
        Ok(SwitchReports { read, dropped }) => Some(SwitchCounts {
            read: *read,
            dropped: *dropped,
            switched_out_ready: outcome.vcpus.iter().filter_map(|vcpu| vcpu.switched_out_ready).sum(),
        }),
        Err(reason) => {
            why.insert("switches".into(), reason.clone());
            None
        }
    }
}

fn handed_over(outcome: &Outcome, why: &mut Why) -> Option<u64> {
    if outcome.handed.is_none() {
        why.insert("handed_over".into(), "the host's scheduler takes no directions".into());
    }
    outcome.handed
}

/// What else ran, by the kernel's ticks and by what the run's own threads noticed.
fn noise(config: &RunConfig, outcome: &Outcome, seen: Result<Noise, String>, why: &mut Why) -> Noise {
    let noise = seen.unwrap_or_else(|reason| {
        why.insert("noise.others_share".into(), reason.clone());
        why.insert("noise.steal_share".into(), reason);
        Noise::default()
    });
    if noise.steal_share.is_none() {
        why.entry("noise.steal_share".into()).or_insert_with(|| NO_STEAL.into());
    }
    if outcome.run_delay.is_none() {
        let reason = match config.sched {
            Sched::Vmm => "/proc/thread-self/schedstat does not tell",
            Sched::Host => "every vCPU is a thread of its own, and they wait for each other",
        };
        why.insert("noise.run_delay_share".into(), reason.into());
    }
    let share = |delay: RunDelay| delay.delayed.as_secs_f64() / delay.alive.as_secs_f64();
    Noise { run_delay_share: outcome.run_delay.map(share), ..noise }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn jain(acquisitions: &[u64]) -> (Option<f64>, Why) {
        let of = |&acquisitions| VcpuOutcome { acquisitions, ..VcpuOutcome::default() };
        let mut why = Why::default();
        let vcpus: Vec<_> = acquisitions.iter().map(of).collect();
        (fairness(&vcpus, &mut why).jain, why)
    }

    #[test]
    fn fairness_is_told_from_two_sections_per_vcpu_on_and_null_with_a_reason_below() {
        assert_eq!(jain(&[2, 2]).0, Some(1.0));
        assert_eq!(jain(&[4, 0]).0, Some(0.5));
        for too_few in [&[1, 2][..], &[0, 0]] {
            let (jain, why) = jain(too_few);
            assert_eq!(jain, None, "{too_few:?}");
            assert!(why["fairness.jain"].contains("sections among 2 vCPUs"), "{why:?}");
        }
    }
}
