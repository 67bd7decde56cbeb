//! Results for other programs: exports, the script that draws the headline picture again, lists and stacks.

use std::process::Command;

use serde_json::Value;

use crate::support::{
    Check, SIMULATED, apply, assert_valid, command, end_of, finished, haltkick, has, read, records, refuses,
    scratch, trial, written,
};

/// Two locks on a simulated machine, twice: needs no KVM.
fn results(name: &str) -> String {
    let results = format!("{}/results", scratch(name));
    let sweep = "sweep --vary ratio=1 --vary lock=ticket,mcs --compare --blocks 2";
    // Next to the directory, where a process that runs guests opens nothing from then on.
    let table = format!("markdown={results}.table.md");
    finished(&format!("{sweep} {SIMULATED} --output {results} --export {table}"));
    results
}

#[apply(trial)]
fn a_directory_is_exported_in_every_format_and_to_standard_output() {
    let results = results("exports");
    let exported = finished(&format!("report {results} --export markdown --export csv={results}.csv"));
    assert_eq!(exported.err.lines().filter(|line| line.starts_with("exported: ")).count(), 2, "{exported}");
    let table = read(format!("{results}/table.md"));
    assert!(
        table.starts_with("### Sweep of lock over ratio\n") && table.contains("| mcs/ticket |"),
        "{table}"
    );
    assert_eq!(read(format!("{results}.csv")), read(format!("{results}/runs.csv")));
    assert_eq!(finished(&format!("report {results} --export markdown=-")).out, table);
    assert_eq!(read(format!("{results}.table.md")), table);
    let nowhere = format!("report {results} --export csv={results}/none/runs.csv");
    refuses(&nowhere, "none/runs.csv: No such file or directory");
}

#[apply(trial)]
fn the_script_recomputes_the_headline_picture_and_notices_a_difference() -> Check {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/headline.py");
    has("python3")?;
    let results = results("headline");
    let points = || end_of(Command::new("python3").args([script, &results, "--points"]));
    let drawn = points().with(&[0]).out;
    assert!(drawn.starts_with("ratio,arm,estimate,low,high"), "{drawn}");
    assert_eq!(drawn.lines().count(), 1 + 3, "two arms and the lock-free cell: {drawn}");
    let runs = format!("{results}/runs.csv");
    let text = read(&runs);
    let is_of_it = |line: &&str| line.contains(",acquisitions_per_second,") && line.contains(",ticket,arm,");
    // All values are changed, so that any estimate of them is this one.
    let changed = text.lines().map(|line| match line.rsplit_once(',').filter(|_| is_of_it(&line)) {
        Some((rest, _)) => format!("{rest},12345\n"),
        None => format!("{line}\n"),
    });
    written(runs, changed.collect::<String>());
    let ended = points().says(&["and the runs give 12345"]);
    assert_ne!(ended.code, 0);
    Ok(())
}

#[apply(trial)]
fn lists_and_the_doctor_answer_in_json_by_the_same_option() {
    for of in ["locks", "workloads", "points", "experiments", "machines"] {
        let listing = haltkick(&format!("list {of} --format json")).json();
        assert_valid("list", &listing);
        let told = haltkick(&format!("list {of}")).out;
        let names: Vec<&str> = told.lines().filter_map(|line| line.split_whitespace().next()).collect();
        let listed =
            listing["entries"].as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap());
        assert_eq!(listed.collect::<Vec<_>>(), names, "{of}");
        assert_eq!(listing["of"], of);
    }
    let locks = haltkick("list locks --format json").json();
    let locks = locks["entries"].as_array().unwrap();
    let lock = |name: &str| locks.iter().find(|lock| lock["name"] == name).unwrap();
    assert_eq!(lock("qspinlock")["pv"], serde_json::json!(["on", "off"]));
    assert_eq!(lock("tas")["pv"], serde_json::json!(["off"]));
    // A lock in several layouts is listed once.
    assert_eq!(locks.iter().filter(|lock| lock["name"].as_str().unwrap().starts_with("mutex")).count(), 1);
    assert_eq!(lock("mutex")["layouts"].as_array().unwrap().len(), 4);
    haltkick("list locks").prints(&["--layout packed, split, cached, prev-cpu\n"]);
    haltkick("list").prints(&["haltkick list locks", "haltkick list machines", "haltkick list figures"]);
    // The old option, --json, is in `help`, with all that the doctor tries: of this, a QEMU with KVM takes ten seconds where ring 0
    // is interpreted.
    let doctor = end_of(command("doctor --format json").env("HALTKICK_QEMU", "/nonexistent"));
    assert_valid("doctor", &doctor.json());
}

#[apply(trial)]
fn each_arms_first_run_keeps_its_timeline_for_the_report() {
    let results = results("timeline");
    let mut kept = 0;
    for record in records(&results) {
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
    let page = read(format!("{results}/report.html"));
    assert!(page.contains("Where each vCPU was") && page.contains("<title>mcs: on a pCPU</title>"));
}

/// Whatever guests and vCPUs say of themselves: their sums go beyond what a number holds.
#[apply(trial)]
fn counts_as_great_as_a_number_holds_are_reported_like_others() {
    let results = results("great");
    let records = records(&results);
    let mut changed = 0;
    for part in ["totals", "per_vcpu", "wait_ns", "hold_ns", "preemptions", "preempted_ns", "lock_events"] {
        let lines = records.iter().map(|record| {
            let mut record = record.clone();
            changed += enlarged(&mut record[part]);
            format!("{record}\n")
        });
        written(format!("{results}/runs.jsonl"), lines.collect::<String>());
        finished(&format!("report {results}"));
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
    let folded = format!("{}/ticket.folded", scratch("folded"));
    let run = "run --engine sim --machine cascadelake-2s --cpus 0-1 --ratio 1 --duration 20ms --no-ideal --lock ticket";
    let record = finished(&format!("{run} --profile --folded {folded} --format json")).json();
    let text = read(folded);
    let samples: u64 =
        text.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum();
    assert_eq!(Some(samples), record["profile"]["samples"].as_u64());
    let is_stack = |line: &str| line.starts_with("ticket;") && line.matches(';').count() >= 2;
    assert!(samples > 0 && text.lines().all(is_stack), "{text}");
    finished(&format!("{run} --profile")).prints(&["# Overhead  State", "that vCPUs had on simulated pCPUs"]);
    refuses(&format!("{run} --folded x"), "--profile");
}
