//! From what the guest and the scheduler left behind to an [`Outcome`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use haltkick_hypercalls::{
    COST_COUNTING, COST_ORACLE, COST_ORDERED_STAMP, COST_SECTION, COST_STAMP, Histogram, PAIR_AT_SITES,
    PAIR_COMPILED_IN, PAIR_THROUGH_TABLE, VcpuArea, WORK_PROBE_ITERATIONS, WORK_PROBES, WorkloadFlags,
};

use crate::guest::memory::Memory;
use crate::host::cgroup::KernelThrottled;
use crate::host::clock::{Ticks, TscRate};
use crate::host::error::{Known, RunError};
use crate::image::file::Image;
use crate::machine::build::Machine;
use crate::machine::vcpu::Exit;
use crate::machine::{Decided, PvBackend};
use crate::observe::TicksHistogram;
use crate::run::asked::{Chosen, OurGuest};
use crate::run::outcome::{Costs, HintCheck, Ideal, Outcome, PairTicks, VcpuOutcome, WorkSpeed};
use crate::run::supervise::Observed;
use crate::sched::Finished;
use crate::sched::books::{Books, ClosedByHeads, is_qspinlock};
use crate::sched::guest_run::GuestRun;
use crate::sched::hints::PreemptedSource;
use crate::sched::run_delay::SchedStat;

/// Everything that is known when the threads have ended.
pub(crate) struct Facts<'a> {
    pub(crate) seen: GuestFacts<'a>,
    pub(crate) machine: &'a Machine,
    pub(crate) preempted_source: &'a Known<PreemptedSource>,
    pub(crate) guest: &'a GuestRun<'a>,
    pub(crate) observed: Observed,
    pub(crate) finished: &'a [Finished],
    /// The host's TSC at the start of the run.
    pub(crate) start_tsc: u64,
}

/// The facts that every engine knows, most of them from the guest's shared memory.
pub(crate) struct GuestFacts<'a> {
    pub(crate) asked: OurGuest<'a>,
    pub(crate) image: &'a Image,
    pub(crate) memory: &'a Memory,
    pub(crate) chosen: Chosen,
    pub(crate) patched_sites: usize,
    pub(crate) tsc_khz: u64,
    pub(crate) decided: Decided,
}

/// Returns the outcome as far as shared memory tells it. `unknown`: why nothing is known of the vCPUs' threads.
pub(crate) fn of_guest(seen: &GuestFacts<'_>, unknown: &'static str) -> Outcome {
    let mut times = times(seen);
    let [wait, hold, unlock] = ["wait", "hold", "unlock"].map(|name| {
        let at = times.iter().position(|(known, _)| known == name);
        at.map_or_else(TicksHistogram::default, |at| times.remove(at).1)
    });
    let Decided { ring, ring_reason, pv_backend, pv_backend_reason } = seen.decided.clone();
    Outcome {
        ring,
        ring_reason,
        pv_backend,
        pv_backend_reason,
        tsc_khz: seen.tsc_khz,
        work_rate: seen.memory.control().work_rate.load(Ordering::Relaxed),
        memory_bytes: seen.memory.pool_bytes(),
        residence: Err(unknown.into()),
        start_up: Duration::ZERO,
        patched_sites: seen.patched_sites,
        pair_ticks: pair_ticks(seen),
        calls: seen.image.calls(seen.chosen.lock as usize, seen.asked.guest.pv),
        window: Duration::ZERO,
        completion: None,
        lock_cpu: None,
        lost_updates: None,
        costs: costs(seen),
        ideal: ideal(seen),
        wait,
        pending_waits: Err(unknown.into()),
        hold,
        unlock,
        times,
        reads: sum(seen, |area| &area.results.reads),
        tsc_steps_back: sum(seen, |area| &area.results.tsc_steps_back),
        work: work_speeds(seen),
        entered: entered(seen),
        lock_events: lock_events(seen),
        vm_exits: Vec::new(),
        kvm_stats: Err(unknown.into()),
        preemptions: None,
        preempted_ns: None,
        lost_ns: None,
        skipped_losses: 0,
        closed: Err(unknown.into()),
        hint: hint_check(seen, &[]),
        graces: None,
        throttled: None,
        throttled_by_kernel: None,
        handed: None,
        injected: None,
        switches: Err(unknown.into()),
        preempted_source: Err(unknown.into()),
        pinning_lost: None,
        vcpus: Vec::new(),
    }
}

