//! A single record as people read it, and the page on stderr about a guest that failed.

use std::fmt::Write as _;

use haltkick_vmm::{Explanation, Repeated, printable};

use crate::record::Record;
use crate::record::figures::{
    COMPLETION, CPU, CPU_BYTES, EFFICIENCY, Figure, IDEAL, LOCK_BYTES, LOCK_CPU, LOCK_CPU_SHARE, PAIRS,
    STARVED, THROUGHPUT, Unit, WINDOW, WORK_SPEED,
};
use crate::text::quantity::{LATENCIES, count, event, percent, si, significant, time_ns};

/// Name and text of a line.
type Line = (String, String);

/// The record in about fifteen lines of at most 100 columns.
pub(crate) fn record(record: &Record) -> String {
    let lines = match record.is_linux() {
        true => linux(record),
        false => {
            [head(record), throughput(record), times(record), preemptions(record), costs(record)].concat()
        }
    };
    let mut text = String::new();
    for (name, value) in lines {
        let _ = writeln!(text, "{name:<14} {value}");
    }
    if let Some(inside) = &record.inside {
        text += &format!("\ninside\n{}", self::record(inside));
    }
    text
}

fn line(name: &str, value: impl Into<String>) -> Line {
    (name.into(), value.into())
}

/// A figure as people read it, or why there is none. A `%` behind its name makes it a percentage.
fn shown(record: &Record, name: &str) -> String {
    let (name, is_percentage) = name.strip_suffix('%').map_or((name, false), |name| (name, true));
    let show = |value: f64| match Figure::find(name) {
        _ if is_percentage => percent(value),
        // Families of counts have times among them.
        _ if name.ends_with("_ns") => time_ns(value),
        figure => figure.map_or(Unit::Number, |figure| figure.unit).show(value),
    };
    record.figure(name).map_or_else(|| missing(record, name), show)
}

fn missing(record: &Record, name: &str) -> String {
    record.why(name).map_or("not available".into(), |reason| format!("not available: {reason}"))
}

/// A text with the figures that it names in braces. `Err`: none of them is known, for the reason of the first.
fn filled(record: &Record, text: &str) -> Result<String, String> {
    let parts: Vec<&str> = text.split(['{', '}']).collect();
    let is_known = |name: &&str| record.figure(name.trim_end_matches('%')).is_some();
    if !parts.iter().skip(1).step_by(2).any(is_known) {
        return Err(missing(record, parts[1]));
    }
    let part = |(at, part): (usize, &&str)| if at % 2 == 0 { (*part).into() } else { shown(record, part) };
    Ok(parts.iter().enumerate().map(part).collect())
}

fn head(record: &Record) -> Vec<Line> {
    let guest = record.settings.text("guest").filter(|guest| !guest.is_empty() && *guest != "guest");
    let engine = match record.settings.engine() {
        "qemu-tcg" => Some("qemu-tcg: emulated, not comparable with figures of a real CPU"),
        "qemu-kvm" => Some("qemu-kvm"),
        _ => None,
    };
    let guest = guest.map(|guest| line("guest", format!("{guest}, run {}", record.run_id)));
    let engine = engine.map(|engine| line("engine", engine));
    guest.into_iter().chain([line("cell", cell(record))]).chain(engine).collect()
}

fn cell(record: &Record) -> String {
    let settings = &record.settings;
    let text = |name| settings.text(name).unwrap_or_default();
    let time = |name| time_ns(settings.count(name) as f64);
    let form = if settings.is("pv") { " pv on" } else { "" };
    let slice = settings.number("slice_ns").map_or(String::new(), |_| format!(" slice {}", time("slice_ns")));
    format!(
        "{}{form}, {} vCPUs on {} pCPUs, sched {}{slice}, ring {}, hold {}, think {}",
        text("lock"),
        settings.vcpus(),
        settings.pcpus(),
        text("sched"),
        settings.count("ring"),
        time("hold_ns"),
        time("think_ns"),
    )
}

