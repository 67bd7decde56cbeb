//! The live view of a run: rates from two frames, and the table of a frame.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::host::cpulist::CpuList;
use crate::results::live::{Guest, Vcpu, View};
use crate::text::quantity::{si, time_ns};

/// `frame`, with rates since `earlier` if that is of the same run.
pub(crate) fn with_rates(earlier: Option<&View>, frame: &View, off_the_cpus: bool) -> View {
    let mut view = View { off_the_cpus, ..frame.clone() };
    let Some(earlier) = earlier.filter(|earlier| earlier.run == frame.run && earlier.at_ns < frame.at_ns)
    else {
        return view;
    };
    let passed_ns = frame.at_ns - earlier.at_ns;
    view.rates_over_ns = Some(passed_ns);
    for (guest, before) in view.guests.iter_mut().zip(&earlier.guests) {
        for (vcpu, before) in guest.vcpus.iter_mut().zip(&before.vcpus) {
            rate(vcpu, before, passed_ns);
        }
    }
    view
}

fn rate(vcpu: &mut Vcpu, before: &Vcpu, passed_ns: u64) {
    // A guest can set its counts back.
    let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 * 1e9 / passed_ns as f64;
    let known = |now: Option<u64>, before: Option<u64>| Some(rate(now?, before?));
    vcpu.sections_per_second = Some(rate(vcpu.sections, before.sections));
    vcpu.exits_per_second = Some(rate(vcpu.exits, before.exits));
    vcpu.kicks_per_second = known(vcpu.kicks, before.kicks);
    vcpu.sleeps_per_second = known(vcpu.sleeps, before.sleeps);
}

/// Locks that are shown of a guest.
const MOST_LOCKS: usize = 6;
/// Holders of one that are named.
const MOST_HOLDERS: usize = 4;

/// The table, of at most `most_lines` lines.
pub(crate) fn table(view: &View, most_lines: usize) -> String {
    let mut text = head(view);
    for guest in &view.guests {
        text += &of_guest(view, guest);
    }
    let rows: Vec<(&Guest, &Vcpu)> =
        view.guests.iter().flat_map(|guest| guest.vcpus.iter().map(move |vcpu| (guest, vcpu))).collect();
    if rows.is_empty() {
        return text;
    }
    text += "\n vCPU  state          for      doing   lock  sections/s    exits/s    kicks/s   sleeps/s\n";
    let left = most_lines.saturating_sub(text.lines().count());
    // The last line says how many more there are.
    let shown = if rows.len() > left { left.saturating_sub(1) } else { rows.len() };
    let several = view.guests.len() > 1;
    for (guest, vcpu) in &rows[..shown] {
        text += &row(view, vcpu);
        text += &if several { format!("  {}\n", guest.name) } else { "\n".into() };
    }
    if shown < rows.len() {
        let _ = writeln!(text, "{:>5} more: a longer terminal shows them, or a pipe", rows.len() - shown);
    }
    text
}

fn head(view: &View) -> String {
    let phase = match view.phase.as_str() {
        "between" => "between two runs",
        "starts" => "vCPUs start",
        "warms-up" => "warms up",
        "window" => "window open",
        "closed" => "window closed",
        other => other,
    };
    let mut text = format!("process {}, run {}: {phase}", view.process, view.run);
    if view.guests.is_empty() {
        return text + "\n";
    }
    let vcpus: usize = view.guests.iter().map(|guest| guest.vcpus.len()).sum();
    let cpus = match (view.virtual_time, view.cpus.len()) {
        (true, _) => "simulated CPUs",
        (false, 1) => "CPU",
        (false, _) => "CPUs",
    };
    let _ = writeln!(
        text,
        ", {vcpus} vCPUs on {cpus} {}, scheduled by {}",
        CpuList(view.cpus.clone()),
        if view.sched == "host" { "the host" } else { "the VMM" }
    );
    if !view.off_the_cpus {
        text += "this view has no CPUs but those that are measured: it takes time from the run\n";
    }
    text
}

