//! From an outcome to its record: every figure that the run did not find out becomes null, with the reason.

use std::collections::BTreeMap;

use haltkick_vmm::{
    ByActivity, Found, Graces, HintCheck, Ideal, KernelThrottled, Known, OurGuest, Outcome, PreemptedSource,
    Repeated, RunDelay, Sched, SwitchReports, Throttled, Unknown, VcpuOutcome,
};

use super::costs::lock_cost;
use super::origin::{Context, explain_noise};
use super::timeline::timeline;
use super::times::distribution;
use crate::analysis::statistics::median;
use crate::host::noise::Noise;
use crate::record::config::ns;
use crate::record::memory::GuestMemory;
use crate::record::per_node::PerNode;
use crate::record::why::Why;
use crate::record::{
    Activities, ClosedByHeads, Config, Distribution, Fairness, GraceCounts, HintErrors, PerVcpu, Record,
    SCHEMA, SCHEMA_VERSION, ScheduleKept, SwitchCounts, ThrottledCounts, Timing, Totals, WorkSpeed,
};

impl Record {
    /// Long: its one literal names every field.
    pub(crate) fn new(asked: OurGuest<'_>, outcome: &Outcome, found: &Found, context: Context) -> Self {
        let mut why = Why::default();
        let totals = totals(asked, (outcome, found), context.lock_free_per_second, &mut why);
        let noise = noise(found, context.noise, &mut why);
        let (unattributed, not_injected) = if asked.run.attribution {
            let unseen = outcome.switches.as_ref().err().map_or("", |reason| &*reason.0);
            let unattributed = format!(
                "the host's scheduler does not say what a vCPU was doing when it preempted it, and {unseen}; per_vcpu counts \
                 how often"
            );
            (unattributed, "no vCPU was to be descheduled on purpose")
        } else {
            ("not asked for (attribution off)".into(), "not asked for (attribution off)")
        };
        let per_vcpu: Vec<PerVcpu> = outcome.vcpus.iter().map(per_vcpu).collect();
        let per_node = why.given(
            "per_node",
            PerNode::of(asked, &per_vcpu),
            "all pCPUs of the run are on one node, or the scheduler does not say where vCPUs began",
        );
        let mut record = Self {
            schema: SCHEMA.into(),
            schema_version: SCHEMA_VERSION,
            run_id: context.run_id,
            started: context.started,
            place: context.place.clone(),
            config: Config::new(asked, outcome, &mut why),
            host: context.host,
            sandbox: Some(why.holds("sandbox", haltkick_vmm::walls().calls)),
            landlock_abi: why.known("landlock_abi", haltkick_vmm::walls().files),
            memory: GuestMemory::new(outcome.residence.clone(), &mut why),
            timing: timing(asked, (outcome, found), &mut why),
            lock_cost: lock_cost(asked, outcome, &mut why),
            totals,
            fairness: fairness(&outcome.vcpus, &mut why),
            wait_ns: waits(outcome, &mut why),
            hold_ns: holds(outcome, &mut why),
            unlock_ns: unlocks(outcome, &mut why),
            times_ns: times(outcome, &mut why),
            lock_events: outcome.lock_events.iter().cloned().collect(),
            vm_exits: outcome.vm_exits.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect(),
            kvm_stats: why.known("kvm_stats", outcome.kvm_stats.clone()).map(BTreeMap::from_iter),
            pmu: pmu(found, &mut why),
            preemptions: why.given("preemptions", outcome.preemptions.map(activities), &*unattributed),
            preempted_ns: why.given("preempted_ns", outcome.preempted_ns.map(activities), &*unattributed),
            lost_ns: why.given("lost_ns", outcome.lost_ns.map(activities), &*unattributed),
            skipped_losses: outcome.skipped_losses,
            closed_by_heads: closed_by_heads(outcome, &mut why),
            hint: hint(outcome, &mut why),
            grace: grace(asked, outcome, &mut why),
            throttled: throttled(outcome, &mut why),
            handed_over: why.given("handed_over", outcome.handed, "the host's scheduler takes no directions"),
            switches: switches(outcome, &mut why),
            injected: why.given("injected", outcome.injected.map(activities), not_injected),
            schedule: why.given("schedule", found.schedule.map(kept), "no schedule was repeated"),
            per_vcpu,
            per_node,
            timeline: timeline(asked, outcome, context.place.as_ref(), &mut why),
            profile: None,
            trace: None,
            noise,
            trusted: true,
            warnings: vec![],
            why: why.0,
        };
        for (path, reason) in record.host.why() {
            record.why.insert(format!("host.{path}"), reason);
        }
        explain_unmeasured(&mut record);
        record
    }
}