fn throughput(record: &Record) -> Vec<Line> {
    let rate = shown(record, THROUGHPUT) + " in " + &shown(record, WINDOW) + &of_each_pcpu(record);
    let mut lines = vec![line("throughput", rate), line("ideal", shown(record, IDEAL))];
    if record.settings.get("work_sections").is_some() {
        lines.push(line("completion", shown(record, COMPLETION)));
    }
    lines.push(line("efficiency", shown(record, EFFICIENCY)));
    if let Some(speed) = record.figure(WORK_SPEED) {
        let [slowest, fastest] =
            ["work_slowest_vcpu", "work_fastest_vcpu"].map(|name| record.amount(name) * 100.0);
        let single = format!("{} to {} % on single vCPUs", significant(slowest), significant(fastest));
        lines.push(line("work", format!("{} of the promised speed, {single}", percent(speed))));
    }
    lines.push(line("fairness", fairness(record)));
    lines.extend(by_node(record).map(|text| line("by node", text)));
    lines
}

/// The share of one pCPU in the throughput, and the time of that pCPU for one operation.
fn of_each_pcpu(record: &Record) -> String {
    let of_each = record.amount(THROUGHPUT) / record.settings.pcpus() as f64;
    match of_each > 0.0 {
        true => format!("; each pCPU {}/s, one in {}", si(of_each), time_ns(1e9 / of_each)),
        false => String::new(),
    }
}

fn fairness(record: &Record) -> String {
    let starved = match record.figure(STARVED) {
        Some(starved) if starved > 0.0 => {
            format!("; {starved} of {} vCPUs completed nothing", record.settings.vcpus())
        }
        _ => String::new(),
    };
    let each = filled(record, "Jain {jain}, {min_per_vcpu} to {max_per_vcpu} per vCPU");
    each.unwrap_or_else(|reason| reason) + &starved
}

/// Throughput of the vCPUs that began on each NUMA node.
fn by_node(record: &Record) -> Option<String> {
    let nodes = record.figures.iter().filter_map(|(name, vcpus)| {
        let node = name.strip_prefix("node_")?.strip_suffix("_vcpus")?;
        let rate = record.amount(&format!("node_{node}_acquisitions")) / (record.amount(WINDOW) / 1e9);
        Some(format!("{node}: {}/s by {} vCPUs", si(rate), vcpus.unwrap_or_default()))
    });
    let nodes: Vec<String> = nodes.collect();
    (!nodes.is_empty()).then(|| nodes.join(", "))
}

fn times(record: &Record) -> Vec<Line> {
    let mut lines = vec![
        line("wait", distribution(record, "wait")),
        line("waiting", waiting(record).unwrap_or_else(|| missing(record, "wait_half_of_time_ns"))),
        line("hold", distribution(record, "hold")),
    ];
    let others = record.distributions.iter().filter(|(name, buckets)| {
        !["wait", "hold", "closed_free"].contains(&name.as_str()) && !buckets.is_empty()
    });
    lines.extend(others.map(|(name, _)| line(name, distribution(record, name))));
    lines
}

/// Quantiles, as far as there are any; "at least" before those that are decided by what had not ended.
fn distribution(record: &Record, times: &str) -> String {
    let part = |(shown, end): (&str, &str)| {
        let name = format!("{times}_{end}_ns");
        Some(format!("{shown} {}{}", at_least(record, &name), time_ns(record.figure(&name)?)))
    };
    let quantiles =
        [("p50", "p50"), ("p90", "p90"), ("p99", "p99"), ("p99.9", "p999"), ("longest", "longest")];
    let known: Vec<String> = quantiles.into_iter().filter_map(part).collect();
    if known.is_empty() { missing(record, &format!("{times}_p50_ns")) } else { known.join(", ") }
}

/// The cost of waiting, by time and not by section.
fn waiting(record: &Record) -> Option<String> {
    const HALF: &str = "wait_half_of_time_ns";
    let half = time_ns(record.figure(HALF)?);
    let half = match at_least(record, HALF) {
        "" => format!("{half} or more"),
        _ => format!("more than {half}"),
    };
    let pending = match record.figure("wait_pending") {
        None => String::new(),
        Some(0.0) => "; none was pending at the end".into(),
        Some(1.0) => "; 1 was pending at the end".into(),
        Some(pending) => format!("; {pending} were pending at the end"),
    };
    Some(format!("half of all waiting time in waits of {half}{pending}"))
}

fn at_least(record: &Record, name: &str) -> &'static str {
    if record.at_least.iter().any(|figure| figure == name) { "> " } else { "" }
}

