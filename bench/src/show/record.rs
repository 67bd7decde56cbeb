//! A single record as people read it.

use std::fmt::Write as _;

use crate::record::{Activities, Distribution, GraceCounts, LockCost, Record};
use crate::text::quantity::{LATENCIES, count, event, si, significant, time_ns};

/// The record in about fifteen lines of at most 100 columns.
pub(crate) fn record(record: &Record) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<14} {value}");
    };
    if !record.config.guest.is_empty() && record.config.guest != "guest" {
        line("guest", format!("{}, run {}", record.config.guest, record.run_id));
    }
    line("cell", cell(record));
    match record.config.engine.as_str() {
        "qemu-tcg" => line("engine", "qemu-tcg: emulated, not comparable with figures of a real CPU".into()),
        "qemu-kvm" => line("engine", "qemu-kvm".into()),
        _ => {}
    }
    line(
        "throughput",
        format!(
            "{}/s in {}",
            si(record.totals.acquisitions_per_second),
            time_ns(record.timing.window_ns as f64)
        ),
    );
    line(
        "ideal",
        missing(
            record,
            "totals.ideal_per_second",
            record.totals.ideal_per_second.map(|ideal| format!("{}/s", si(ideal))),
        ),
    );
    if record.config.work_sections.is_some() {
        let completion = record.timing.completion_ns.map(|ns| time_ns(ns as f64));
        line("completion", missing(record, "timing.completion_ns", completion));
    }
    line("efficiency", missing(record, "totals.efficiency", record.totals.efficiency.map(significant)));
    if let Some(speed) = &record.timing.work_speed {
        line(
            "work",
            format!(
                "{} % of the promised speed, {} to {} % on single vCPUs",
                significant(speed.over_promised * 100.0),
                significant(speed.slowest_vcpu * 100.0),
                significant(speed.fastest_vcpu * 100.0)
            ),
        );
    }
    line("fairness", fairness(record));
    line("wait", missing(record, "wait_ns", distribution(&record.wait_ns)));
    line("waiting", missing(record, "wait_ns", waiting(&record.wait_ns)));
    line("hold", missing(record, "hold_ns", distribution(&record.hold_ns)));
    if record.unlock_ns.count > 0 {
        line("unlock", missing(record, "unlock_ns", distribution(&record.unlock_ns)));
    }
    for (name, times) in &record.times_ns {
        line(name, missing(record, "times_ns", distribution(times)));
    }
    line(
        "preemptions",
        missing(record, "preemptions", record.preemptions.as_ref().map(|values| activities(values, count))),
    );
    line(
        "preempted",
        missing(
            record,
            "preempted_ns",
            record.preempted_ns.as_ref().map(|values| activities(values, |ns| time_ns(ns as f64))),
        ),
    );
    line(
        "lost by others",
        missing(
            record,
            "lost_ns",
            record.lost_ns.as_ref().map(|values| activities(values, |ns| time_ns(ns as f64))),
        ),
    );
    if let Some(hint) = &record.hint {
        let percent = significant(hint.error_rate * 100.0);
        line("hint", format!("{percent} % of {} looks wrong", count(hint.samples)));
    }
    if let Some(grace) = &record.grace {
        let GraceCounts { granted, expired, overrun_ns } = grace;
        let overrun = time_ns(*overrun_ns as f64);
        line(
            "grace",
            format!("{} slices extended by {overrun}, {} in vain", count(*granted), count(*expired)),
        );
    }
    if let Some(injected) = &record.injected {
        let policy = record.config.deschedule.as_deref().unwrap_or("none");
        line("on purpose", format!("{} ({policy})", activities(injected, count)));
    }
    line("lock cost", lock_cost(&record.lock_cost));
    line("lock events", largest(&record.lock_events));
    line("vm exits", largest(&record.vm_exits));
    line(
        "cpu time",
        format!("{} on {} pCPUs", time_ns(record.totals.cpu_ns as f64), record.config.cpus.len()),
    );
    if let (Some(in_locks), Some(share)) = (record.totals.lock_cpu_ns, record.totals.lock_cpu_share) {
        let share = significant(share * 100.0);
        line("in locks", format!("{}, {share} % of the vCPUs' time on pCPUs", time_ns(in_locks as f64)));
    }
    line(
        "lost updates",
        missing(record, "totals.lost_updates", record.totals.lost_updates.map(|lost| lost.to_string())),
    );
    text
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

/// What waiting costs, by time and not by section.
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