/// Explains figures of single vCPUs that were not measured.
fn explain_unmeasured(record: &mut Record) {
    let any = |of: fn(&PerVcpu) -> Option<u64>| record.per_vcpu.iter().any(|vcpu| of(vcpu).is_none());
    let unmeasured = [
        ("per_vcpu.run_ns", any(|vcpu| vcpu.run_ns)),
        ("per_vcpu.waits", any(|vcpu| vcpu.waits)),
        ("per_vcpu.kicks", any(|vcpu| vcpu.kicks)),
        ("per_vcpu.steal_ns", any(|vcpu| vcpu.steal_ns)),
    ];
    for (path, _) in unmeasured.into_iter().filter(|(_, unmeasured)| *unmeasured) {
        let reason = "it is not measured with this scheduler and back end on this host";
        record.why.insert(path.into(), reason.into());
    }
}

fn timing(asked: OurGuest<'_>, (outcome, found): (&Outcome, &Found), why: &mut Why) -> Timing {
    let source = outcome.preempted_source.clone().map(|source| match source {
        PreemptedSource::Vmm => "vmm".into(),
        PreemptedSource::Kvm => "kvm".into(),
        PreemptedSource::Bpf => "bpf".into(),
    });
    if outcome.completion.is_none() {
        let reason = match asked.ours.mix.work_sections {
            None => "no fixed amount of work was asked for".into(),
            Some(sections) => format!("the {sections} sections were not done within the window"),
        };
        why.explain("timing.completion_ns", reason);
    }
    Timing {
        start_up_ns: ns(outcome.start_up),
        all_started_ns: why.known("timing.all_started_ns", found.started.clone()).map(ns),
        cpu_before_ns: why.known("timing.cpu_before_ns", found.cpu_before.clone()).map(ns),
        window_ns: ns(outcome.window),
        completion_ns: outcome.completion.map(ns),
        tsc_khz: outcome.tsc_khz,
        work_rate: outcome.work_rate,
        work_speed: work_speed(outcome, why),
        tsc_steps_back: outcome.tsc_steps_back,
        preempted_flag: why.known("timing.preempted_flag", source),
    }
}