/// Lines about preemptions: the activities that they hit, and what that did.
fn preemptions(record: &Record) -> Vec<Line> {
    let each =
        [("preemptions", "preemptions_*"), ("preempted", "preempted_*_ns"), ("lost by others", "lost_*_ns")];
    let told = |family: &str| filled(record, &by_activity(family)).unwrap_or_else(|reason| reason);
    let mut lines: Vec<Line> = each.map(|(name, family)| line(name, told(family))).into();
    let free = time_ns(record.amount("closed_free_mean_ns") * record.amount("closed_free_count"));
    let closed = format!("{{closed_absences}} absences, free for {free}, lost {{closed_lost_ns}}");
    let policy = record.settings.text("deschedule").unwrap_or("none");
    let on_purpose = format!("{} ({policy})", by_activity("injected_*"));
    let others = [
        ("closed by head", closed.as_str()),
        ("hint", "{hint_error_rate%} of {hint_samples} looks wrong"),
        ("grace", "{grace_granted} slices extended by {grace_overrun_ns}, {grace_expired} without effect"),
        // The VMM counts vCPUs, the kernel periods and pCPUs.
        (
            "throttled",
            "{throttled_times} times, {throttled_ns} in all, {throttled_holders} times with a lock held",
        ),
        (
            "throttled",
            "in {throttled_periods} of {throttled_of_periods} periods, pCPUs together for {throttled_pcpu_ns}",
        ),
        ("on purpose", on_purpose.as_str()),
    ];
    lines.extend(others.into_iter().filter_map(|(name, text)| Some(line(name, filled(record, text).ok()?))));
    if let Some(Repeated { absences, absent_ns, honoured }) = record.schedule {
        let (share, absent) = (percent(honoured), time_ns(absent_ns as f64));
        lines.push(line("schedule", format!("{share} of {absences} absences honoured, {absent} in all")));
    }
    lines
}

/// The text with the members of a family by what a vCPU was doing.
fn by_activity(family: &str) -> String {
    let word = |key: &'static str| if key == "other" { "neither" } else { key };
    let part = |key: &'static str| format!("{} {{{}}}", word(key), family.replace('*', key));
    ["holder", "head", "waiter", "halted", "other"].map(part).join(", ")
}

fn costs(record: &Record) -> Vec<Line> {
    let events = record.lock_events.iter().filter_map(|(name, count)| Some((name, count?)));
    let mut lines = vec![
        line("lock cost", lock_cost(record)),
        line("lock events", largest(events)),
        line("vm exits", largest(record.vm_exits.iter().map(|(name, count)| (name.as_str(), *count as f64)))),
        line("cpu time", format!("{} on {} pCPUs", shown(record, CPU), record.settings.pcpus())),
    ];
    if let Some(share) = record.figure(LOCK_CPU_SHARE) {
        let in_locks = shown(record, LOCK_CPU);
        lines.push(line("in locks", format!("{in_locks}, {} of the vCPUs' time on pCPUs", percent(share))));
    }
    lines.push(line("lost updates", shown(record, "lost_updates")));
    lines
}

fn lock_cost(record: &Record) -> String {
    let ways = PAIRS.into_iter().zip(["patched", "through a table", "compiled in"]);
    let known = ways.filter_map(|(name, how)| Some(format!("{} {how}", significant(record.figure(name)?))));
    let cycles: Vec<String> = known.collect();
    let bytes = |name| record.figure(name).map_or("?".into(), |bytes| bytes.to_string());
    format!(
        "{} TSC cycles a pair; {} bytes a lock, {} a vCPU",
        if cycles.is_empty() { "unknown".into() } else { cycles.join(", ") },
        bytes(LOCK_BYTES),
        bytes(CPU_BYTES)
    )
}

/// The non-zero counts, largest first, as many as fit a line.
fn largest<'a>(counts: impl Iterator<Item = (&'a str, f64)>) -> String {
    const WIDTH: usize = 84;
    let mut counts: Vec<_> = counts.filter(|(_, count)| *count > 0.0).collect();
    counts.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    let mut text = String::new();
    for (name, value) in counts {
        let shown = if name.contains(LATENCIES) { event(name, value) } else { count(value as u64) };
        let part = format!("{name} {shown}");
        if text.len() + part.len() + 2 > WIDTH {
            return text + " and more";
        }
        let _ = write!(text, "{}{part}", if text.is_empty() { "" } else { ", " });
    }
    if text.is_empty() { "none".into() } else { text }
}

