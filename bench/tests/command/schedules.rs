//! `--schedule FILE`: a recorded schedule that a simulated machine repeats.

use std::fs;

use serde_json::{Value, json};

use crate::support::{SIMULATED, apply, code, haltkick, refusal, scratch, stderr, stdout, trial, words};

fn record(more: &[&str]) -> Value {
    let machine =
        ["run", "--engine", "sim", "--machine", "nehalem-2s", "--pv", "on", "--no-ideal", "--format", "json"];
    let done = haltkick(&[&machine, more].concat());
    assert_eq!(code(&done), 0, "{}", stderr(&done));
    serde_json::from_str(&stdout(&done)).expect("a record")
}

#[apply(trial)]
fn a_recorded_schedule_repeats_under_another_lock() {
    let trace = scratch("schedule").join("recorded.pftrace");
    let trace = trace.to_str().unwrap();
    // Four vCPUs share two CPUs; then each has one of its own, and none where the recording took it.
    let shared = ["--cpus", "0-1", "--ratio", "2", "--slice", "200us", "--window", "6ms", "--trace", trace];
    record(&[&["--lock", "qspinlock"], &shared[..]].concat());
    let alone = ["--cpus", "0-3", "--ratio", "1", "--window", "5ms", "--schedule", trace];
    for lock in ["qspinlock", "ticket"] {
        let record = record(&[&["--lock", lock], &alone[..]].concat());
        let kept = &record["figures"];
        let honoured = kept["schedule_honoured"].as_f64().expect("a share");
        assert!(honoured > 0.995 && honoured <= 1.0, "{kept:#}");
        assert!(kept["schedule_absences"].as_u64().unwrap() > 20, "{kept:#}");
        // Half of the four vCPUs' time, or less where they slept.
        let absent_ns = kept["schedule_absent_ns"].as_u64().unwrap();
        assert!((4_000_000..=11_000_000).contains(&absent_ns), "{kept:#}");
        assert_eq!((&record["settings"]["schedule"], &record["trusted"]), (&json!(trace), &json!(true)));
    }
}

#[apply(trial)]
fn a_schedule_that_lacks_events_makes_the_run_invalid() {
    let file = scratch("schedule-lacks").join("x.txt");
    let text = "\
CPU 0/KVM-9 [000] 1.5: sched_switch: CPU 0/KVM:9 [120] R ==> x:1 [120]
x-1 [000] 1.501: sched_switch: x:1 [120] S ==> CPU 0/KVM:9 [120]
CPU:0 [LOST 7 EVENTS]
";
    let end = "x-1 [001] 1.6: sched_switch: x:1 [120] S ==> y:2 [120]\n";
    fs::write(&file, [text, end].concat()).unwrap();
    let run = words("run --engine sim --machine nehalem-2s --cpus 0-1 --ratio 1 --window 5ms --lock tas");
    let done = haltkick(
        &[&run[..], &["--no-ideal", "--format", "json", "--schedule", file.to_str().unwrap()]].concat(),
    );
    let record: Value = serde_json::from_str(&stdout(&done)).expect("a record");
    let warning = json!({
        "code": "schedule-doubtful",
        "message": "the recorded schedule lacks events: line 3: events were lost: record with larger buffers (7 in all)",
    });
    assert_eq!((code(&done), &record["trusted"], &record["warnings"]), (7, &json!(false), &json!([warning])));
}

#[apply(trial)]
fn what_is_no_schedule_is_refused_in_one_line() {
    let directory = scratch("no-schedule");
    let (file, good) = (directory.join("x.txt"), directory.join("good.txt"));
    fs::write(&file, "1.5: sched_switch: vcpu0 nonsense\n").unwrap();
    let line = "CPU 0/KVM-9 [000] 1.5: sched_switch: CPU 0/KVM:9 [120] R ==> x:1 [120]\n";
    fs::write(&good, [line, "x-1 [000] 1.6: sched_switch: x:1 [120] S ==> CPU 0/KVM:9 [120]\n"].concat())
        .unwrap();
    let refused = |path: &str, more: &[&str], expected: &str| {
        let refused = refusal(&[&["run"], more, &["--schedule", path]].concat());
        assert!(refused.contains(expected), "{refused}");
    };
    let (file, good) = (file.to_str().unwrap(), good.to_str().unwrap());
    let alone = [&SIMULATED[..], &["--ratio", "1"]].concat();
    refused("/nonexistent", &alone, "--schedule: /nonexistent: No such file");
    refused(file, &alone, "x.txt: line 1: a switch without ==>");
    refused(good, &SIMULATED, "use one guest with 2 vCPUs at most");
    refused(good, &[], "only engine sim");
    let long =
        ["--engine", "sim", "--machine", "nehalem-2s", "--cpus", "0-1", "--ratio", "1", "--window", "200ms"];
    refused(good, &long, "use a shorter window");
    let experiment = directory.join("x.toml");
    let text = "format = 1\nname = \"x\"\ntitle = \"x\"\nblocks = 1\n[settings]\nengine = \"sim\"\nmachine = \"nehalem-2s\"\n\
                schedule = \"/nonexistent\"\n[[arm]]\nname = \"a\"\nlock = \"tas\"\n[control]\narm = \"a\"\n";
    fs::write(&experiment, text).unwrap();
    let done = haltkick(&["bench", experiment.to_str().unwrap(), "--dry-run"]);
    assert!(code(&done) == 3 && stderr(&done).contains("/nonexistent"), "{}", stderr(&done));
}