fn work_speed(outcome: &Outcome, why: &mut Why) -> Option<WorkSpeed> {
    let told: Vec<_> = outcome.work.iter().flatten().collect();
    if told.is_empty() {
        let reason = "too few pieces of work were long enough, or done, to be timed";
        why.explain("timing.work_speed", reason);
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

/// Times that the workload reports in addition to wait, hold and unlock.
fn times(outcome: &Outcome, why: &mut Why) -> BTreeMap<String, Distribution> {
    let named =
        outcome.times.iter().filter(|(_, histogram)| histogram.buckets.iter().any(|count| *count > 0));
    named
        .map(|(name, histogram)| {
            let path = format!("times_ns.{name}");
            (
                name.clone(),
                distribution(&path, histogram, Err("only waits are looked at".into()), outcome.tsc_khz, why),
            )
        })
        .collect()
}

fn kept(Repeated { absences, absent_ns, honoured }: Repeated) -> ScheduleKept {
    ScheduleKept { absences, absent_ns, honoured }
}

fn totals(
    asked: OurGuest<'_>,
    (outcome, found): (&Outcome, &Found),
    lock_free: Known<f64>,
    why: &mut Why,
) -> Totals {
    let acquisitions = outcome.acquisitions();
    let acquisitions_per_second = acquisitions as f64 / outcome.window.as_secs_f64();
    let lock_free = lock_free.and_then(|per_second| {
        let none = "the lock-free run completed no section inside its window";
        if per_second > 0.0 { Ok(per_second) } else { Err(none.into()) }
    });
    let lock_free_per_second = lock_free.as_ref().ok().copied();
    let ideal = lock_free.and_then(|lock_free| ideal(lock_free, asked, outcome));
    if let Err(Unknown(reason)) = &ideal {
        for figure in ["lock_free_per_second", "ideal_per_second", "efficiency"] {
            why.explain(format!("totals.{figure}"), reason.clone());
        }
    }
    let ideal_per_second = ideal.ok();
    if outcome.lost_updates.is_none() {
        let reason = if asked.ours.oracle {
            "without a lock, updates may be lost"
        } else {
            "not watched (--oracle off)"
        };
        why.explain("totals.lost_updates", reason);
    }
    let run_ns: Option<u64> = outcome.vcpus.iter().map(|vcpu| vcpu.run_ns).sum();
    let lock_cpu_ns = outcome.lock_cpu.map(ns);
    let lock_cpu_share = lock_cpu_ns.zip(run_ns).map(|(in_locks, run)| in_locks as f64 / run.max(1) as f64);
    if run_ns.is_none() {
        why.explain("totals.run_ns", "it is not measured with this scheduler on this host");
    }
    if lock_cpu_share.is_none() {
        let reason = "only the workload `mixed` measures it, with a lock, under --sched vmm";
        why.explain("totals.lock_cpu_ns", reason);
        why.explain("totals.lock_cpu_share", reason);
    }
    Totals {
        acquisitions,
        reads: outcome.reads,
        acquisitions_per_second,
        lock_free_per_second,
        ideal_per_second,
        efficiency: ideal_per_second.map(|ideal| acquisitions_per_second / ideal),
        cpu_ns: ns(found.cpu_time),
        run_ns,
        lock_cpu_ns,
        lock_cpu_share,
        lost_updates: outcome.lost_updates,
    }
}

/// The most that any lock lets through, if the workload has such a bound: lock-free throughput, and at most locks / hold where
/// all sections are of one length.
fn ideal(lock_free_per_second: f64, asked: OurGuest<'_>, outcome: &Outcome) -> Known<f64> {
    match outcome.ideal {
        Ideal::Serial => {
            let hold = asked.ours.mix.mean_hold(asked.ours.hold).as_secs_f64();
            let serial = if hold > 0.0 { f64::from(asked.ours.lock_count) / hold } else { f64::INFINITY };
            Ok(lock_free_per_second.min(serial))
        }
        Ideal::LockFree => Ok(lock_free_per_second),
        Ideal::Unknown => Err(format!(
            "workload {} has no ideal: its operations are neither sections of one known length nor the same without a lock",
            asked.ours.workload
        )
        .into()),
    }
}

fn pmu(found: &Found, why: &mut Why) -> Option<BTreeMap<String, Option<u64>>> {
    let counted = why.known("pmu", found.pmu.clone())?;
    let count = |(name, count): (&str, _)| (name.to_owned(), why.known(format!("pmu.{name}"), count));
    Some(counted.into_iter().map(count).collect())
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
        why.explain("fairness.jain", reason);
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
    let pending = outcome.pending_waits.as_deref().map_err(Clone::clone);
    distribution("wait_ns", &outcome.wait, pending, outcome.tsc_khz, why)
}

/// A section that is not over when the window closes is one of very many: holders do not starve.
fn holds(outcome: &Outcome, why: &mut Why) -> Distribution {
    distribution("hold_ns", &outcome.hold, Err("only waits are looked at".into()), outcome.tsc_khz, why)
}

fn unlocks(outcome: &Outcome, why: &mut Why) -> Distribution {
    distribution("unlock_ns", &outcome.unlock, Err("only waits are looked at".into()), outcome.tsc_khz, why)
}

fn activities(ByActivity { holder, head, waiter, halted, other }: ByActivity) -> Activities {
    Activities { holder, head, waiter, halted, other }
}

fn hint(outcome: &Outcome, why: &mut Why) -> Option<HintErrors> {
    let Some(check) = outcome.hint else {
        why.explain("hint", "this workload does not look: use --workload hint-check");
        return None;
    };
    let HintCheck { samples, moved_while_marked, still_while_unmarked, compared, contradicted } = check;
    let share = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
    let error_rate = if compared > 0 {
        share(contradicted, compared).max(share(moved_while_marked, samples))
    } else {
        share(moved_while_marked.saturating_add(still_while_unmarked), samples)
    };
    Some(HintErrors { samples, moved_while_marked, still_while_unmarked, compared, contradicted, error_rate })
}

fn grace(asked: OurGuest<'_>, outcome: &Outcome, why: &mut Why) -> Option<GraceCounts> {
    let Some(Graces { granted, expired, overrun_ns }) = outcome.graces else {
        let asked = if asked.run.rules.sched == Sched::Host {
            "the host's scheduler decides"
        } else {
            "not asked for"
        };
        why.explain("grace", asked);
        return None;
    };
    Some(GraceCounts { granted, expired, overrun_ns })
}

fn throttled(outcome: &Outcome, why: &mut Why) -> Option<ThrottledCounts> {
    let mut explain = |fields: [&str; 3], reason: &'static str| {
        fields.into_iter().for_each(|field| why.explain(format!("throttled.{field}"), reason));
    };
    if let Some(Throttled { times, holders, ns }) = outcome.throttled {
        explain(["periods", "throttled_periods", "pcpu_ns"], "the VMM kept the quota, and counts vCPUs");
        return Some(ThrottledCounts {
            times: Some(times),
            holders: Some(holders),
            total_ns: Some(ns),
            ..ThrottledCounts::default()
        });
    }
    let Some(KernelThrottled { periods, throttled_periods, pcpu_ns }) = outcome.throttled_by_kernel else {
        why.explain("throttled", "the guest had no quota");
        return None;
    };
    let reason = "the kernel kept the quota, and counts periods and pCPUs, not vCPUs";
    explain(["times", "holders", "total_ns"], reason);
    Some(ThrottledCounts {
        periods: Some(periods),
        throttled_periods: Some(throttled_periods),
        pcpu_ns: Some(pcpu_ns),
        ..ThrottledCounts::default()
    })
}

fn closed_by_heads(outcome: &Outcome, why: &mut Why) -> Option<ClosedByHeads> {
    const FREE: &str = "closed_by_heads.free_ns";
    let closed = why.known("closed_by_heads", outcome.closed.clone())?;
    let free_ns = if closed.free.buckets.is_empty() {
        why.explain(FREE, "no lock became free meanwhile");
        Distribution::default()
    } else {
        // Its times are in nanoseconds, of which there are a million in a millisecond.
        distribution(FREE, &closed.free, Err("an absence counts when it ends".into()), 1_000_000, why)
    };
    let (absences, off_ns, lost_ns) = (closed.absences, closed.off_ns, closed.lost_ns);
    Some(ClosedByHeads { absences, off_ns, free_ns, lost_ns })
}

fn switches(outcome: &Outcome, why: &mut Why) -> Option<SwitchCounts> {
    let SwitchReports { read, dropped } = why.known("switches", outcome.switches.clone())?;
    let switched_out_ready = outcome.vcpus.iter().filter_map(|vcpu| vcpu.switched_out_ready).sum();
    Some(SwitchCounts { read, dropped, switched_out_ready })
}

/// Noise from what else ran, by the kernel's ticks and by what the run's own threads noticed.
fn noise(found: &Found, seen: Known<Noise>, why: &mut Why) -> Noise {
    explain_noise(&seen, why);
    let noise = seen.unwrap_or_default();
    let share = |delay: RunDelay| delay.delayed.as_secs_f64() / delay.alive.as_secs_f64();
    Noise { run_delay_share: why.known("noise.run_delay_share", found.run_delay.clone().map(share)), ..noise }
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
    use std::collections::BTreeSet;

    use haltkick_vmm::Run;

    use super::*;
    use crate::settings::{InRecord, table};

    fn jain(acquisitions: &[u64]) -> (Option<f64>, BTreeMap<String, String>) {
        let of = |&acquisitions| VcpuOutcome { acquisitions, ..VcpuOutcome::default() };
        let mut why = Why::default();
        let vcpus: Vec<_> = acquisitions.iter().map(of).collect();
        (fairness(&vcpus, &mut why).jain, why.0)
    }

    #[test]
    fn a_guest_that_counted_beyond_all_numbers_has_a_record() {
        let mut outcome = crate::measure::synthetic::outcome_of(Run::default().our(0), 1e6, 1 << 20);
        let most = u64::MAX;
        outcome.hint =
            Some(HintCheck { moved_while_marked: most, still_while_unmarked: most, ..HintCheck::default() });
        let hint = hint(&outcome, &mut Why::default()).expect("it has looked");
        assert!(hint.error_rate.is_finite());
    }

    #[test]
    fn fairness_needs_two_sections_per_vcpu_and_else_has_a_reason() {
        assert_eq!(jain(&[2, 2]).0, Some(1.0));
        assert_eq!(jain(&[4, 0]).0, Some(0.5));
        for too_few in [&[1, 2][..], &[0, 0]] {
            let (jain, why) = jain(too_few);
            assert_eq!(jain, None, "{too_few:?}");
            assert!(why["fairness.jain"].contains("sections among 2 vCPUs"), "{why:?}");
        }
    }

    #[test]
    fn every_setting_has_its_field_and_every_field_its_setting() {
        let schema = serde_json::to_value(schemars::schema_for!(Record)).unwrap();
        let fields_of = |pointer: &str| -> BTreeSet<String> {
            schema.pointer(pointer).unwrap()["properties"].as_object().unwrap().keys().cloned().collect()
        };
        let (record, timing) = (fields_of(""), fields_of("/$defs/Timing"));
        let config = fields_of("/$defs/Config");
        let mut unknown = config.clone();
        for told_with_others in
            ["guest", "beside", "ring_reason", "pv_backend_reason", "spin_rounds", "schedule_sha256"]
        {
            assert!(unknown.remove(told_with_others), "{told_with_others}");
        }
        for setting in table::all() {
            let is_told = match &setting.in_record {
                InRecord::At(path) => match path.split_once('.') {
                    Some(("config", field)) => {
                        unknown.remove(field);
                        config.contains(field)
                    }
                    Some(("timing", field)) => timing.contains(field),
                    _ => record.contains(*path),
                },
                InRecord::No(reason) => !reason.is_empty(),
            };
            assert!(is_told, "{} is told nowhere", setting.name);
        }
        assert!(unknown.is_empty(), "no setting fills {unknown:?}");
    }
}
