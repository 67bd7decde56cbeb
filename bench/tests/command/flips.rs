//! `haltkick flips`: a comparison on a simulated machine and on machines like it.

use serde_json::{Value, json};

use crate::support::{assert_valid, code, haltkick, refusal, scratch, stderr, stdout, trials};

trials![
    a_comparison_is_robust_and_one_of_equals_is_undetermined,
    what_cannot_be_compared_on_guesses_is_refused,
    a_sweep_tells_what_its_comparisons_depend_on,
    arms_are_measured_at_the_think_time_that_loads_one,
];

const SHORT: [&str; 16] = [
    "--machine",
    "nehalem-2s",
    "--cpus",
    "0-3",
    "--ratio",
    "1",
    "--think",
    "1us",
    "--duration",
    "1ms",
    "--warmup",
    "100us",
    "--points",
    "4",
    "--jobs",
    "2",
];

fn answer(name: &str, arms: [&str; 2]) -> (Value, std::path::PathBuf) {
    let output = scratch(name).join("flips");
    let directory = ["--format", "json", "--output", output.to_str().unwrap()];
    let done = haltkick(&[&["flips"], &arms[..], &SHORT, &directory].concat());
    assert_eq!(code(&done), 0, "{}", stderr(&done));
    (serde_json::from_str(&stdout(&done)).expect("JSON"), output)
}

fn a_comparison_is_robust_and_one_of_equals_is_undetermined() {
    let (robust, directory) = answer("flips-robust", ["mcs,hold=1us", "mcs,hold=4us"]);
    assert_valid("flips", &robust);
    assert_eq!((&robust["robustness"], &robust["seeds"]), (&json!("robust"), &json!(5)), "{robust:#}");
    let points = robust["points"].as_array().expect("points");
    assert_eq!(points.len(), 4);
    for key in ["cpu.pause-ns", "line.shared-ns", "guest.wake-ns"] {
        let values: std::collections::BTreeSet<String> =
            points.iter().map(|point| point["figures"][key].to_string()).collect();
        assert_eq!(values.len(), 4, "{key} differs at all points: {values:?}");
    }
    let placed = |choice: &str| points.iter().any(|point| point["choices"]["placement"] == choice);
    assert!(placed("last") && placed("lowest"), "{points:#?}");
    assert_eq!(robust["nominal"]["ratio"]["n"], 5);
    assert!(directory.join("machines/point-04.toml").exists() && directory.join("flips.json").exists());
    let (equals, _) = answer("flips-equals", ["mcs,hold=1us", "mcs,hold=1us,think=1us"]);
    assert_eq!(equals["robustness"], "undetermined", "{equals:#}");
}

fn what_cannot_be_compared_on_guesses_is_refused() {
    let refused = |arguments: &[&str], expected: &str| {
        let refused = refusal(&[&["flips"], arguments].concat());
        assert!(refused.contains(expected), "{refused}");
    };
    refused(&["mcs", "tas"], "--machine: name one of");
    refused(&["mcs", "tas", "--machine", "nehalem-3s"], "did you mean 'nehalem-2s'?");
    refused(
        &["mcs", "tas", "--machine", "nehalem-2s", "--engine", "kvm"],
        "--engine: only a simulated machine",
    );
    refused(&["mcs", "mcs", "--machine", "nehalem-2s"], "compared with itself");
    refused(&["mcs,pw=on", "tas", "--machine", "nehalem-2s"], "unknown setting 'pw'");
    refused(&["mcs", "tas", "--machine", "nehalem-2s", "--seeds", "4"], "4 is not in 5..=1000");
    let there = scratch("flips-there");
    let path = there.to_str().unwrap();
    refused(&["mcs", "tas", "--machine", "nehalem-2s", "--output", path], "is there already");
}

const SWEEP: [&str; 14] = [
    "sweep",
    "--engine",
    "sim",
    "--machine",
    "nehalem-2s",
    "--cpus",
    "0-3",
    "--ratio",
    "1",
    "--duration",
    "1ms",
    "--warmup",
    "100us",
    "--oracle=off",
];

