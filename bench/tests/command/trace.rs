//! Output of `--trace`.

use std::process::Command;

use serde_json::Value;

use crate::perfetto::{Shown, shown};
use crate::support::{
    Check, Ended, FINISHED, HALTKICK, an_allowed_cpu, apply, haltkick, in_some_window, kvm_trial, scratch,
    skip, words,
};

/// Runs the command with a trace: the record of the first guest, and what the trace shows.
fn traced(name: &str, line: &str) -> (Value, Vec<Shown>) {
    let path = format!("{}/run.pftrace", scratch(name));
    let record =
        haltkick(&format!("run --no-ideal --format json --trace {path} {line}")).jsons().swap_remove(0);
    (record, shown(&std::fs::read(&path).expect("a trace")))
}

/// How many there are whose name begins so.
fn count(shown: &[Shown], name: &str) -> u64 {
    shown.iter().filter(|shown| shown.name.starts_with(name)).count() as u64
}

#[apply(kvm_trial)]
fn a_trace_shows_runs_sleeps_holders_kicks_and_injections() {
    let injected = |record: &Value| record["figures"]["injected_holder"].as_u64().expect("a count");
    let happened = |shown: &[Shown]| {
        let kicked = shown.iter().any(|shown| !shown.ended_flows.is_empty());
        count(shown, "halted") > 0 && count(shown, "preempted") > 0 && kicked
    };
    let (record, shown) = in_some_window("sleepers that were kicked, and holders taken off", |window| {
        let line = "--lock qspinlock --pv on --ratio 8 --hold 5us --deschedule holder,rate=200,for=1ms";
        let seen = traced("trace", &format!("{line} --duration {window}"));
        Some(seen).filter(|(record, shown)| happened(shown) && injected(record) > 0)
    });
    let (instants, off) = (count(&shown, "injection"), count(&shown, "descheduled: holder"));
    let injected = injected(&record);
    // The record counts inside the window, the trace from start to end.
    assert!(instants >= injected && off >= injected, "{instants} instants, {off} off, {injected} injected");
    let named = |track: &str, name: &str| -> Vec<&Shown> {
        shown.iter().filter(|shown| shown.track.contains(track) && shown.name.starts_with(name)).collect()
    };
    let sections = named("/lock", "hold lock 0").len() as u64;
    let noted = record["trace"]["guest_sections"].as_u64().unwrap();
    let vcpus = record["settings"]["vcpus"].as_u64().unwrap();
    assert!((noted..=noted + vcpus).contains(&sections), "{sections} of {noted} and what was cut off");
    let dropped = record["trace"]["guest_sections_dropped"].as_u64().unwrap();
    assert!(noted > 0 && noted + dropped >= record["figures"]["acquisitions"].as_u64().unwrap());
    for (track, name) in [("vCPU", "running"), ("vCPU", "preempted"), ("pCPU", "vCPU"), ("run", "window")] {
        assert!(!named(track, name).is_empty(), "no {name} on {track}");
    }
    // A vCPU that is on a pCPU runs, from the same moment to the same moment.
    let runs: Vec<_> =
        named("vCPUs/", "running").into_iter().filter(|shown| shown.name == "running").collect();
    for turn in named("pCPUs/", "vCPU ") {
        let track = format!("vCPUs/{}", turn.name);
        let times = |shown: &Shown| (shown.begin_ns, shown.end_ns);
        assert!(runs.iter().any(|run| run.track == track && times(run) == times(turn)), "{turn:?}");
    }
    let kicks = named("vCPU", "kick");
    assert!(kicks.len() as u64 >= record["vm_exits"]["pv_kick"].as_u64().unwrap(), "{} kicks", kicks.len());
    for end in shown.iter().flat_map(|shown| &shown.ended_flows) {
        let from: Vec<_> = shown.iter().filter(|shown| shown.flows.contains(end)).collect();
        assert!(from.len() == 1 && from[0].name == "kick", "flow {end} comes from one kick: {from:?}");
    }
}

/// A trace under the host's scheduler.
fn under_the_host(name: &str, window: &str) -> (Value, Vec<Shown>) {
    traced(name, &format!("--lock tas --ratio 4 --sched host --duration {window}"))
}

/// Turns on a pCPU.
fn turns(shown: &[Shown]) -> Vec<&Shown> {
    shown.iter().filter(|shown| shown.track.starts_with("pCPUs/")).collect()
}

