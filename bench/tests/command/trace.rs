//! Output of `--trace` and `--profile`.

use std::process::Command;

use prost::Message as _;
use serde_json::Value;

use crate::perfetto::{Shown, Trace, shown};
use crate::support::{
    Check, an_allowed_cpu, apply, code, haltkick, in_some_window, kvm, scratch, skip, stderr, stdout, trial,
    words,
};

/// Runs `arguments` with a trace: the record of the first guest, and what the trace shows.
fn traced(name: &str, arguments: &[&str]) -> (Value, Vec<Shown>) {
    let path = scratch(name).join("run.pftrace");
    let mut all = vec!["run", "--no-ideal", "--format", "json", "--trace", path.to_str().unwrap()];
    all.extend(arguments);
    let output = haltkick(&all);
    let mut records = serde_json::Deserializer::from_slice(&output.stdout).into_iter();
    let record = records.next().expect("a record").expect("JSON");
    let bytes = std::fs::read(&path).expect("a trace");
    let trace = Trace::decode(&*bytes).expect("a trace is a message");
    let clock = trace.packet.iter().find_map(|packet| packet.trace_packet_defaults.as_ref());
    assert_eq!(clock.and_then(|defaults| defaults.timestamp_clock_id), Some(3), "CLOCK_MONOTONIC");
    let snapshot = trace.packet.iter().find_map(|packet| packet.clock_snapshot.as_ref()).expect("clocks");
    let now_ns = snapshot.clocks.iter().find(|clock| clock.clock_id == 3).expect("that clock").timestamp;
    let shown = shown(&trace);
    assert!(shown.iter().all(|shown| shown.end_ns <= now_ns), "nothing happened after the file was written");
    (record, shown)
}

#[apply(trial)]
fn a_trace_shows_runs_sleeps_holders_and_kicks() -> Check {
    kvm()?;
    let arguments = ["--lock", "qspinlock", "--pv", "on", "--ratio", "8", "--hold", "5us", "--duration"];
    let happened = |shown: &[Shown]| {
        let of = |name: &str| shown.iter().any(|shown| shown.name.starts_with(name));
        of("halted") && of("preempted") && shown.iter().any(|shown| !shown.ended_flows.is_empty())
    };
    let (record, shown) = in_some_window("sleepers that were kicked, and somebody preempted", |window| {
        Some(traced("trace", &[&arguments[..], &[window]].concat())).filter(|(_, shown)| happened(shown))
    });
    let of = |track: &str, name: &str| -> Vec<&Shown> {
        shown.iter().filter(|shown| shown.track.contains(track) && shown.name.starts_with(name)).collect()
    };
    let sections = of("/lock", "hold lock 0").len() as u64;
    let noted = record["trace"]["guest_sections"].as_u64().unwrap();
    let vcpus = record["settings"]["vcpus"].as_u64().unwrap();
    assert!((noted..=noted + vcpus).contains(&sections), "{sections} of {noted} and what was cut off");
    let dropped = record["trace"]["guest_sections_dropped"].as_u64().unwrap();
    assert!(noted > 0 && noted + dropped >= record["figures"]["acquisitions"].as_u64().unwrap());
    for (track, name) in [("vCPU", "running"), ("vCPU", "preempted"), ("pCPU", "vCPU"), ("run", "window")] {
        assert!(!of(track, name).is_empty(), "no {name} on {track}");
    }
    // A vCPU that is on a pCPU runs, from the same moment to the same moment.
    for turn in of("pCPUs/", "vCPU ") {
        let track = format!("vCPUs/{}", turn.name);
        let same = shown.iter().any(|shown| {
            shown.track == track
                && shown.name == "running"
                && (shown.begin_ns, shown.end_ns) == (turn.begin_ns, turn.end_ns)
        });
        assert!(same, "{turn:?}");
    }
    let kicks = of("vCPU", "kick");
    assert!(kicks.len() as u64 >= record["vm_exits"]["pv_kick"].as_u64().unwrap(), "{} kicks", kicks.len());
    for end in shown.iter().flat_map(|shown| &shown.ended_flows) {
        let from: Vec<_> = shown.iter().filter(|shown| shown.flows.contains(end)).collect();
        assert!(from.len() == 1 && from[0].name == "kick", "flow {end} comes from one kick: {from:?}");
    }
    Ok(())
}

