//! `haltkick worst`: preemptions at each instruction of a lock, on a simulated machine.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::objects::compiled;
use crate::support::{
    Check, apply, assert_valid, code, haltkick, refusal, scratch, stderr, stdout, trial, words,
};

const SHORT: [&str; 8] = ["--machine", "nehalem-2s", "--cpus", "0-1", "--slice", "200us", "--samples", "2"];

fn answer(name: &str, more: &[&str]) -> (Value, PathBuf, String) {
    let output = scratch(name).join("worst");
    let directory = ["--format", "json", "--output", output.to_str().unwrap()];
    let done = haltkick(&[&["worst", "--lock", "ticket"], more, &SHORT, &directory].concat());
    assert_eq!(code(&done), 0, "{}", stderr(&done));
    (serde_json::from_str(&stdout(&done)).expect("JSON"), output, stderr(&done))
}

/// Exit code and output of a file's replay.
fn replayed(path: &Path) -> (i32, String, String) {
    let done = haltkick(&["worst", "--format", "json", "--replay", path.to_str().unwrap()]);
    (code(&done), stdout(&done), stderr(&done))
}

#[apply(trial)]
fn a_preemption_of_the_holder_costs_most_and_replays_alike() {
    let (worst, directory, _) = answer("worst-ticket", &[]);
    assert_valid("worst", &worst);
    assert_eq!((&worst["is_complete"], &worst["seeds"]), (&json!(true), &json!(2)), "{worst:#}");
    let rows = worst["rows"].as_array().expect("rows");
    let lost = |row: &Value| row["lost"]["hodges_lehmann"].as_f64().expect("a figure");
    // The vCPU that has the ticket's turn keeps the other CPU from working while it is away.
    // Two seeds give no narrow interval, so that the verdict on noise is not asserted.
    assert!(lost(&rows[0]) > 1.0, "{worst:#}");
    let rank = |row: &Value| (row["beyond_noise"].as_bool(), lost(row));
    assert!(rows.windows(2).all(|pair| rank(&pair[0]) >= rank(&pair[1])), "{worst:#}");
    let band = worst["placebo"]["band"].as_array().expect("a band");
    assert!(band[1].as_f64().unwrap() < lost(&rows[0]) / 3.0, "{worst:#}");
    let parts = |name: &str| rows[0]["parts"][name].as_f64().expect("a figure");
    // While it is away the other CPU has two vCPUs that spin, or its own runs another one that does.
    assert!(parts("guest") > 1.0 && (-0.2..0.5).contains(&parts("idle")), "{worst:#}");
    assert!(rows[0]["state"].as_str().expect("a state").starts_with("held by ticket "), "{worst:#}");
    let page = fs::read_to_string(directory.join("report.html")).expect("a report");
    assert!(
        page.contains("guest/locks/src/centralized/ticket.rs</h3>") && page.contains("<summary class=\"s9\"")
    );
    let coverage = &worst["coverage"];
    assert_eq!(coverage["tried"], coverage["situations"], "{coverage:#}");
    let file = directory.join("worst-001.toml");
    let (ended, out, err) = replayed(&file);
    assert_eq!((ended, err.as_str()), (0, ""));
    let again: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(again["is_same"], true, "{again:#}");
    // An absence of half the length comes to something else. (A little shorter may end in the same slice, and another instruction lie
    // before the window.)
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("for_ns = 1000000"), "{text}");
    fs::write(&file, text.replace("for_ns = 1000000", "for_ns = 500000")).unwrap();
    let (ended, _, err) = replayed(&file);
    assert!(ended == 7 && err.contains("it came to something else then"), "{ended}: {err}");
}