/// The output of a sweep into a directory of its own.
fn sweep(name: &str, more: &[&str]) -> (std::process::Output, std::path::PathBuf) {
    let output = scratch(name).join("results");
    let to = ["--output", output.to_str().unwrap()];
    (haltkick(&[&SWEEP[..], more, &to].concat()), output)
}

fn a_sweep_tells_what_its_comparisons_depend_on() {
    let vary = ["--vary", "hold=1us,4us", "--lock", "mcs", "--compare", "--think", "1us", "--blocks", "5"];
    let (done, directory) = sweep("robust", &[&vary[..], &["--robust=4", "--format", "json"]].concat());
    assert_eq!(code(&done), 0, "{}", stderr(&done));
    let summary: Value = serde_json::from_str(&stdout(&done)).expect("JSON");
    assert_valid("summary", &summary);
    let compared = summary["comparisons"].as_array().expect("comparisons");
    assert_eq!(compared.len(), 1, "{compared:#?}");
    let expected = json!({ "robustness": "robust", "flips_at": null, "points": 4 });
    assert_eq!(compared[0]["sensitivity"], expected, "{compared:#?}");
    // From the records alone, in the terminal and in the report.
    let again = haltkick(&["report", directory.to_str().unwrap()]);
    assert!(stdout(&again).contains("robust (4 machines like it)"), "{}", stdout(&again));
    let report = std::fs::read_to_string(directory.join("report.html")).expect("a report");
    assert!(report.contains("slower, robust"), "the report says it, too");
    let (refused, _) = sweep("robust-few", &[&vary[..7], &["--blocks", "4", "--robust"]].concat());
    assert_eq!(code(&refused), 2);
    assert!(stderr(&refused).contains("4 blocks are too few seeds: at least 5"), "{}", stderr(&refused));
}

fn arms_are_measured_at_the_think_time_that_loads_one() {
    let vary = ["--vary", "lock=ticket,mcs", "--compare", "--hold", "200ns", "--blocks", "2"];
    let load = ["--load-to", "lock-share=30%:ticket", "--format", "json"];
    let (done, directory) = sweep("load-to", &[&vary[..], &load].concat());
    assert_eq!(code(&done), 0, "{}", stderr(&done));
    assert!(stderr(&done).contains("--load-to: all arms run at think "), "{}", stderr(&done));
    let records = std::fs::read_to_string(directory.join("runs.jsonl")).expect("records");
    let records: Vec<Value> =
        records.lines().map(|line| serde_json::from_str(line).expect("a record")).collect();
    let thinks: std::collections::BTreeSet<u64> =
        records.iter().map(|record| record["config"]["think_ns"].as_u64().expect("a time")).collect();
    assert_eq!(thinks.len(), 1, "{thinks:?}");
    // A vCPU's time, less its sections and pauses, went into the ticket lock.
    let ticket = records.iter().find(|record| record["config"]["lock"] == "ticket").expect("a record");
    let each_ns = 4e9 / ticket["totals"]["acquisitions_per_second"].as_f64().expect("a rate");
    let share = 1.0 - (200.0 + *thinks.first().unwrap() as f64) / each_ns;
    assert!((0.2..0.45).contains(&share), "{share} at {thinks:?}");
    for (load, more, expected) in [
        ("lock-share=30%:tikcet", &[][..], "there is no arm 'tikcet'"),
        ("lock-share=99.9%:ticket", &[], "does not spend 99.9 % of its time in locks"),
        ("lock-share=30%:ticket", &["--vary", "slice=1ms,2ms"], "is run at several settings"),
        ("lock-share=30%:ticket", &["--workload", "line-add"], "does not tell the time in locks"),
    ] {
        let (refused, _) = sweep("load-to-refused", &[&vary[..], &["--load-to", load], more].concat());
        assert_eq!(code(&refused), 2, "{load}: {}", stderr(&refused));
        assert!(stderr(&refused).contains(expected), "{load}: {}", stderr(&refused));
    }
    let threads =
        ["sweep", "--vary", "lock=ticket,mcs", "--engine", "threads", "--load-to", "lock-share=30%:ticket"];
    let message = refusal(&threads);
    assert!(message.contains("--load-to: think is solved by simulated runs"), "{message}");
}
