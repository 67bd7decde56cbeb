//! Single runs, their records, and how they fail.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::support::{
    Check, FINISHED, HALTKICK, Signal, an_allowed_cpu, apply, assert_complete, assert_valid, command, ends,
    eventually, finished, haltkick, has, in_some_window, is_warned, kvm_trial, shell, skip, started, trial,
};

#[apply(trial)]
fn a_guest_that_comes_late_is_calibrated_and_has_an_ideal() {
    // Its ideal has a window of 200 ms, in which it is there for the same share: 50 ms, which a busy host may take away.
    let late = "run --engine threads --vcpus 1 --duration 400ms --from 300ms --format json";
    eventually("an efficiency of about 1", || {
        let record = finished(late).json();
        assert_complete(&record);
        assert_eq!(
            (&record["settings"]["engine"], &record["settings"]["ring"]),
            (&"threads".into(), &3.into())
        );
        assert_eq!(record["settings"]["from_ns"], 300_000_000);
        let efficiency = record["figures"]["efficiency"].as_f64().expect("it has an ideal");
        (0.4..2.0).contains(&efficiency).then_some(())
    });
}

#[apply(kvm_trial)]
fn a_failed_guest_gives_an_exit_code_a_story_and_a_record() {
    for (workload, code, expected, cause, at_fault) in [
        ("selftest-panic", 5, "guest panicked on vCPU 0", "panic", Some(0)),
        ("selftest-exception", 5, "guest exception on vCPU 3: #PF", "exception", Some(3)),
        ("selftest-exclusion", 5, "mutual exclusion violated", "exclusion-broken", None),
        ("selftest-hang", 6, "no progress", "holder-runs", Some(0)),
    ] {
        let fixed = "run --vcpus 4 --duration 5s --watchdog 500ms --lock tas --format json";
        let failed = ends(code, &format!("{fixed} --workload {workload}"));
        let last = failed.err.lines().last().unwrap();
        assert!(last.starts_with("haltkick: ") && last.contains(expected), "{failed}");
        let record = failed.json();
        assert_valid("failure", &record);
        let verdict = &record["explanation"]["verdict"];
        assert_eq!((&verdict["cause"], verdict["vcpu"].as_u64()), (&cause.into(), at_fault), "{workload}");
        assert_eq!(record["exit_code"], code, "{workload}");
        let console = record["console"].as_str().unwrap();
        let said = console.contains("selftest-panic: vCPU 0 is about to panic");
        assert_eq!(said, workload == "selftest-panic", "{workload}: {console}");
        failed.says(&[verdict["text"].as_str().unwrap(), console.trim_end()]);
    }
}

#[apply(kvm_trial)]
fn a_guest_that_dies_is_named_beside_the_others_record() {
    let guests = "--vm=name=doomed,workload=selftest-panic --vm=name=other,lock=tas";
    // In a short window of a busy host the vCPU that is to panic may have no turn, and then it has not died.
    let ended = in_some_window("a guest that dies", |window| {
        let ended = haltkick(&format!("run --vcpus=4 --format=json {guests} --duration {window}"));
        Some(ended).filter(|ended| !FINISHED.contains(&ended.code))
    });
    let record = ended.with(&[5]).says(&["haltkick: guest `doomed`: guest panicked"]).json();
    assert_valid("run", &record);
    assert_eq!((&record["settings"]["guest"], &record["trusted"]), (&"other".into(), &false.into()));
    assert!(record["warnings"].to_string().contains("guest doomed died"), "{}", record["warnings"]);
}

#[apply(kvm_trial)]
fn the_record_says_how_long_a_neighbour_delayed_the_runs_threads() -> Check {
    let cpu = an_allowed_cpu();
    has("taskset")?;
    // It does nothing but run.
    let neighbour = started(Command::new("taskset").args(["-c", &cpu, "sh", "-c", "while :; do :; done"]));
    let run = format!("run --cpus {cpu} --ratio 2 --lock tas --no-ideal --format json");
    let delay_share = |record: &Value| record["noise"]["run_delay_share"].as_f64();
    // A neighbour may begin late, and may itself wait for others.
    let (ended, record) = in_some_window("a neighbour that delays the run", |window| {
        let ended = haltkick(&format!("{run} --duration {window}"));
        let record = ended.json();
        let delayed = delay_share(&record).is_none_or(|share| share > 0.1);
        Some((ended, record)).filter(|_| delayed)
    });
    drop(neighbour);
    if delay_share(&record).is_none() {
        return skip(&record["why"]["noise.run_delay_share"]);
    }
    assert!(is_warned(&record, "busy-neighbour"), "{ended}");
    assert_eq!(ended.code, 7, "a run by itself is the headline");
    Ok(())
}

#[apply(trial)]
fn a_run_whose_process_was_stopped_meanwhile_is_not_trusted() {
    let run = format!("run --engine threads --sched host --vcpus 2 --cpus {}", an_allowed_cpu());
    let mut run = started(&mut command(&format!("{run} --duration 1s --no-ideal --format json")));
    let tasks = format!("/proc/{}/task", run.child().id());
    let runs_vcpus = || std::fs::read_dir(&tasks).is_ok_and(|tasks| tasks.count() >= 4).then_some(());
    eventually("threads that run vCPUs", runs_vcpus);
    run.signal(Signal::STOP);
    std::thread::sleep(Duration::from_millis(1500));
    run.signal(Signal::CONT);
    let record = run.ended().json();
    assert!(is_warned(&record, "stopped") && record["trusted"] == false, "{}", record["warnings"]);
    let share = record["noise"]["stopped_share"].as_f64();
    assert!(share.is_some_and(|share| share > 0.1), "{:#}", record["noise"]);
}

#[apply(kvm_trial)]
fn guests_with_too_few_files_together_are_refused_or_get_more() -> Check {
    let within = |files: &str, with: &str, run: &str| {
        shell(&format!("ulimit {files} && exec {with} {HALTKICK} run --no-ideal {run}"))
    };
    let guests = "--sched vmm --lock none --pv off --duration 20ms --vm vcpus=150 --vm vcpus=150";
    // Up to the hard limit any process may go by itself.
    within("-S -n 300", "", guests).with(FINISHED);
    let mut with = "";
    if FINISHED.contains(&within("-n 300", "", guests).code) {
        // A privileged user raises the limit.
        with = "setpriv --bounding-set=-sys_resource";
        let tried = shell(&format!("ulimit -n 300 && {with} sh -c 'ulimit -n 301'"));
        if tried.code == 127 || !tried.err.contains("ulimit") {
            return skip(format_args!("`{with}` does not take away the privilege to open more files"));
        }
    }
    within("-n 300", with, guests).with(&[4]).says(&["open files"]);
    within("-n 20", with, "--vcpus 16").with(&[4]).says(&["haltkick: 16 vCPUs need ", "open files"]);
    Ok(())
}