/// Calls and inlined code are of the lab; the unlock stands in the place of its call.
#[apply(trial)]
fn lines_of_a_lock_object_are_its_authors_alone() -> Check {
    const SOURCE: &str = r#"
#include "haltkick.h"
struct lock { hk_u32 held, never; };
HK_LOCK(struct lock);
static __attribute__((noinline)) void wait(struct lock *lock)
{
    while (__atomic_exchange_n(&lock->held, 1, __ATOMIC_ACQUIRE)) {
        if (lock->never)
            lock->never = hk_cpu();
        hk_pause();
    }
}
void hk_lock(struct lock *lock)
{
    if (__atomic_exchange_n(&lock->held, 1, __ATOMIC_ACQUIRE)) // lock
        wait(lock);
}
void hk_unlock(struct lock *lock)
{
    __atomic_store_n(&lock->held, 0, __ATOMIC_RELEASE); // release
}
"#;
    let directory = scratch("worst-object");
    let object = compiled(&directory, "mine", SOURCE)?;
    let output = directory.join("worst");
    let asked = ["worst", "--lock-object", &object, "--format", "json", "--output", output.to_str().unwrap()];
    let done = haltkick(&[&asked[..], &SHORT].concat());
    assert_eq!(code(&done), 0, "{}", stderr(&done));
    let worst: Value = serde_json::from_str(&stdout(&done)).expect("JSON");
    let is_authors = |line: &Value| line.as_str().is_some_and(|line| line.contains("/mine.c:"));
    let rows = worst["rows"].as_array().expect("rows");
    assert!(rows.len() > 2 && rows.iter().all(|row| is_authors(&row["line"])), "{rows:#?}");
    let mark = |mark: &str| SOURCE.lines().position(|line| line.ends_with(mark)).expect("a mark") + 1;
    let at = |mark_of: &str, is_behind: bool| {
        let end = format!("/mine.c:{}", mark(mark_of));
        let ends = |row: &Value| row["line"].as_str().is_some_and(|line| line.ends_with(&end));
        rows.iter().any(|row| ends(row) && row["is_behind"] == is_behind)
    };
    assert!(at("// release", false) && at("// lock", true), "{rows:#?}");
    let unreached = worst["coverage"]["unreached"].as_array().expect("lines");
    assert!(!unreached.is_empty() && unreached.iter().all(is_authors), "{unreached:#?}");
    let page = fs::read_to_string(output.join("report.html")).expect("a report");
    assert!(page.contains("mine.c</h3>") && !page.contains("calls.rs"), "{page}");
    Ok(())
}

#[apply(trial)]
fn a_budget_ends_it_early_and_says_so() {
    let (worst, _, _) = answer("worst-budget", &["--budget", "1ms"]);
    assert_eq!((&worst["is_complete"], &worst["seeds"]), (&json!(false), &json!(1)), "{worst:#}");
}

#[apply(trial)]
fn two_preemptions_that_hurt_only_together_are_found() {
    // Three vCPUs share a lock as readers on two CPUs. While one of them is off, the other two run; while two are off, a CPU is idle.
    let output = scratch("worst-pair").join("worst");
    let readers = ["--lock", "rwsem", "--read-share", "100%", "--think", "5us", "--vcpus", "3"];
    let pairs = ["--preemptions", "2", "--at-most", "0.4", "--format", "json", "--output"];
    let one_seed = ["--machine", "nehalem-2s", "--cpus", "0-1", "--slice", "200us", "--samples", "1"];
    let done = haltkick(&[&["worst"], &readers[..], &one_seed, &pairs, &[output.to_str().unwrap()]].concat());
    assert_eq!(code(&done), 8, "{}", stderr(&done));
    let worst: Value = serde_json::from_str(&stdout(&done)).expect("JSON");
    assert_valid("worst", &worst);
    let pair = &worst["sets"][0];
    let members = pair["members"].as_array().expect("a pair");
    let apart: f64 = members.iter().map(|member| member["alone"].as_f64().unwrap_or(0.0)).sum();
    let together = pair["lost"].as_f64().expect("a figure");
    assert!(members.len() == 2 && together > apart + 0.4, "{pair:#}");
    let file = output.join(pair["replay"].as_str().expect("a file"));
    let (ended, out, err) = replayed(&file);
    assert_eq!((ended, err.as_str()), (0, ""), "{out}");
    let again: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((&again["is_same"], again["lost"].as_f64()), (&json!(true), Some(together)), "{again:#}");
}

#[apply(trial)]
fn what_cannot_be_preempted_is_refused() {
    let refused = |arguments: &[&str], expected: &str| {
        let refused = refusal(&[&["worst"], arguments].concat());
        assert!(refused.contains(expected), "{refused}");
    };
    refused(&["--lock", "mcs"], "--machine: name one of");
    refused(
        &["--lock", "mcs", "--machine", "nehalem-2s", "--engine", "kvm"],
        "--engine: only a simulated machine",
    );
    refused(&["--lock", "none", "--machine", "nehalem-2s"], "--lock: no vCPU holds");
    refused(
        &words("--lock mcs --machine nehalem-2s --sched host --host linux-6.12 --take pcpu"),
        "--take: a model of a host's scheduler",
    );
    refused(&["--lock", "mcs", "--machine", "nehalem-2s", "--for", "1s"], "--for: a preemption lasts 100ms");
    refused(&["--lock", "mcs", "--machine", "nehalem-2s", "--work", "1s"], "--work:");
    let path = scratch("worst-there");
    let there = path.to_str().unwrap();
    refused(&["--lock", "mcs", "--machine", "nehalem-2s", "--output", there], "is there already");
    let file = path.join("file.toml");
    fs::write(&file, "format = 1\n").unwrap();
    refused(&["--replay", file.to_str().unwrap()], "missing field");
    refused(&["--replay", "/nonexistent.toml"], "--replay: /nonexistent.toml");
}
