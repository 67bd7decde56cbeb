//! A single record as people read it.

use std::fmt::Write as _;

use crate::record::per_node::PerNode;
use crate::record::{
    Activities, ClosedByHeads, Distribution, GraceCounts, LockCost, Record, ScheduleKept, ThrottledCounts,
};
use crate::text::quantity::{LATENCIES, count, event, si, significant, time_ns};

/// Name and text of a line.
type Line = (String, String);

/// The record in about fifteen lines of at most 100 columns.
pub(crate) fn record(record: &Record) -> String {
    let lines = [head(record), throughput(record), times(record), preemptions(record), costs(record)];
    let mut text = String::new();
    for (name, value) in lines.into_iter().flatten() {
        let _ = writeln!(text, "{name:<14} {value}");
    }
    text
}

fn line(name: &str, value: impl Into<String>) -> Line {
    (name.into(), value.into())
}

/// Lines about what ran.
fn head(record: &Record) -> Vec<Line> {
    let guest = Some(&record.config.guest).filter(|guest| !guest.is_empty() && *guest != "guest");
    let engine = match record.config.engine.as_str() {
        "qemu-tcg" => Some("qemu-tcg: emulated, not comparable with figures of a real CPU"),
        "qemu-kvm" => Some("qemu-kvm"),
        _ => None,
    };
    let guest = guest.map(|guest| line("guest", format!("{guest}, run {}", record.run_id)));
    let engine = engine.map(|engine| line("engine", engine));
    guest.into_iter().chain([line("cell", cell(record))]).chain(engine).collect()
}

/// How much was done, and how evenly.
fn throughput(record: &Record) -> Vec<Line> {
    let (totals, timing) = (&record.totals, &record.timing);
    let per_second = format!("{}/s", si(totals.acquisitions_per_second));
    let ideal = totals.ideal_per_second.map(|ideal| format!("{}/s", si(ideal)));
    let mut lines = vec![
        line(
            "throughput",
            format!("{per_second} in {}{}", time_ns(timing.window_ns as f64), of_each_pcpu(record)),
        ),
        line("ideal", missing(record, "totals.ideal_per_second", ideal)),
    ];
    if record.config.work_sections.is_some() {
        let completion = timing.completion_ns.map(|ns| time_ns(ns as f64));
        lines.push(line("completion", missing(record, "timing.completion_ns", completion)));
    }
    let efficiency = totals.efficiency.map(significant);
    lines.push(line("efficiency", missing(record, "totals.efficiency", efficiency)));
    if let Some(speed) = &timing.work_speed {
        let percent = |share: f64| significant(share * 100.0);
        let (all, slowest, fastest) =
            (percent(speed.over_promised), percent(speed.slowest_vcpu), percent(speed.fastest_vcpu));
        let work = format!("{all} % of the promised speed, {slowest} to {fastest} % on single vCPUs");
        lines.push(line("work", work));
    }
    lines.push(line("fairness", fairness(record)));
    if let Some(nodes) = &record.per_node {
        lines.push(line("by node", by_node(nodes, record.timing.window_ns)));
    }
    lines
}

/// Throughput of the vCPUs that began on each NUMA node.
fn by_node(nodes: &[PerNode], window_ns: u64) -> String {
    let of_node = |PerNode { node, vcpus, acquisitions, .. }: &PerNode| {
        let rate = *acquisitions as f64 / (window_ns as f64 / 1e9);
        format!("{node}: {}/s by {vcpus} vCPUs", si(rate))
    };
    nodes.iter().map(of_node).collect::<Vec<_>>().join(", ")
}

/// The share of one pCPU in the throughput, and the time of that pCPU for one operation.
fn of_each_pcpu(record: &Record) -> String {
    let of_each = record.totals.acquisitions_per_second / record.config.cpus.len() as f64;
    if of_each > 0.0 {
        format!("; each pCPU {}/s, one in {}", si(of_each), time_ns(1e9 / of_each))
    } else {
        String::new()
    }
}

/// How long things took.
fn times(record: &Record) -> Vec<Line> {
    let mut lines = vec![
        line("wait", missing(record, "wait_ns", distribution(&record.wait_ns))),
        line("waiting", missing(record, "wait_ns", waiting(&record.wait_ns))),
        line("hold", missing(record, "hold_ns", distribution(&record.hold_ns))),
    ];
    if record.unlock_ns.count > 0 {
        lines.push(line("unlock", missing(record, "unlock_ns", distribution(&record.unlock_ns))));
    }
    let others = record.times_ns.iter();
    lines.extend(others.map(|(name, times)| line(name, missing(record, "times_ns", distribution(times)))));
    lines
}

