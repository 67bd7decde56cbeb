//! Results for other programs: exports, the script that draws the headline picture again, lists and stacks.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::{
    Check, SIMULATED, apply, assert_valid, code, command, finished, haltkick, refusal, scratch, skip, stderr,
    stdout, trial,
};

/// Two locks on a simulated machine, once: needs no KVM.
fn results(name: &str) -> PathBuf {
    let results = scratch(name).join("results");
    let sweep = [
        "sweep",
        "--vary",
        "ratio=1",
        "--vary",
        "lock=ticket,mcs",
        "--compare",
        "--blocks",
        "1",
        "--output",
        results.to_str().unwrap(),
    ];
    // Next to the directory, where a process that runs guests opens nothing from then on.
    let table = format!("markdown={}", results.with_file_name("table.md").display());
    finished(&[&sweep[..], &SIMULATED, &["--export", &table]].concat());
    results
}

#[apply(trial)]
fn a_directory_is_exported_in_every_format_and_to_standard_output() {
    let results = results("exports");
    let directory = results.to_str().unwrap();
    let elsewhere = results.with_file_name("elsewhere.csv");
    let csv = format!("csv={}", elsewhere.display());
    let exports = ["--export", "markdown", "--export", &csv];
    let output = finished(&[&["report", directory], &exports[..]].concat());
    assert_eq!(stderr(&output).lines().filter(|line| line.starts_with("exported: ")).count(), 2);
    let read =
        |path: &Path| fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let table = read(&results.join("table.md"));
    assert!(
        table.starts_with("### Sweep of lock over ratio\n") && table.contains("| mcs/ticket |"),
        "{table}"
    );
    let runs = read(&results.join("runs.csv"));
    assert_eq!(read(&elsewhere), runs);
    let alone = finished(&["report", directory, "--export", "markdown=-"]);
    assert_eq!(stdout(&alone), table);
    assert_eq!(read(&results.with_file_name("table.md")), table);
    let message = refusal(&["report", directory, "--export", "markdwn"]);
    assert!(message.contains("unknown format 'markdwn': did you mean 'markdown'?"), "{message}");
    let nowhere = format!("csv={directory}/none/runs.csv");
    let message = refusal(&["report", directory, "--export", &nowhere]);
    assert!(message.contains("none/runs.csv: No such file or directory"), "{message}");
}

#[apply(trial)]
fn the_script_recomputes_the_headline_picture_and_notices_a_difference() -> Check {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/headline.py");
    if let Err(error) = Command::new("python3").arg("--version").output() {
        return skip(format_args!("python3: {error}"));
    }
    let results = results("headline");
    let points = || Command::new("python3").arg(script).arg(&results).arg("--points").output().unwrap();
    let output = points();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let drawn = stdout(&output);
    assert!(drawn.starts_with("ratio,arm,estimate,low,high"), "{drawn}");
    // Two arms, and the lock-free cell.
    assert_eq!(drawn.lines().count(), 1 + 3, "{drawn}");
    let runs = results.join("runs.csv");
    let text = fs::read_to_string(&runs).unwrap();
    let is_of_it = |line: &&str| line.contains(",acquisitions_per_second,") && line.contains(",ticket,arm,");
    let line = text.lines().find(is_of_it).unwrap();
    let (rest, _) = line.rsplit_once(',').unwrap();
    fs::write(&runs, text.replace(line, &format!("{rest},12345"))).unwrap();
    let output = points();
    assert!(code(&output) != 0 && stderr(&output).contains("and the runs give 12345"), "{}", stderr(&output));
    Ok(())
}

#[apply(trial)]
fn lists_and_the_doctor_answer_in_json_by_the_same_option() {
    for of in ["locks", "workloads", "points", "experiments", "machines"] {
        let output = haltkick(&["list", of, "--format", "json"]);
        let listing: Value = serde_json::from_str(&stdout(&output)).unwrap();
        assert_valid("list", &listing);
        let told = stdout(&haltkick(&["list", of]));
        let names: Vec<&str> = told.lines().filter_map(|line| line.split_whitespace().next()).collect();
        let listed =
            listing["entries"].as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap());
        assert_eq!(listed.collect::<Vec<_>>(), names, "{of}");
        assert_eq!(listing["of"], of);
    }
    let locks: Value =
        serde_json::from_str(&stdout(&haltkick(&["list", "locks", "--format", "json"]))).unwrap();
    let lock = |name: &str| {
        locks["entries"].as_array().unwrap().iter().find(|lock| lock["name"] == name).unwrap().clone()
    };
    assert_eq!(lock("qspinlock")["pv"], serde_json::json!(["on", "off"]));
    assert_eq!(lock("tas")["pv"], serde_json::json!(["off"]));
    assert_eq!(lock("mutex")["layouts"].as_array().unwrap().len(), 4);
    // The old option, --json, is in `help`, with all that the doctor tries: of this, a QEMU with KVM takes ten seconds where ring 0
    // is interpreted.
    let doctor = command(&["doctor", "--format", "json"]).env("HALTKICK_QEMU", "/nonexistent").output();
    let doctor: Value =
        serde_json::from_str(&stdout(&doctor.expect("haltkick can be started"))).expect("JSON");
    assert_valid("doctor", &doctor);
}

