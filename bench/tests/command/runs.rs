//! Single runs, their records, and how they fail.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::support::{
    Check, FINISHED, an_allowed_cpu, apply, assert_valid, code, command, eventually, finished, haltkick,
    in_some_window, kvm, nulls_without_reason, refusal, skip, stderr, stdout, trial, words,
};

#[apply(trial)]
fn threads_need_no_kvm_and_the_record_names_the_engine() {
    let output =
        haltkick(&["run", "--engine", "threads", "--duration", "20ms", "--no-ideal", "--format", "json"]);
    assert!([0, 7].contains(&code(&output)), "{}", stderr(&output));
    let record: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(record["settings"]["engine"], "threads");
    assert_eq!(record["settings"]["ring"], 3);
    assert_valid("run", &record);
    let message = refusal(&["run", "--perf-map"]);
    assert!(message.contains("only --engine threads"), "{message}");
}

#[apply(trial)]
fn a_guest_that_comes_late_is_calibrated_and_has_an_ideal() {
    // Its ideal has a window of 200 ms, in which it is there for the same share: 50 ms, which a busy host may take away.
    let late = ["run", "--engine", "threads", "--vcpus", "1", "--duration", "400ms", "--from", "300ms"];
    eventually("an efficiency of about 1", || {
        let output = haltkick(&[&late[..], &["--format", "json"]].concat());
        assert!([0, 7].contains(&code(&output)), "{}", stderr(&output));
        let record: Value = serde_json::from_str(&stdout(&output)).expect("a record");
        assert_eq!(record["settings"]["from_ns"], 300_000_000);
        let efficiency = record["figures"]["efficiency"].as_f64().expect("it has an ideal");
        (0.4..2.0).contains(&efficiency).then_some(())
    });
}

#[apply(trial)]
fn a_window_lasts_as_many_turns_of_every_vcpu_as_given() {
    let cpu = an_allowed_cpu();
    let fixed =
        ["run", "--engine", "threads", "--vcpus", "4", "--cpus", &cpu, "--slice", "2ms", "--no-ideal"];
    let window_ns = |more: &[&str]| {
        let output = haltkick(&[&fixed, more, &["--format", "json"]].concat());
        let record: serde_json::Value = serde_json::from_str(&stdout(&output)).expect("a record");
        record["settings"]["window_ns"].as_u64()
    };
    assert_eq!(window_ns(&["--duration", "10ms", "--min-turns", "5"]), Some(4 * 2 * 5 * 1_000_000));
    assert_eq!(window_ns(&["--duration", "50ms", "--min-turns", "5"]), Some(50_000_000));
}

#[apply(trial)]
fn a_record_without_a_value_says_why() -> Check {
    kvm()?;
    let output = finished(&words("run --lock none --vcpus 2 --duration 5ms --sched host --format json"));
    let record: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_valid("run", &record);
    assert_eq!(nulls_without_reason(&record), [""; 0], "{}", record["why"]);
    for (path, pointer) in
        [("settings.slice_ns", "/settings/slice_ns"), ("lost_updates", "/figures/lost_updates")]
    {
        assert_eq!(record.pointer(pointer), Some(&Value::Null), "{path}");
        assert!(record["why"][path].as_str().is_some_and(|why| !why.is_empty()), "{path}: {}", record["why"]);
    }
    Ok(())
}