fn of_guest(view: &View, guest: &Guest) -> String {
    let form = if guest.pv { "paravirtual" } else { "native" };
    let locks = if guest.locks == 1 { "1 lock".into() } else { format!("{} locks", guest.locks) };
    let mut text = format!("\n{}: {}, {form}, {}, {locks}\n", guest.name, guest.lock, guest.workload);
    let _ = writeln!(text, "  vCPUs       {}", states(guest));
    let rate = |of: fn(&Vcpu) -> Option<f64>| {
        let each: Option<Vec<f64>> = guest.vcpus.iter().map(of).collect();
        each.map_or_else(|| "-".into(), |each| si(each.iter().sum()))
    };
    let _ = writeln!(
        text,
        "  per second  {} sections, {} exits, {} kicks, {} sleeps",
        rate(|vcpu| vcpu.sections_per_second),
        rate(|vcpu| vcpu.exits_per_second),
        rate(|vcpu| vcpu.kicks_per_second),
        rate(|vcpu| vcpu.sleeps_per_second),
    );
    text + &locks_of(view, guest)
}

/// `2 running, 5 ready, 8 preempted (1 holder, 7 waiters), 1 asleep`.
fn states(guest: &Guest) -> String {
    const ORDER: [&str; 7] = ["running", "runnable", "ready", "preempted", "asleep", "not-started", "left"];
    const DOING: [(&str, &str); 4] =
        [("holder", "holding"), ("head", "first in a queue"), ("waiter", "waiting"), ("other", "elsewhere")];
    let counted = |told: String, is_it: &dyn Fn(&&Vcpu) -> bool| {
        let number = guest.vcpus.iter().filter(is_it).count();
        (number > 0).then(|| format!("{number} {told}"))
    };
    let interrupted = DOING.iter().filter_map(|(doing, told)| {
        counted((*told).into(), &|vcpu| vcpu.state == "preempted" && vcpu.doing == *doing)
    });
    let interrupted = interrupted.collect::<Vec<_>>().join(", ");
    let of_state = |state: &&str| {
        let told = counted(state.replace('-', " "), &|vcpu| vcpu.state == *state)?;
        Some(if *state == "preempted" { format!("{told} ({interrupted})") } else { told })
    };
    ORDER.iter().filter_map(of_state).collect::<Vec<_>>().join(", ")
}

/// The locks for which most wait, with their holders.
fn locks_of(view: &View, guest: &Guest) -> String {
    let mut locks: BTreeMap<u32, (Vec<&Vcpu>, usize)> = BTreeMap::new();
    for vcpu in &guest.vcpus {
        // Which lock it is a guest says, and may say anything.
        let Some(lock) = vcpu.lock.filter(|lock| *lock < guest.locks) else { continue };
        let (holders, waiters) = locks.entry(lock).or_default();
        if vcpu.doing == "holder" { holders.push(vcpu) } else { *waiters += 1 }
    }
    let mut locks: Vec<_> = locks.into_iter().collect();
    locks.sort_by_key(|(lock, (holders, waiters))| (std::cmp::Reverse((*waiters, holders.len())), *lock));
    let mut text = String::new();
    for (lock, (holders, waiters)) in locks.iter().take(MOST_LOCKS) {
        let named: Vec<String> = holders.iter().take(MOST_HOLDERS).map(|vcpu| holder(view, vcpu)).collect();
        let held = match holders.len().saturating_sub(MOST_HOLDERS) {
            0 if named.is_empty() => "changing hands".into(),
            0 => format!("held by {}", named.join(", ")),
            more => format!("held by {} and {more} more", named.join(", ")),
        };
        let _ = writeln!(text, "  lock {lock:<6} {held}; {waiters} wait");
    }
    text
}

/// `vCPU 7 (preempted for 3 ms)`.
fn holder(view: &View, vcpu: &Vcpu) -> String {
    let since = since(view, vcpu).map_or(String::new(), |since| format!(" for {since}"));
    format!("vCPU {} ({}{since})", vcpu.vcpu, vcpu.state)
}

fn since(view: &View, vcpu: &Vcpu) -> Option<String> {
    vcpu.since_ns.map(|since_ns| time_ns(view.at_ns.saturating_sub(since_ns) as f64))
}