/// Lines about preemptions: the activities that they hit, and what that did.
fn preemptions(record: &Record) -> Vec<Line> {
    let by_activity = |path: &str, values: &Option<Activities>, show: fn(u64) -> String| {
        missing(record, path, values.as_ref().map(|values| activities(values, show)))
    };
    let time: fn(u64) -> String = |ns| time_ns(ns as f64);
    let mut lines = vec![
        line("preemptions", by_activity("preemptions", &record.preemptions, count)),
        line("preempted", by_activity("preempted_ns", &record.preempted_ns, time)),
        line("lost by others", by_activity("lost_ns", &record.lost_ns, time)),
    ];
    if let Some(ClosedByHeads { absences, free_ns, lost_ns, .. }) = &record.closed_by_heads {
        let free_ns = free_ns.mean.map_or(0.0, |mean| mean * free_ns.count as f64);
        let (absences, free, lost) = (count(*absences), time_ns(free_ns), time(*lost_ns));
        lines.push(line("closed by head", format!("{absences} absences, free for {free}, lost {lost}")));
    }
    if let Some(hint) = &record.hint {
        let percent = significant(hint.error_rate * 100.0);
        lines.push(line("hint", format!("{percent} % of {} looks wrong", count(hint.samples))));
    }
    if let Some(GraceCounts { granted, expired, overrun_ns }) = &record.grace {
        let (granted, expired, overrun) = (count(*granted), count(*expired), time(*overrun_ns));
        lines
            .push(line("grace", format!("{granted} slices extended by {overrun}, {expired} without effect")));
    }
    lines.extend(record.throttled.as_ref().and_then(throttled));
    if let Some(injected) = &record.injected {
        let policy = record.config.deschedule.as_deref().unwrap_or("none");
        lines.push(line("on purpose", format!("{} ({policy})", activities(injected, count))));
    }
    if let Some(ScheduleKept { absences, absent_ns, honoured }) = &record.schedule {
        let (share, absent) = (significant(honoured * 100.0), time(*absent_ns));
        lines.push(line(
            "schedule",
            format!("{share} % of {} absences honoured, {absent} in all", count(*absences)),
        ));
    }
    lines
}

/// A line about a quota: the VMM counts vCPUs, the kernel periods and pCPUs.
fn throttled(counts: &ThrottledCounts) -> Option<Line> {
    let time = |ns: u64| time_ns(ns as f64);
    let text = match *counts {
        ThrottledCounts { times: Some(times), holders: Some(holders), total_ns: Some(total), .. } => {
            let (times, holders, total) = (count(times), count(holders), time(total));
            format!("{times} times, {total} in all, {holders} times with a lock held")
        }
        ThrottledCounts {
            periods: Some(periods),
            throttled_periods: Some(throttled),
            pcpu_ns: Some(total),
            ..
        } => {
            let (periods, throttled, total) = (count(periods), count(throttled), time(total));
            format!("in {throttled} of {periods} periods, pCPUs together for {total}")
        }
        _ => return None,
    };
    Some(line("throttled", text))
}

/// Lines about what the run cost.
fn costs(record: &Record) -> Vec<Line> {
    let totals = &record.totals;
    let cpu_time = time_ns(totals.cpu_ns as f64);
    let mut lines = vec![
        line("lock cost", lock_cost(&record.lock_cost)),
        line("lock events", largest(&record.lock_events)),
        line("vm exits", largest(&record.vm_exits)),
        line("cpu time", format!("{cpu_time} on {} pCPUs", record.config.cpus.len())),
    ];
    if let (Some(in_locks), Some(share)) = (totals.lock_cpu_ns, totals.lock_cpu_share) {
        let (in_locks, share) = (time_ns(in_locks as f64), significant(share * 100.0));
        lines.push(line("in locks", format!("{in_locks}, {share} % of the vCPUs' time on pCPUs")));
    }
    let lost = totals.lost_updates.map(|lost| lost.to_string());
    lines.push(line("lost updates", missing(record, "totals.lost_updates", lost)));
    lines
}