fn linux(record: &Record) -> Vec<Line> {
    let settings = &record.settings;
    let (sched, pv) =
        (settings.text("sched").unwrap_or_default(), if settings.is("pv") { "on" } else { "off" });
    let guest =
        format!("Linux, {} vCPUs on {} pCPUs, sched {sched}, pv {pv}", settings.vcpus(), settings.pcpus());
    let mut lines = vec![line("guest", guest)];
    let offered = settings.get("pv_features").and_then(|it| it.as_array()).into_iter().flatten();
    let offered: Vec<&str> = offered.filter_map(|feature| feature.as_str()).collect();
    if !offered.is_empty() {
        lines.push(line("offered", offered.join(", ")));
    }
    let end = record.failure.as_ref().map_or(record.end.clone(), |failure| format!("failed: {failure}"));
    lines.push(line("end", format!("{end}, after {}", shown(record, "until_end_ns"))));
    if let Some(inside) = &record.inside {
        let release = inside.host.kernel.as_deref().unwrap_or("of unknown release");
        lines.push(line("kernel", format!("{release} ({})", settings.text("kernel").unwrap_or_default())));
    }
    lines.push(line("user space", shown(record, "user_space_ns")));
    lines.extend(of_vcpus(record));
    if let (Some(injected), Some(policy)) = (record.figure("injected"), settings.text("deschedule")) {
        lines.push(line("injected", format!("{} ({policy})", count(injected as u64))));
    }
    for (name, unit) in &record.units {
        lines.push(line(name, format!("{} {unit}", si(record.amount(name)))));
    }
    let events = record.lock_events.iter().count();
    if events > 0 && record.inside.is_none() {
        lines.push(line("lock events", format!("{events} kinds, with --format json")));
    }
    if let Some(share) = record.noise.others_share {
        lines.push(line("others", format!("{} of the pCPUs", percent(share))));
    }
    lines
}

/// Time and halts of the vCPUs of a Linux guest, seen from outside.
fn of_vcpus(record: &Record) -> Vec<Line> {
    if record.per_vcpu.is_empty() {
        return vec![];
    }
    let all = || record.per_vcpu.iter();
    let shown = |ns: Option<u64>| ns.map_or("unknown".into(), |ns| time_ns(ns as f64));
    let run = shown(all().map(|vcpu| vcpu.run_ns).sum());
    let off = shown(all().map(|vcpu| vcpu.steal_ns).sum());
    let halted = shown(all().map(|vcpu| vcpu.halted_ns).sum());
    let descheduled = count(all().map(|vcpu| vcpu.preemptions).fold(0, u64::saturating_add));
    let halts = all().map(|vcpu| vcpu.waits).sum::<Option<u64>>().map_or("unknown".into(), count);
    vec![
        line("vCPUs", format!("running {run}, descheduled {off}, halted {halted}")),
        line("times", format!("descheduled {descheduled}, halted {halts}")),
    ]
}

/// The guest's last lines, and the activity of every vCPU.
pub(crate) fn story(console: &str, explanation: Option<&Explanation>) -> String {
    const LAST_LINES: usize = 20;
    let mut story = String::new();
    let lines: Vec<_> = console.lines().collect();
    if !lines.is_empty() {
        let from = lines.len().saturating_sub(LAST_LINES);
        let _ = match from {
            0 => writeln!(story, "console of the guest:"),
            _ => writeln!(story, "console of the guest, last {LAST_LINES} lines:"),
        };
        lines[from..].iter().for_each(|line| _ = writeln!(story, "  {}", printable(line)));
        story.push('\n');
    }
    if let Some(explanation) = explanation {
        let _ = write!(story, "{explanation}");
    }
    story
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_console_is_shown_without_control_characters() {
        let console: String = (0..100).map(|i| format!("\u{1b}[2Jline {i}\n")).collect();
        let told = story(&console, None);
        assert!(told.starts_with("console of the guest, last 20 lines:\n  \u{fffd}[2Jline 80\n"), "{told}");
        assert!(told.ends_with("line 99\n\n") && !told.contains('\u{1b}'), "{told}");
    }
}