fn row(view: &View, vcpu: &Vcpu) -> String {
    let rate = |rate: Option<f64>| rate.map_or_else(|| "-".into(), si);
    format!(
        "{:>5}  {:<11}  {:>7}  {:>8}  {:>5}  {:>10} {:>10} {:>10} {:>10}",
        vcpu.vcpu,
        vcpu.state.replace('-', " "),
        since(view, vcpu).unwrap_or_default(),
        vcpu.doing,
        vcpu.lock.map_or_else(|| "-".into(), |lock| lock.to_string()),
        rate(vcpu.sections_per_second),
        rate(vcpu.exits_per_second),
        rate(vcpu.kicks_per_second),
        rate(vcpu.sleeps_per_second),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::measure::synthetic::assert_has;

    fn frame(at_ns: u64, run: u64, sections: u64) -> View {
        let vcpu = |number: u32, state: &str, doing: &str, lock: Option<u32>, since_ns: Option<u64>| {
            json!({
                "vcpu": number, "state": state, "since_ns": since_ns, "doing": doing, "lock": lock,
                "sections": sections, "exits": 2 * sections, "kicks": sections, "sleeps": 0,
            })
        };
        let ago = Some(at_ns - 3_000_000);
        let vcpus = [
            vcpu(0, "running", "waiter", Some(0), None),
            vcpu(1, "preempted", "holder", Some(0), ago),
            vcpu(2, "asleep", "head", Some(0), ago),
            vcpu(3, "ready", "other", None, ago),
        ];
        let guest = json!({
            "name": "guest", "lock": "ticket", "pv": false, "workload": "critical-section", "locks": 1,
            "vcpus": vcpus,
        });
        let frame = json!({
            "schema": "haltkick.top", "schema_version": 1, "process": 77, "run": run, "phase": "window",
            "at_ns": at_ns, "virtual_time": false, "sched": "vmm", "cpus": [0, 1], "guests": [guest],
        });
        View::of_line(frame.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn rates_are_of_two_frames_of_one_run() {
        let (before, mut later) = (frame(1_000_000_000, 1, 1000), frame(3_000_000_000, 1, 5000));
        // Kicks that the kernel delivers are not known, and not zero.
        later.guests[0].vcpus[0].kicks = None;
        let shown = with_rates(Some(&before), &later, true);
        let vcpu = &shown.guests[0].vcpus[0];
        assert_eq!((vcpu.kicks_per_second, vcpu.sleeps_per_second), (None, Some(0.0)));
        assert_eq!((vcpu.sections_per_second, vcpu.exits_per_second), (Some(2000.0), Some(4000.0)));
        let next_run = with_rates(Some(&before), &frame(3_000_000_000, 2, 5000), true);
        assert_eq!(next_run.guests[0].vcpus[0].sections_per_second, None);
        assert_eq!(with_rates(Some(&before), &before, true).rates_over_ns, None, "no time has passed");
        let back = with_rates(Some(&before), &frame(3_000_000_000, 1, 0), true);
        assert_eq!(back.guests[0].vcpus[0].sections_per_second, Some(0.0), "a guest that counts backwards");
    }

    #[test]
    fn states_holders_and_rates_fit_100_columns_and_the_terminals_lines() {
        let view = with_rates(Some(&frame(1_000_000_000, 1, 1000)), &frame(3_000_000_000, 1, 5000), true);
        let text = table(&view, usize::MAX);
        let told = [
            "process 77, run 1: window open, 4 vCPUs on CPUs 0-1, scheduled by the VMM",
            "1 running, 1 ready, 1 preempted (1 holding), 1 asleep",
            "8.00 k sections, 16.0 k exits, 8.00 k kicks, 0 sleeps",
            "held by vCPU 1 (preempted for 3.00 ms); 2 wait",
        ];
        assert_has(&text, &told);
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        let whole = text.lines().count();
        assert_eq!(table(&view, whole), text);
        let cut = table(&view, whole - 1);
        assert_eq!(cut.lines().count(), whole - 1);
        assert!(cut.ends_with("    2 more: a longer terminal shows them, or a pipe\n"), "{cut}");
        assert!(table(&view, 0).contains("    4 more"));
        // A made-up lock is in no list, and a view that disturbs the run says so.
        let mut frame = frame(3_000_000_000, 1, 5000);
        frame.guests[0].vcpus[1].lock = Some(u32::MAX);
        let text = table(&with_rates(None, &frame, false), usize::MAX);
        for told in ["it takes time from the run", "lock 0", "changing hands; 2 wait"] {
            assert!(text.contains(told) && !text.contains("lock 4294967295"), "{told}: {text}");
        }
    }
}
