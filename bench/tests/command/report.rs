//! The report as a file; and the table of published figures.

use std::fs;

use serde_json::Value;

use crate::support::{Check, apply, assert_valid, finished, json, kvm, stdout, trial};
use crate::tiny::{run_tiny, runs, tiny};

#[apply(trial)]
fn the_report_is_small_and_needs_no_network() -> Check {
    kvm()?;
    let html = fs::read_to_string(run_tiny("report").join("report.html")).unwrap();
    assert!(html.contains("<section") && html.contains("<svg"), "{html}");
    assert!(html.len() < 3 << 20, "{} bytes", html.len());
    let addresses: Vec<&str> =
        html.match_indices("http").map(|(at, _)| &html[at..(at + 26).min(html.len())]).collect();
    // The policy that keeps a browser from making requests is an attribute of this name.
    let addresses: Vec<&str> = addresses.into_iter().filter(|at| !at.starts_with("http-equiv=")).collect();
    assert!(addresses.iter().all(|address| *address == "http://www.w3.org/2000/svg"), "{addresses:?}");
    assert!(!html.contains("<script") && !html.contains("@import") && !html.contains("src="));
    Ok(())
}

#[apply(trial)]
fn published_figures_stand_beside_ours() -> Check {
    kvm()?;
    let (_, path) = tiny("reproduce");
    let results = path.join("results");
    let arguments = [
        "reproduce",
        "qspinlock",
        "--blocks=2",
        "--ratios=1,4",
        "--window=20ms",
        "--set=warmup=5ms",
        "--set=work=5ms",
        "--set=think=20us",
    ];
    let output = ["--format=json", "--output", results.to_str().unwrap()];
    let arguments = [&arguments[..], &output].concat();
    let reproduction: Value = serde_json::from_slice(&finished(&arguments).stdout).expect("JSON");
    assert_valid("reproduction", &reproduction);
    assert_eq!(reproduction, json(&results.join("reproduction.json")));
    let rows = reproduction["rows"].as_array().unwrap();
    let row = rows
        .iter()
        .find(|row| row["published"]["name"].as_str().unwrap().ends_with("VM2"))
        .expect("the study's VM2");
    assert_eq!(row["published"]["value"], Value::from([2.01]), "{row}");
    let summary = json(&results.join("qspinlock/summary.json"));
    let comparison = |sched: &str, ratio: &str| {
        let mut comparisons = summary["comparisons"].as_array().unwrap().iter();
        let is_it = |it: &&Value| {
            let point = &it["setting"];
            it["name"] == "v16/PV ticket" && point["sched"] == sched && point["ratio"] == ratio
        };
        comparisons.find(is_it).expect("the comparison was made")["ratio"].clone()
    };
    assert_eq!((&row["ours"], &row["control"]), (&comparison("host", "1"), &comparison("vmm", "1")));
    assert_eq!((&row["setting"]["ratio"], &row["ratio"]), (&"1".into(), &1.0.into()), "{row}");
    assert_eq!(row["like"], "LR--", "{row}");
    let again = finished(&["report", results.join("qspinlock").to_str().unwrap()]);
    let agreement = "qspinlock with PV support, v16 (2015), VM2: ";
    assert!(stdout(&again).contains(agreement), "{}", stdout(&again));
    assert_eq!(summary["published"], reproduction["rows"]);
    // A repetition: the records are there, so that no run is needed.
    let runs = runs(&results.join("qspinlock"));
    finished(&arguments);
    assert_eq!(self::runs(&results.join("qspinlock")), runs);
    Ok(())
}