pub(crate) fn outcome(facts: &Facts<'_>) -> Result<Outcome, RunError> {
    let Facts { seen, observed, finished, guest, .. } = facts;
    let run = seen.asked.run;
    check_stacks(seen.memory, seen.asked.guest.vcpus)?;
    let rate = guest.tsc.rate();
    let booted_tsc = guest.tsc.of_host(facts.start_tsc);
    let start_ticks = seen.memory.control().workload_tsc.load(Ordering::Relaxed).saturating_sub(booted_tsc);
    let switched = observed.switched.as_ref();
    let mut all = Books::default();
    finished.iter().for_each(|vcpu| all.add(&vcpu.account.books));
    if let Some(switched) = switched {
        all.add(&switched.books);
    }
    let exact = (!run.has_vcpu_threads() || switched.is_some()) && run.attribution;
    let injected = run.deschedule.is_some() && run.attribution;
    Ok(Outcome {
        residence: match run.engine.machine() {
            Some(_) => Err("memory of a simulated machine".into()),
            None => seen.memory.residence(),
        },
        start_up: rate.nanoseconds(Ticks(start_ticks)).into(),
        window: guest.window.length(),
        completion: completion(facts),
        lock_cpu: lock_cpu(facts),
        lost_updates: check_exclusion(seen)?,
        pending_waits: observed.pending_waits.clone().unwrap_or(Err("the window did not close".into())),
        vm_exits: vm_exits(finished),
        kvm_stats: kvm_stats(finished),
        preemptions: exact.then_some(all.preemptions_by),
        preempted_ns: exact.then_some(all.preempted_ns_by),
        lost_ns: (exact || injected).then_some(all.lost_ns_by),
        skipped_losses: all.scans.skipped,
        closed: closed_by_heads(facts, &all),
        hint: hint_check(seen, finished),
        graces: (!run.rules.grace.is_zero()).then_some(all.graces),
        throttled: guest.purse.as_ref().map(|_| all.throttled),
        throttled_by_kernel: throttled_by_kernel(observed),
        handed: (!run.has_vcpu_threads())
            .then(|| finished.iter().map(|vcpu| vcpu.account.turns.handed).sum()),
        injected: injected.then_some(all.injected_by),
        switches: match (guest.watcher.reports(), switched) {
            (Ok(_), Some(switched)) => Ok(switched.reports),
            (reports, _) => Err(reports.err().unwrap_or_else(|| "".into())),
        },
        preempted_source: preempted_source(facts),
        pinning_lost: guest.pinning_lost.get().cloned(),
        vcpus: finished.iter().map(|vcpu| vcpu_outcome(facts, vcpu)).collect(),
        ..of_guest(seen, "")
    })
}

fn pair_ticks(seen: &GuestFacts<'_>) -> PairTicks {
    let slots = &seen.memory.control().pair_ticks;
    let measured = |slot: usize| Some(slots[slot].load(Ordering::Relaxed)).filter(|&ticks| ticks > 0);
    PairTicks {
        compiled_in: measured(PAIR_COMPILED_IN),
        through_table: measured(PAIR_THROUGH_TABLE),
        patched: measured(PAIR_AT_SITES).filter(|_| seen.patched_sites > 0),
    }
}

/// Fails if a stack overflowed: the memory behind it was overwritten, so no value in it is valid.
fn check_stacks(memory: &Memory, vcpus: u32) -> Result<(), RunError> {
    let overrun = |vcpu| memory.overrun_stack(vcpu).map(|stack| (vcpu, stack));
    match (0..vcpus).find_map(overrun) {
        Some((vcpu, stack)) => {
            Err(RunError::GuestFailed { vcpu, reason: format!("it has used more than its {stack}") })
        }
        None => Ok(()),
    }
}

/// Returns the cause of a guest's failure: a stack overflow if there was one, else `failure` itself.
pub(crate) fn cause(facts: &Facts<'_>, failure: RunError) -> RunError {
    use RunError::{ExclusionViolated, GuestException, GuestFailed, GuestPanic, HostLacks, NoProgress};
    let is_of_guest = match failure {
        ExclusionViolated(_) | GuestException { .. } | GuestFailed { .. } | GuestPanic { .. } => true,
        // A simulated CPU lacks instructions that a stack has written over the code.
        HostLacks(_) | NoProgress(_) => true,
        _ => false,
    };
    match check_stacks(facts.seen.memory, facts.seen.asked.guest.vcpus) {
        Err(GuestFailed { vcpu, reason: stack }) if is_of_guest => match failure {
            GuestFailed { reason, .. } if reason == stack => GuestFailed { vcpu, reason },
            failure => GuestFailed { vcpu, reason: format!("{stack}, and then: {failure}") },
        },
        _ => failure,
    }
}