fn lock_cost(cost: &LockCost) -> String {
    let cycles = [
        ("patched", cost.patched_tsc_cycles),
        ("through a table", cost.through_table_tsc_cycles),
        ("compiled in", cost.compiled_in_tsc_cycles),
    ];
    let known = cycles.iter().filter_map(|(how, cycles)| Some(format!("{} {how}", significant((*cycles)?))));
    let cycles: Vec<String> = known.collect();
    let bytes = |bytes: Option<u32>| bytes.map_or("?".into(), |bytes| bytes.to_string());
    format!(
        "{} TSC cycles a pair; {} bytes a lock, {} a vCPU",
        if cycles.is_empty() { "unknown".into() } else { cycles.join(", ") },
        bytes(cost.lock_bytes),
        bytes(cost.cpu_bytes)
    )
}

fn cell(record: &Record) -> String {
    let config = &record.config;
    let form = if config.pv { " pv on" } else { "" };
    let slice = config.slice_ns.map_or(String::new(), |slice| format!(" slice {}", time_ns(slice as f64)));
    format!(
        "{}{form}, {} vCPUs on {} pCPUs, sched {}{slice}, ring {}, hold {}, think {}",
        config.lock,
        config.vcpus,
        config.cpus.len(),
        config.sched,
        config.ring,
        time_ns(config.hold_ns as f64),
        time_ns(config.think_ns as f64),
    )
}

fn fairness(record: &Record) -> String {
    let fairness = &record.fairness;
    let jain = missing(record, "fairness.jain", fairness.jain.map(significant));
    let starved = match fairness.starved_vcpus {
        Some(starved) if starved > 0 => {
            format!("; {starved} of {} vCPUs completed nothing", record.config.vcpus)
        }
        _ => String::new(),
    };
    format!(
        "Jain {jain}, {} to {} per vCPU{starved}",
        count(fairness.min_per_vcpu),
        count(fairness.max_per_vcpu)
    )
}

/// Quantiles, as far as there are any; "at least" before those that are decided by what had not ended.
fn distribution(times: &Distribution) -> Option<String> {
    let quantiles = [
        ("p50", times.p50),
        ("p90", times.p90),
        ("p99", times.p99),
        ("p99.9", times.p999),
        ("longest", times.longest.or(times.max)),
    ];
    let names = ["p50", "p90", "p99", "p999", "longest"];
    let known = quantiles.into_iter().zip(names).filter_map(|((shown, value), name)| {
        Some(format!("{shown} {}{}", at_least(times, name), time_ns(value?)))
    });
    let known: Vec<String> = known.collect();
    (!known.is_empty()).then(|| known.join(", "))
}

/// The cost of waiting, by time and not by section.
fn waiting(times: &Distribution) -> Option<String> {
    let half = time_ns(times.half_of_time?);
    let half = match at_least(times, "half_of_time") {
        "" => format!("{half} or more"),
        _ => format!("more than {half}"),
    };
    let pending = match times.pending {
        None => String::new(),
        Some(0) => "; none was pending at the end".into(),
        Some(1) => "; 1 was pending at the end".into(),
        Some(pending) => format!("; {pending} were pending at the end"),
    };
    Some(format!("half of all waiting time in waits of {half}{pending}"))
}

fn at_least(times: &Distribution, name: &str) -> &'static str {
    if times.at_least.iter().any(|figure| figure == name) { "> " } else { "" }
}

fn activities(values: &Activities, show: fn(u64) -> String) -> String {
    let parts = [
        ("holder", values.holder),
        ("head", values.head),
        ("waiter", values.waiter),
        ("halted", values.halted),
        ("neither", values.other),
    ];
    parts.map(|(name, value)| format!("{name} {}", show(value))).join(", ")
}

/// The non-zero counts, largest first, as many as fit a line.
fn largest(counts: &std::collections::BTreeMap<String, u64>) -> String {
    const WIDTH: usize = 84;
    let mut counts: Vec<_> = counts.iter().filter(|(_, count)| **count > 0).collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let mut text = String::new();
    for (name, value) in counts {
        let shown = if name.contains(LATENCIES) { event(name, *value as f64) } else { count(*value) };
        let part = format!("{name} {shown}");
        if text.len() + part.len() + 2 > WIDTH {
            return text + " and more";
        }
        let _ = write!(text, "{}{part}", if text.is_empty() { "" } else { ", " });
    }
    if text.is_empty() { "none".into() } else { text }
}

fn missing(record: &Record, path: &str, value: Option<String>) -> String {
    value.unwrap_or_else(|| match record.why.get(path) {
        Some(reason) => format!("not available: {reason}"),
        None => "not available".into(),
    })
}
