//! The outcome of a run that went as it should, and of kernels whose consoles are made up.

use std::time::Duration;

use haltkick_vmm::{
    AnyOutcome, ByActivity, Complaints, Costs, Ended, Found, Guest, Ideal, LinuxEnd, LinuxOutcome, OurGuest,
    Outcome, PairTicks, PreemptedSource, PvBackend, Ring, Run, RunDelay, TicksHistogram, VcpuOutcome,
    WorkSpeed,
};

use crate::measure::console::{Heard, RunResult};

/// A tick is a nanosecond.
const TSC_KHZ: u64 = 1_000_000;
/// Length of most waits; one in ten takes ten times as long.
const WAIT_NS: u64 = 5_000;

/// Sections per second without any lock: as many as the pCPUs have time for.
pub(super) fn lock_free(asked: OurGuest<'_>) -> f64 {
    let section = asked.ours.shape.mean_hold(asked.ours.hold) + asked.ours.think;
    asked.run.cpus.len().min(asked.guest.vcpus as usize) as f64
        / section.max(Duration::from_nanos(1)).as_secs_f64()
}

#[expect(clippy::too_many_lines, reason = "its one literal names every field of an outcome")]
pub(crate) fn of(asked: OurGuest<'_>, per_second: f64) -> Outcome {
    let of_work = asked.ours.shape.work().map(|sections| {
        (sections, Duration::from_secs_f64((sections as f64 / per_second.max(1e-3)).min(1e6)))
    });
    let (sections, window, completion) = match of_work {
        Some((sections, took)) if took <= asked.run.window => (sections, took, Some(took)),
        _ => ((per_second * asked.run.window.as_secs_f64()).round() as u64, asked.run.window, None),
    };
    let vcpus = u64::from(asked.guest.vcpus);
    let share = asked.run.cpus.len() as f64 / asked.guest.vcpus as f64;
    let run_ns = (window.as_nanos() as f64 * share.min(1.0)) as u64;
    let vcpu = |index: u64| VcpuOutcome {
        acquisitions: sections / vcpus + u64::from(index < sections % vcpus),
        run_ns: Some(run_ns),
        steal_ns: Some(window.as_nanos() as u64 - run_ns),
        preemptions: 10,
        waits: Some(0),
        kicks: Some(0),
        ..VcpuOutcome::default()
    };
    Outcome {
        ring: if asked.run.ring == Ring::Ring0 { Ring::Ring0 } else { Ring::Ring3 },
        ring_reason: "as the test has it".into(),
        pv_backend: PvBackend::Vmm,
        pv_backend_reason: "as the test has it".into(),
        tsc_khz: TSC_KHZ,
        work_rate: asked.run.work_rate.unwrap_or(1 << 20),
        memory_bytes: 0,
        residence: Err("no memory in a test".into()),
        start_up: Duration::from_millis(1),
        patched_sites: 0,
        pair_ticks: PairTicks::default(),
        calls: None,
        window,
        completion,
        lock_cpu: None,
        lost_updates: (asked.ours.lock != "none").then_some(0),
        wait: waits(sections),
        costs: Costs::default(),
        ideal: Ideal::Serial,
        unlock: TicksHistogram::default(),
        times: vec![],
        reads: 0,
        tsc_steps_back: 0,
        pending_waits: Ok(vec![]),
        work: vec![Some(WorkSpeed { over_promised: 1.0, pieces: 100 }); asked.guest.vcpus as usize],
        hold: histogram(&[(asked.ours.hold.as_nanos() as u64, sections)]),
        entered: vec![],
        lock_events: vec![],
        vm_exits: vec![],
        kvm_stats: Err("no KVM in a test".into()),
        preemptions: Some(ByActivity { other: 10 * vcpus, ..ByActivity::default() }),
        preempted_ns: Some(ByActivity { other: 1_000_000 * vcpus, ..ByActivity::default() }),
        lost_ns: Some(ByActivity::default()),
        skipped_losses: 0,
        closed: Err("no heads in a test".into()),
        hint: None,
        graces: None,
        throttled: None,
        throttled_by_kernel: None,
        handed: None,
        injected: None,
        switches: Err("no switches in a test".into()),
        preempted_source: Ok(PreemptedSource::Vmm),
        pinning_lost: None,
        vcpus: (0..vcpus).map(vcpu).collect(),
    }
}

/// Findings of a run whose guests came to these outcomes.
pub(crate) fn found(run: &Run, cpu_time: Duration, outcomes: Vec<AnyOutcome>) -> Found {
    let ended = |(guest, outcome): (&Guest, AnyOutcome)| Ended {
        name: guest.name.clone(),
        result: Ok(outcome),
        explanation: None,
        console: String::new(),
    };
    Found {
        started: Ok(Duration::from_millis(1)),
        cpu_before: Ok(Duration::from_millis(2)),
        cpu_time,
        windows: 1,
        run_delay: Ok(RunDelay { alive: cpu_time, delayed: Duration::ZERO }),
        pmu: Err("no PMU in a test".into()),
        schedule: None,
        profile: None,
        trace: None,
        guests: run.guests.iter().zip(outcomes).map(ended).collect(),
    }
}

fn waits(sections: u64) -> TicksHistogram {
    let long = sections / 10;
    histogram(&[(WAIT_NS, sections - long), (10 * WAIT_NS, long)])
}

pub(super) fn histogram(values: &[(u64, u64)]) -> TicksHistogram {
    let mut histogram = TicksHistogram::empty();
    values.iter().filter(|(_, count)| *count > 0).for_each(|&(value, count)| histogram.count(value, count));
    histogram
}

/// A guest that ends like this and has printed these lines.
pub(crate) fn seen(run: &Run, end: LinuxEnd, lines: &[String]) -> RunResult {
    let mut heard = Heard::default();
    lines.iter().for_each(|line| heard.hear(line));
    let outcome = LinuxOutcome {
        end,
        run: Duration::from_secs(3),
        user_space: Some(Duration::from_secs(1)),
        complaints: Complaints::new(),
        command_line: "console=ttyS0".into(),
        obstacle: None,
        pv_features: vec![],
        tsc_khz: 1_000_000,
        vm_exits: vec![],
        kvm_stats: Ok(vec![]),
        vcpus: vec![],
        pinning_lost: None,
    };
    let found = found(run, Duration::from_secs(5), vec![AnyOutcome::Linux(Box::new(outcome))]);
    RunResult { found, heard, inside: None }
}