/// Returns the upper bound of the throughput, from the workload's descriptor.
fn ideal(seen: &GuestFacts<'_>) -> Ideal {
    let flags = seen.image.workloads[seen.chosen.workload as usize].workload_flags();
    if flags.has(WorkloadFlags::IDEAL_IS_SERIAL) && seen.asked.ours.shape.is_plain() {
        Ideal::Serial
    } else if flags.has(WorkloadFlags::IDEAL_IS_SERIAL) || flags.has(WorkloadFlags::IDEAL_IS_LOCK_FREE) {
        Ideal::LockFree
    } else {
        Ideal::Unknown
    }
}

fn costs(seen: &GuestFacts<'_>) -> Costs {
    let slots = &seen.memory.control().cost_ticks;
    let measured = |slot: usize| Some(slots[slot].load(Ordering::Relaxed)).filter(|&ticks| ticks > 0);
    Costs {
        stamp: measured(COST_STAMP),
        ordered_stamp: measured(COST_ORDERED_STAMP),
        oracle: measured(COST_ORACLE),
        section: measured(COST_SECTION),
        counting: measured(COST_COUNTING),
    }
}

/// Sections of each lock that vCPUs say they have entered; empty without the exclusion checker.
fn entered(seen: &GuestFacts<'_>) -> Vec<u64> {
    let entered = |lock| add_up((0..seen.asked.guest.vcpus).map(|vcpu| seen.memory.entered(vcpu, lock)));
    if seen.asked.ours.oracle { (0..seen.asked.ours.lock_count).map(entered).collect() } else { vec![] }
}

/// The oracles' verdict, lock by lock: an excess on one must not make up for a loss on another. The vCPUs were stopped where
/// they were, so one that was just entering may have counted on the lock's side and not on its own: the plain counter may
/// exceed the sum by one per lock, never fall short of it. `None`: the exclusion checker was off.
pub(crate) fn check_exclusion(seen: &GuestFacts<'_>) -> Result<Option<u64>, RunError> {
    if seen.image.locks[seen.chosen.lock as usize].is_lock_free() || !seen.asked.ours.oracle {
        return Ok(None);
    }
    let memory = seen.memory;
    let oracles = (0..seen.asked.ours.lock_count).map(|lock| memory.oracle(lock));
    let overlaps: u64 =
        oracles.clone().map(|oracle| u64::from(oracle.overlaps.load(Ordering::Relaxed))).sum();
    let (mut entered, mut lost) = (0, 0);
    for (by_vcpus, oracle) in self::entered(seen).into_iter().zip(oracles) {
        entered = add_up([entered, by_vcpus].into_iter());
        lost = add_up([lost, by_vcpus.saturating_sub(oracle.entered.load(Ordering::Relaxed))].into_iter());
    }
    if overlaps > 0 || lost > 0 {
        let seen_inside = match overlaps {
            0 => "two vCPUs were inside at once and did not see each other".into(),
            overlaps => format!("{overlaps} times two vCPUs were inside at once"),
        };
        return Err(RunError::ExclusionViolated(format!(
            "lock `{}`: {seen_inside}, {lost} of {entered} updates lost",
            seen.asked.ours.lock
        )));
    }
    Ok(Some(lost))
}

/// Sum of what the guest wrote, which may be anything.
fn add_up(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}

fn sum(seen: &GuestFacts<'_>, field: impl Fn(&VcpuArea) -> &AtomicU64) -> u64 {
    let counted = |vcpu| field(seen.memory.area(vcpu)).load(Ordering::Relaxed);
    add_up((0..seen.asked.guest.vcpus).map(counted))
}

/// The window ends with the work, if it is done at all.
fn completion(facts: &Facts<'_>) -> Option<Duration> {
    let sections = facts.seen.asked.ours.shape.work()?;
    let done = sum(&facts.seen, |area| &area.results.acquisitions);
    (done >= sections).then(|| facts.guest.window.length())
}

fn lock_cpu(facts: &Facts<'_>) -> Option<Duration> {
    let of_vcpu = |vcpu| facts.seen.memory.area(vcpu).results.lock_ticks.load(Ordering::Relaxed);
    // Wrapping, as the guest adds them up: where TSCs differ, few sections of one vCPU may take less than no time.
    let ticks = (0..facts.seen.asked.guest.vcpus).map(of_vcpu).fold(0, u64::wrapping_add);
    let time = facts.guest.tsc.rate().nanoseconds(Ticks(ticks));
    (!facts.seen.asked.run.has_vcpu_threads() && ticks > 0).then(|| time.into())
}