#[apply(trial)]
fn each_arms_first_run_keeps_its_timeline_for_the_report() {
    let results = scratch("timeline").join("results");
    let sweep =
        ["sweep", "--vary", "lock=ticket,mcs", "--blocks", "2", "--output", results.to_str().unwrap()];
    finished(&[&sweep[..], &SIMULATED].concat());
    let records = fs::read_to_string(results.join("runs.jsonl")).unwrap();
    let records: Vec<Value> = records.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut kept = 0;
    for record in &records {
        let is_first = record["place"]["block"] == 0 && record["place"]["role"] == "arm";
        assert_eq!(record["timeline"].is_object(), is_first, "{record}");
        if !is_first {
            assert_eq!(record["why"]["timeline"], "records have it of the first run of each arm");
            continue;
        }
        kept += 1;
        for side in ["on_pcpu", "off_pcpu"] {
            let vcpus = record["timeline"][side].as_array().unwrap();
            assert_eq!(vcpus.len() as u64, record["settings"]["vcpus"].as_u64().unwrap());
            assert!(vcpus.iter().all(|vcpu| (1..=100).contains(&vcpu.as_str().unwrap().len())), "{vcpus:?}");
        }
    }
    assert_eq!(kept, 2);
    let page = fs::read_to_string(results.join("report.html")).unwrap();
    assert!(page.contains("Where each vCPU was") && page.contains("<title>mcs: on a pCPU</title>"));
}

/// Whatever guests and vCPUs say of themselves: their sums go beyond what a number holds.
#[apply(trial)]
fn counts_as_great_as_a_number_holds_are_reported_like_others() {
    let results = scratch("great").join("results");
    let sweep =
        ["sweep", "--vary", "lock=ticket,mcs", "--blocks", "2", "--output", results.to_str().unwrap()];
    finished(&[&sweep[..], &SIMULATED].concat());
    let file = results.join("runs.jsonl");
    let records = fs::read_to_string(&file).unwrap();
    let records: Vec<Value> = records.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut changed = 0;
    for part in ["totals", "per_vcpu", "wait_ns", "hold_ns", "preemptions", "preempted_ns", "lock_events"] {
        let lines = records.iter().map(|record| {
            let mut record = record.clone();
            changed += enlarged(&mut record[part]);
            format!("{record}\n")
        });
        fs::write(&file, lines.collect::<String>()).unwrap();
        let answer = haltkick(&["report", results.to_str().unwrap()]);
        assert!([0, 7].contains(&code(&answer)), "{part}: {}", stderr(&answer));
    }
    assert!(changed > 100, "{changed} counts");
}

/// Makes all counts in a value the greatest that there is; how many they were.
fn enlarged(value: &mut Value) -> usize {
    match value {
        Value::Number(number) if number.is_u64() => {
            *value = u64::MAX.into();
            1
        }
        Value::Array(values) => values.iter_mut().map(enlarged).sum(),
        Value::Object(fields) => fields.values_mut().map(enlarged).sum(),
        _ => 0,
    }
}

#[apply(trial)]
fn a_profile_is_written_as_folded_stacks() {
    let folded = scratch("folded").join("ticket.folded");
    let run = [
        "run",
        "--engine",
        "sim",
        "--machine",
        "cascadelake-2s",
        "--cpus",
        "0-1",
        "--ratio",
        "1",
        "--duration",
        "20ms",
        "--no-ideal",
        "--lock",
        "ticket",
    ];
    let profile = ["--profile", "--folded", folded.to_str().unwrap(), "--format", "json"];
    let output = finished(&[&run[..], &profile].concat());
    let record: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let text = fs::read_to_string(&folded).unwrap();
    let samples: u64 =
        text.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum();
    assert_eq!(Some(samples), record["profile"]["samples"].as_u64());
    assert!(
        samples > 0 && text.lines().all(|line| line.starts_with("ticket;") && line.matches(';').count() >= 2),
        "{text}"
    );
    let message = refusal(&[&run[..], &["--folded", "x"]].concat());
    assert!(message.contains("--profile"), "{message}");
}
