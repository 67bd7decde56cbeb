//! `haltkick flips`: a comparison on a simulated machine and on machines like it.

use serde_json::{Value, json};

use crate::support::{assert_valid, code, haltkick, refusal, scratch, stderr, stdout, trials};

trials![
    a_comparison_is_robust_and_one_of_equals_is_undetermined,
    what_cannot_be_compared_on_guesses_is_refused,
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