/// Returns the times that the workload reports, under the workload's names.
fn times(seen: &GuestFacts<'_>) -> Vec<(String, TicksHistogram)> {
    let names = seen.image.workloads[seen.chosen.workload as usize].times.iter().enumerate();
    let names = names.filter(|(_, name)| !name.is_empty());
    names.map(|(slot, name)| (name.clone(), sum_histograms(seen, slot))).collect()
}

fn sum_histograms(seen: &GuestFacts<'_>, slot: usize) -> TicksHistogram {
    let mut sum = TicksHistogram::empty();
    for vcpu in 0..seen.asked.guest.vcpus {
        let histogram: &Histogram = &seen.memory.area(vcpu).results.times[slot];
        for (total, count) in sum.buckets.iter_mut().zip(&histogram.buckets) {
            *total += u64::from(count.load(Ordering::Relaxed));
        }
        sum.max = sum.max.max(histogram.max.load(Ordering::Relaxed));
        sum.sum = sum.sum.saturating_add(histogram.sum.load(Ordering::Relaxed));
    }
    sum
}

/// Fewest timed pieces of work from which a vCPU's speed is told: some of them are interrupted.
const PIECES_NEEDED: usize = 5;

/// How fast each vCPU's work went, by the pieces that it timed.
fn work_speeds(seen: &GuestFacts<'_>) -> Vec<Option<WorkSpeed>> {
    let rate = seen.memory.control().work_rate.load(Ordering::Relaxed);
    // The rate is in iterations per 2^20 ns, the clock's in ticks per 10^6 ns.
    let promised =
        WORK_PROBE_ITERATIONS as f64 * f64::from(1 << 20) / rate.max(1) as f64 * seen.tsc_khz as f64 / 1e6;
    let speed = |vcpu| {
        let probes = &seen.memory.area(vcpu).work;
        let taken = probes.taken.load(Ordering::Relaxed);
        let kept = (taken as usize).min(WORK_PROBES);
        let mut ticks: Vec<u32> =
            probes.ticks[..kept].iter().map(|ticks| ticks.load(Ordering::Relaxed)).collect();
        ticks.sort_unstable();
        (kept >= PIECES_NEEDED)
            .then(|| WorkSpeed { over_promised: promised / f64::from(ticks[kept / 2].max(1)), pieces: taken })
    };
    (0..seen.asked.guest.vcpus).map(speed).collect()
}

/// The locks' events of all vCPUs together. The guest counts latencies in ticks; under the names that they have here
/// everybody expects nanoseconds.
fn lock_events(seen: &GuestFacts<'_>) -> Vec<(String, u64)> {
    let total = |(slot, name): (usize, &String)| {
        let counted = |vcpu| seen.memory.area(vcpu).results.lock_events[slot].load(Ordering::Relaxed);
        (name.clone(), shown(name, (0..seen.asked.guest.vcpus).map(counted), seen.tsc_khz))
    };
    seen.image.events.iter().enumerate().map(total).collect()
}

/// Combines the values of all vCPUs into the one that is shown under `name`.
fn shown(name: &str, of_vcpus: impl Iterator<Item = u64>, tsc_khz: u64) -> u64 {
    if name.ends_with("_most") {
        return of_vcpus.max().unwrap_or(0);
    }
    let sum = of_vcpus.fold(0, u64::wrapping_add);
    if name.contains("_latency_") {
        return TscRate::of_khz(tsc_khz).nanoseconds(Ticks(sum)).0;
    }
    sum
}

/// Returns the samples of the workload that checks the flag, compared with the books of vCPUs that have `finished`.
fn hint_check(seen: &GuestFacts<'_>, finished: &[Finished]) -> Option<HintCheck> {
    let check = HintCheck {
        samples: sum(seen, |area| &area.hint.samples),
        moved_while_marked: sum(seen, |area| &area.hint.moved_while_marked),
        still_while_unmarked: sum(seen, |area| &area.hint.still_while_unmarked),
        compared: finished.iter().map(|vcpu| vcpu.account.record.hints_compared).sum(),
        contradicted: finished.iter().map(|vcpu| vcpu.account.record.hints_contradicted).sum(),
    };
    (check.samples > 0).then_some(check)
}