#[apply(trial)]
fn a_failed_guest_gives_an_exit_code_a_story_and_a_record() -> Check {
    kvm()?;
    for (workload, code, expected, cause, at_fault) in [
        ("selftest-panic", 5, "guest panicked on vCPU 0", "panic", Some(0)),
        ("selftest-exception", 5, "guest exception on vCPU 3: #PF", "exception", Some(3)),
        ("selftest-exclusion", 5, "mutual exclusion violated", "exclusion-broken", None),
        ("selftest-hang", 6, "no progress", "holder-runs", Some(0)),
    ] {
        let output = haltkick(&[
            "run",
            "--vcpus",
            "4",
            "--duration",
            "5s",
            "--watchdog",
            "500ms",
            "--lock",
            "tas",
            "--workload",
            workload,
            "--format",
            "json",
        ]);
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{workload}: {message}");
        let last = message.lines().last().unwrap();
        assert!(last.starts_with("haltkick: ") && last.contains(expected), "{workload}: {message}");
        let record: Value = serde_json::from_slice(&output.stdout).expect("a record of the failure");
        assert_valid("failure", &record);
        let verdict = &record["explanation"]["verdict"];
        assert_eq!(
            (&verdict["cause"], verdict["vcpu"].as_u64()),
            (&Value::from(cause), at_fault),
            "{workload}"
        );
        assert!(message.contains(verdict["text"].as_str().unwrap()), "{workload}: {message}");
        assert_eq!(record["exit_code"], code, "{workload}");
        let console = record["console"].as_str().unwrap();
        assert!(message.contains(console.trim_end()), "{workload}: {console}");
        let said = console.contains("selftest-panic: vCPU 0 is about to panic");
        assert_eq!(said, workload == "selftest-panic", "{workload}: {console}");
    }
    Ok(())
}

#[apply(trial)]
fn a_guest_that_dies_is_named_beside_the_others_record() -> Check {
    kvm()?;
    let arguments = ["run", "--vcpus=4", "--format=json", "--vm=name=doomed,workload=selftest-panic"];
    // In a short window of a busy host the vCPU that is to panic may have no turn, and then it has not died.
    let output = in_some_window("a guest that dies", |window| {
        let more = ["--vm=name=other,lock=tas", "--duration", window];
        let output = haltkick(&[&arguments[..], &more].concat());
        Some(output).filter(|output| !FINISHED.contains(&code(output)))
    });
    assert_eq!(code(&output), 5, "{}", stderr(&output));
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(words.contains("haltkick: guest `doomed`: guest panicked"), "{words}");
    let record: Value = serde_json::from_slice(&output.stdout).expect("one record");
    assert_valid("run", &record);
    assert_eq!((&record["settings"]["guest"], &record["trusted"]), (&"other".into(), &false.into()));
    assert!(record["warnings"].to_string().contains("guest doomed died"), "{}", record["warnings"]);
    Ok(())
}

/// A process that does nothing but run, until this is dropped.
struct Neighbour(Child);

impl Drop for Neighbour {
    fn drop(&mut self) {
        self.0.kill().expect("the neighbour is ours");
        self.0.wait().expect("the neighbour ends");
    }
}

#[apply(trial)]
fn the_record_says_how_long_a_neighbour_delayed_the_runs_threads() -> Check {
    kvm()?;
    let cpu = an_allowed_cpu();
    let neighbour = Command::new("taskset").args(["-c", &cpu, "sh", "-c", "while :; do :; done"]).spawn();
    let neighbour = Neighbour(neighbour.or_else(|error| skip(format_args!("taskset: {error}")))?);
    let arguments =
        ["run", "--cpus", &cpu, "--ratio", "2", "--lock", "tas", "--no-ideal", "--format", "json"];
    let delay_share = |record: &Value| record["noise"]["run_delay_share"].as_f64();
    // A neighbour may begin late, and may itself wait for others.
    let (output, record) = in_some_window("a neighbour that delays the run", |window| {
        let output = haltkick(&[&arguments[..], &["--duration", window]].concat());
        let record: Value = serde_json::from_slice(&output.stdout).expect("a record");
        let delayed = delay_share(&record).is_none_or(|share| share > 0.1);
        Some((output, record)).filter(|_| delayed)
    });
    drop(neighbour);
    if delay_share(&record).is_none() {
        return skip(&record["why"]["noise.run_delay_share"]);
    }
    let warnings = record["warnings"].as_array().unwrap();
    assert!(warnings.iter().any(|warning| warning["code"] == "busy-neighbour"), "{warnings:?}");
    assert_eq!(code(&output), 7, "a run by itself is the headline");
    Ok(())
}