fn counted_preemptions(record: &Value) -> u64 {
    record["figures"]["preemptions"].as_u64().expect("somebody counts")
}

#[apply(kvm_trial)]
fn who_ran_on_which_pcpu_is_shown_where_switches_are_reported() {
    let (record, shown) = under_the_host("host-probe", "100ms");
    if !record["why"]["switches_*"].is_null() {
        let is_counted = !record["figures"]["preemptions"].is_null();
        assert!(turns(&shown).is_empty() && !is_counted, "{}", record["figures"]);
        assert!(shown.iter().any(|shown| shown.name == "awake"), "threads that are awake need not run");
        return Ok(());
    }
    let (record, shown) = in_some_window("somebody preempted by the host", |window| {
        let seen = under_the_host("host", window);
        Some(seen).filter(|(record, _)| counted_preemptions(record) > 0)
    });
    // No vCPU sleeps: one on a pCPU runs, and one off it was preempted. Turns that begin with the trace do so before
    // their place is known.
    let begins = |turn: &Shown, name: &str, at_ns: u64| {
        let track = format!("vCPUs/{}", turn.name);
        shown.iter().any(|it| it.track == track && it.name.starts_with(name) && it.begin_ns == at_ns)
    };
    let turns = turns(&shown);
    let running = turns.iter().filter(|turn| begins(turn, "running", turn.begin_ns)).count();
    let preempted = turns.iter().filter(|turn| begins(turn, "preempted", turn.end_ns)).count();
    assert!(running == turns.len() && preempted > 0, "{running}, {preempted} of {} turns", turns.len());
    let (counted, off) = (counted_preemptions(&record), count(&shown, "preempted"));
    // The record counts inside the window, the trace from start to end.
    assert!(off >= counted, "{off} off, {counted} counted");
}

#[apply(kvm_trial)]
fn in_a_namespace_of_processes_the_host_reports_its_own_threads() -> Check {
    let run = format!("run --sched host --vcpus 4 --cpus {} --duration 300ms --no-ideal", an_allowed_cpu());
    let mut unshare = Command::new("unshare");
    unshare.args(words(&format!("--pid --fork --mount-proc {HALTKICK} {run} --format json")));
    let ended = match unshare.output() {
        Ok(output) => Ended::new(&run, output),
        Err(error) => return skip(format_args!("unshare: {error}")),
    };
    if !FINISHED.contains(&ended.code) {
        return skip(format_args!("unshare: {ended}"));
    }
    let record = ended.json();
    if let Some(reason) = record["why"]["switches_*"].as_str() {
        return skip(reason);
    }
    // Four that never sleep share a pCPU for many slices.
    assert!(record["figures"]["switches_read"].as_u64() > Some(0), "{:#}", record["figures"]);
    assert!(counted_preemptions(&record) > 0, "{:#}", record["figures"]);
    Ok(())
}

#[apply(kvm_trial)]
fn under_the_hosts_scheduler_each_guest_shows_its_own_vcpus() {
    // Without attribution the kernel is not asked for its switches, so that the threads say which vCPU is awake.
    let run = "--sched host --attribution off --duration 50ms";
    let guests = "--vm lock=ticket,vcpus=2 --vm lock=ticket,vcpus=2";
    let (_, shown) = traced("trace-two", &format!("{run} {guests}"));
    let awake = shown.iter().filter(|shown| shown.name == "awake").map(|shown| shown.track.as_str());
    let tracks: std::collections::BTreeSet<&str> = awake.collect();
    assert_eq!(tracks.len(), 4, "two guests of two vCPUs: {tracks:?}");
}

#[apply(kvm_trial)]
fn a_trace_of_a_hang_is_written_and_ends_with_it() {
    let hangs = "--workload selftest-hang --lock tas --vcpus 4 --watchdog 300ms --duration 60s";
    let (record, shown) = traced("hang", hangs);
    assert_eq!(record["schema"], "haltkick.failure");
    let waits = shown.iter().filter(|shown| shown.name == "wait for lock 0");
    let longest = waits.max_by_key(|wait| wait.end_ns - wait.begin_ns).expect("somebody waits");
    assert!(longest.end_ns - longest.begin_ns > 250_000_000, "{longest:?}");
}