fn closed_by_heads(facts: &Facts<'_>, all: &Books) -> Known<ClosedByHeads> {
    let OurGuest { run, guest, ours, .. } = facts.seen.asked;
    let format = facts.seen.memory.control().lock_word.load(Ordering::Relaxed);
    if !guest.pv || !is_qspinlock(format) {
        return Err("only heads of paravirtual qspinlocks forbid stealing while they spin".into());
    }
    if run.has_vcpu_threads() {
        return Err("the host's scheduler does not look at the lock when it takes a vCPU off".into());
    }
    if !run.attribution || !ours.oracle {
        return Err("it needs attribution, and the oracle for the time at which a lock became free".into());
    }
    Ok(all.closed.clone())
}

fn throttled_by_kernel(observed: &Observed) -> Option<KernelThrottled> {
    let [Some(open), Some(close)] = observed.quota else { return None };
    Some(KernelThrottled {
        periods: close.periods.saturating_sub(open.periods),
        throttled_periods: close.throttled_periods.saturating_sub(open.throttled_periods),
        pcpu_ns: close.pcpu_ns.saturating_sub(open.pcpu_ns),
    })
}

pub(crate) fn vm_exits(finished: &[Finished]) -> Vec<(&'static str, u64)> {
    let total = |kind: usize| finished.iter().map(|finished| finished.vcpu.exits.of(kind)).sum();
    Exit::NAMES.iter().enumerate().map(|(kind, &name)| (name, total(kind))).collect()
}

pub(crate) fn kvm_stats(finished: &[Finished]) -> Known<Vec<(String, u64)>> {
    let mut total: Vec<(String, u64)> = Vec::new();
    for vcpu in finished {
        for (name, value) in vcpu.vcpu.kvm_stats().map_err(|error| error.to_string())? {
            match total.iter_mut().find(|(known, _)| *known == name) {
                Some((_, sum)) => *sum += value,
                None => total.push((name, value)),
            }
        }
    }
    Ok(total)
}

fn preempted_source(facts: &Facts<'_>) -> Known<PreemptedSource> {
    match facts.preempted_source {
        Ok(PreemptedSource::Kvm | PreemptedSource::Bpf) if !facts.observed.preempted_flag_seen => {
            Err("the flag was to be written by KVM or a BPF program, but was never seen set in this run"
                .into())
        }
        source => source.clone(),
    }
}

fn vcpu_outcome(facts: &Facts<'_>, vcpu: &Finished) -> VcpuOutcome {
    let results = &facts.seen.memory.area(vcpu.vcpu.id).results;
    let books = &vcpu.account.books;
    let at = |stats: &Vec<Option<SchedStat>>| stats.get(vcpu.vcpu.id as usize).copied().flatten();
    let (run_ns, steal_ns) = match facts.observed.sched_stats.each_ref().map(at) {
        _ if !facts.seen.asked.run.has_vcpu_threads() => (Some(books.run_ns), Some(books.steal_ns)),
        [Some(open), Some(close)] => (Some(close.run_ns - open.run_ns), Some(close.delay_ns)),
        _ => (None, None),
    };
    let switched = facts.observed.switched.as_ref();
    let in_kernel = matches!(facts.machine.decided.pv_backend, PvBackend::Kvm | PvBackend::Ipi);
    VcpuOutcome {
        acquisitions: results.acquisitions.load(Ordering::Relaxed),
        run_ns,
        steal_ns,
        preemptions: books.preemptions,
        switched_out_ready: switched.and_then(|of| of.switched_out_ready.get(vcpu.vcpu.id as usize).copied()),
        waits: if in_kernel { halts(vcpu) } else { Some(books.waits) },
        kicks: (!in_kernel).then_some(books.kicks),
        timeline: books.timeline.clone(),
        ..VcpuOutcome::default()
    }
}

/// Sleeps that KVM served. None are counted where HLT does not exit.
pub(crate) fn halts(vcpu: &Finished) -> Option<u64> {
    let stats = vcpu.vcpu.kvm_stats().ok()?;
    stats.into_iter().find(|(name, _)| name == "halt_exits").map(|(_, count)| count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_in_nanoseconds_and_the_most_is_one_vcpus() {
        let of_vcpus = || [300, 2_700].into_iter();
        assert_eq!(shown("pv_kick_unlock", of_vcpus(), 3_000_000), 3_000);
        assert_eq!(shown("pv_latency_kick", of_vcpus(), 3_000_000), 1_000);
        assert_eq!(shown("sleep_latency_wake", of_vcpus(), 3_000_000), 1_000);
        assert_eq!(shown("overtaken_most", of_vcpus(), 3_000_000), 2_700);
    }
}