#[apply(trial)]
fn a_run_whose_process_was_stopped_meanwhile_is_not_trusted() {
    let cpu = an_allowed_cpu();
    let mut command =
        command(&["run", "--engine", "threads", "--sched", "host", "--vcpus", "2", "--cpus", &cpu]);
    command.args(["--duration", "1s", "--no-ideal", "--format", "json"]);
    let run = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("haltkick can be started");
    let process = rustix::process::Pid::from_child(&run);
    let tasks = format!("/proc/{}/task", run.id());
    let runs_vcpus = || std::fs::read_dir(&tasks).is_ok_and(|tasks| tasks.count() >= 4).then_some(());
    eventually("threads that run vCPUs", runs_vcpus);
    rustix::process::kill_process(process, rustix::process::Signal::STOP).expect("it is ours");
    std::thread::sleep(Duration::from_millis(1500));
    rustix::process::kill_process(process, rustix::process::Signal::CONT).expect("it is ours");
    let record: Value = serde_json::from_slice(&run.wait_with_output().unwrap().stdout).expect("a record");
    let warnings = record["warnings"].as_array().unwrap();
    assert!(warnings.iter().any(|warning| warning["code"] == "stopped"), "{warnings:?}");
    assert_eq!(record["trusted"], false);
    assert!(
        record["noise"]["stopped_share"].as_f64().is_some_and(|share| share > 0.1),
        "{:#}",
        record["noise"]
    );
}

#[apply(trial)]
fn guests_with_too_few_files_together_are_refused_or_get_more() -> Check {
    kvm()?;
    let arguments =
        "run --sched vmm --lock none --pv off --no-ideal --duration 20ms --vm vcpus=150 --vm vcpus=150";
    let end_within = |files: u32, with: &str, arguments: &str| {
        let haltkick = env!("CARGO_BIN_EXE_haltkick");
        let script = format!("ulimit -n {files} && exec {with} {haltkick} {arguments}");
        let output = Command::new("sh").args(["-c", &script]).output().expect("there is a shell");
        (code(&output), stderr(&output))
    };
    let end = |with: &str| end_within(300, with, arguments);
    let is_refused = |(code, said): &(i32, String)| *code == 4 && said.contains("open files");
    let names_all_vcpus = |with: &str| {
        let end = end_within(20, with, "run --vcpus 16 --no-ideal");
        assert!(is_refused(&end) && end.1.starts_with("haltkick: 16 vCPUs need "), "{end:?}");
    };
    let end_of_user = end("");
    if is_refused(&end_of_user) {
        names_all_vcpus("");
        return Ok(());
    }
    assert!([0, 7].contains(&end_of_user.0), "a privileged user raises the limit: {end_of_user:?}");
    let unprivileged = "setpriv --bounding-set=-sys_resource";
    let script = format!("ulimit -n 300 && {unprivileged} sh -c 'ulimit -n 301'");
    match Command::new("sh").args(["-c", &script]).output() {
        Ok(output) if code(&output) != 127 && stderr(&output).contains("ulimit") => {}
        _ => {
            return skip(format_args!(
                "`{unprivileged}` does not take away the privilege to open more files"
            ));
        }
    }
    let end = end(unprivileged);
    assert!(is_refused(&end), "{end:?}");
    names_all_vcpus(unprivileged);
    Ok(())
}

#[apply(trial)]
fn the_record_says_whether_there_were_walls() -> Check {
    kvm()?;
    let run = ["run", "--no-ideal", "--duration", "20ms", "--format", "json"];
    for (options, expected) in [(&[][..], true), (&["--no-sandbox"], false)] {
        let output = haltkick(&[&run[..], options].concat());
        assert!([0, 7].contains(&code(&output)), "{}", stderr(&output));
        let record: Value = serde_json::from_str(&stdout(&output)).expect("one record");
        assert_eq!(record["sandbox"], expected);
    }
    Ok(())
}