/// A trace under the host's scheduler.
fn under_the_host(name: &str, window: &str) -> (Value, Vec<Shown>) {
    traced(name, &["--lock", "tas", "--ratio", "4", "--sched", "host", "--duration", window])
}

/// Turns on a pCPU.
fn turns(shown: &[Shown]) -> Vec<&Shown> {
    shown.iter().filter(|shown| shown.track.starts_with("pCPUs/")).collect()
}

fn counted_preemptions(record: &Value) -> u64 {
    record["figures"]["preemptions"].as_u64().expect("somebody counts")
}

#[apply(trial)]
fn without_reported_switches_no_vcpu_is_shown_on_a_pcpu() -> Check {
    kvm()?;
    let (record, shown) = under_the_host("host-unreported", "100ms");
    if record["why"]["switches_*"].is_null() {
        return skip("the host reports switches");
    }
    assert!(turns(&shown).is_empty() && record["figures"]["preemptions"].is_null(), "{}", record["figures"]);
    assert!(shown.iter().any(|shown| shown.name == "awake"), "threads that are awake need not run");
    Ok(())
}

#[apply(trial)]
fn reported_switches_show_in_a_trace_who_ran_on_which_pcpu() -> Check {
    kvm()?;
    let (record, _) = under_the_host("host-probe", "10ms");
    if let Some(reason) = record["why"]["switches_*"].as_str() {
        return skip(reason);
    }
    let (record, shown) = in_some_window("somebody preempted by the host", |window| {
        let seen = under_the_host("host", window);
        Some(seen).filter(|(record, _)| counted_preemptions(record) > 0)
    });
    let turns = turns(&shown);
    // No vCPU sleeps: one on a pCPU runs, and one off it was preempted. Turns that begin with the trace do so before
    // their place is known.
    let of = |turn: &Shown, name: &str| {
        let track = format!("vCPUs/{}", turn.name);
        shown.iter().any(|shown| {
            shown.track == track
                && shown.name.starts_with(name)
                && if name == "running" {
                    shown.begin_ns == turn.begin_ns
                } else {
                    shown.begin_ns == turn.end_ns
                }
        })
    };
    let running = turns.iter().filter(|turn| of(turn, "running")).count();
    let preempted = turns.iter().filter(|turn| of(turn, "preempted")).count();
    assert!(running == turns.len() && preempted > 0, "{running}, {preempted} of {} turns", turns.len());
    let counted = counted_preemptions(&record);
    let off = shown.iter().filter(|shown| shown.name.starts_with("preempted")).count() as u64;
    // The record counts inside the window, the trace from start to end.
    assert!(off >= counted, "{off} off, {counted} counted");
    Ok(())
}

#[apply(trial)]
fn in_a_namespace_of_processes_the_host_reports_its_own_threads() -> Check {
    kvm()?;
    let cpu = an_allowed_cpu();
    let mut program = Command::new("unshare");
    program.args([
        "--pid",
        "--fork",
        "--mount-proc",
        env!("CARGO_BIN_EXE_haltkick"),
        "run",
        "--sched",
        "host",
    ]);
    program.args(["--vcpus", "4", "--cpus", &cpu, "--duration", "300ms", "--no-ideal", "--format", "json"]);
    let output = match program.output() {
        Ok(output) if [0, 7].contains(&code(&output)) => output,
        Ok(output) => return skip(format_args!("unshare: {}", stderr(&output))),
        Err(error) => return skip(format_args!("unshare: {error}")),
    };
    let record: Value = serde_json::from_slice(&output.stdout).expect("a record");
    if let Some(reason) = record["why"]["switches_*"].as_str() {
        return skip(reason);
    }
    // Four that never sleep share a pCPU for many slices.
    assert!(record["figures"]["switches_read"].as_u64() > Some(0), "{:#}", record["figures"]);
    assert!(counted_preemptions(&record) > 0, "{:#}", record["figures"]);
    Ok(())
}

