//! `haltkick worst`: preemptions at each instruction of a lock, on a simulated machine.

use serde_json::{Value, json};

use crate::objects::TAS;
use crate::support::*;

const MACHINE: &str = "--machine nehalem-2s --cpus 0-1 --slice 200us --format json";

fn answer(name: &str, more: &str) -> (Value, String) {
    let output = format!("{}/worst", scratch(name));
    let worst = ends(0, &format!("worst {more} {MACHINE} --samples 2 --output {output}")).json();
    (worst, output)
}

fn replayed(file: &str) -> Ended {
    haltkick(&format!("worst --format json --replay {file}"))
}

/// The answer of a file's replay to the same figures.
fn same(file: &str) -> Value {
    let again = replayed(file).with(&[0]);
    assert_eq!((again.json()["is_same"].as_bool(), &*again.err), (Some(true), ""), "{again}");
    again.json()
}

#[apply(trial)]
fn a_preemption_of_the_holder_costs_most_and_replays_alike() {
    let (worst, directory) = answer("worst-ticket", "--lock ticket");
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
    let state = rows[0]["state"].as_str().expect("a state");
    assert!(state.starts_with("held by ticket ") && state.ends_with(" more drawn; 0 asleep"), "{state}");
    let page = read(format!("{directory}/report.html"));
    assert!(page.contains("guest/locks/src/centralized/ticket.rs</h3>"));
    assert!(page.contains("<summary class=\"s9\""));
    let coverage = &worst["coverage"];
    assert_eq!(coverage["tried"], coverage["situations"], "{coverage:#}");
    let file = format!("{directory}/worst-001.toml");
    same(&file);
    // An absence of half the length comes to something else. (A little shorter may end in the same slice, and another instruction lie
    // before the window.)
    let text = read(&file);
    assert!(text.contains("for_ns = 1000000"), "{text}");
    written(file.clone(), text.replace("for_ns = 1000000", "for_ns = 500000"));
    replayed(&file).with(&[7]).says(&["it came to something else then"]);
}

/// Calls and inlined code are of the lab; the unlock stands in the place of its call.
#[apply(trial)]
fn lines_of_a_lock_object_are_its_authors_alone() {
    const WAIT: &str = "static __attribute__((noinline)) void wait(struct lock *lock)
{
    while (__atomic_exchange_n(&lock->held, 1, __ATOMIC_ACQUIRE)) {
        if (lock->releases)
            lock->releases = hk_cpu();
        hk_pause();
    }
}
void hk_lock";
    let waits = TAS.replace("    while (", "    if (").replace("hk_pause();", "wait(lock);");
    let source = waits.replace("void hk_lock", WAIT);
    let object = written(format!("{}/mine.c", scratch("worst-object-source")), &source);
    let (worst, output) = answer("worst-object", &format!("--lock-object {object}"));
    let is_authors = |line: &Value| line.as_str().is_some_and(|line| line.contains("/mine.c:"));
    let rows = worst["rows"].as_array().expect("rows");
    assert!(rows.len() > 2 && rows.iter().all(|row| is_authors(&row["line"])), "{rows:#?}");
    let mark = |mark: &str| source.lines().position(|line| line.ends_with(mark)).expect("a mark") + 1;
    let at = |mark_of: &str, is_behind: bool| {
        let end = format!("/mine.c:{}", mark(mark_of));
        let ends = |row: &Value| row["line"].as_str().is_some_and(|line| line.ends_with(&end));
        rows.iter().any(|row| ends(row) && row["is_behind"] == is_behind)
    };
    assert!(at("// releases", false) && at("// takes", true), "{rows:#?}");
    let unreached = worst["coverage"]["unreached"].as_array().expect("lines");
    assert!(!unreached.is_empty() && unreached.iter().all(is_authors), "{unreached:#?}");
    let page = read(format!("{output}/report.html"));
    assert!(page.contains("mine.c</h3>") && !page.contains("calls.rs"), "{page}");
}

#[apply(trial)]
fn a_budget_ends_it_early_and_says_so() {
    let (worst, _) = answer("worst-budget", "--lock ticket --budget 1ms");
    assert_eq!((&worst["is_complete"], &worst["seeds"]), (&json!(false), &json!(1)), "{worst:#}");
}

#[apply(trial)]
fn two_preemptions_that_hurt_only_together_are_found() {
    // Three vCPUs share a lock as readers on two CPUs. While one of them is off, the other two run; while two are off, a CPU is idle.
    let output = format!("{}/worst", scratch("worst-pair"));
    let readers = "--lock rwsem --read-share 100% --think 5us --vcpus 3";
    let pairs = format!("--samples 1 --preemptions 2 --at-most 0.4 --output {output}");
    let worst = ends(8, &format!("worst {readers} {MACHINE} {pairs}")).json();
    assert_valid("worst", &worst);
    let pair = &worst["sets"][0];
    let members = pair["members"].as_array().expect("a pair");
    let apart: f64 = members.iter().map(|member| member["alone"].as_f64().unwrap_or(0.0)).sum();
    let together = pair["lost"].as_f64().expect("a figure");
    assert!(members.len() == 2 && together > apart + 0.4, "{pair:#}");
    let again = same(&format!("{output}/{}", pair["replay"].as_str().expect("a file")));
    assert_eq!(again["lost"].as_f64(), Some(together), "{again:#}");
}