#[apply(trial)]
fn under_the_hosts_scheduler_each_guest_shows_its_own_vcpus() -> Check {
    kvm()?;
    let guest = "lock=ticket,vcpus=2";
    // Without attribution the kernel is not asked for its switches, so that the threads say which vCPU is awake.
    let run = ["--sched", "host", "--attribution", "off", "--duration", "50ms"];
    let (_, shown) = traced("trace-two", &[&run[..], &["--vm", guest, "--vm", guest]].concat());
    let awake = shown.iter().filter(|shown| shown.name == "awake").map(|shown| shown.track.as_str());
    let tracks: std::collections::BTreeSet<&str> = awake.collect();
    assert_eq!(tracks.len(), 4, "two guests of two vCPUs: {tracks:?}");
    Ok(())
}

#[apply(trial)]
fn every_injection_is_an_instant_in_the_trace() -> Check {
    kvm()?;
    let arguments =
        ["--lock", "tas", "--ratio", "4", "--deschedule", "holder,rate=200,for=1ms", "--duration"];
    let (record, shown) = in_some_window("a holder taken off", |window| {
        let seen = traced("injected", &[&arguments[..], &[window]].concat());
        Some(seen).filter(|(record, _)| record["figures"]["injected_holder"].as_u64() > Some(0))
    });
    let instants = shown.iter().filter(|shown| shown.name == "injection").count() as u64;
    let off = shown.iter().filter(|shown| shown.name == "descheduled: holder").count() as u64;
    let injected = record["figures"]["injected_holder"].as_u64().expect("a count");
    // The record counts inside the window, the trace from start to end.
    assert!(instants >= injected && off >= injected, "{instants} instants, {off} off, {injected} injected");
    Ok(())
}

#[apply(trial)]
fn a_trace_of_a_hang_is_written_and_ends_with_it() -> Check {
    kvm()?;
    let (record, shown) = traced(
        "hang",
        &words("--workload selftest-hang --lock tas --vcpus 4 --watchdog 300ms --duration 60s"),
    );
    assert_eq!(record["schema"], "haltkick.failure");
    let waits = shown.iter().filter(|shown| shown.name == "wait for lock 0");
    let longest = waits.max_by_key(|wait| wait.end_ns - wait.begin_ns).expect("somebody waits");
    assert!(longest.end_ns - longest.begin_ns > 250_000_000, "{longest:?}");
    Ok(())
}

#[apply(trial)]
fn a_profile_is_a_table_for_people_and_rows_for_programs() -> Check {
    kvm()?;
    let profiled = |window: &str, format: &str| {
        let fixed = ["run", "--lock", "ticket", "--ratio", "4", "--profile", "--no-ideal"];
        stdout(&haltkick(&[&fixed[..], &["--duration", window, "--format", format]].concat()))
    };
    let text = profiled("300ms", "table");
    assert!(text.contains("# Overhead  State") && text.contains("by state: "), "{text}");
    let profile = in_some_window("a sample", |window| {
        let record: Value = serde_json::from_str(&profiled(window, "json")).expect("a record");
        Some(record["profile"].clone()).filter(|profile| profile["samples"].as_u64() > Some(0))
    });
    let rows = profile["rows"].as_array().expect("rows");
    let sum: u64 = rows.iter().map(|row| row["samples"].as_u64().unwrap()).sum();
    assert_eq!(Some(sum), profile["samples"].as_u64());
    Ok(())
}
