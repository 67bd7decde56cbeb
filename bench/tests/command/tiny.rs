//! An experiment that takes a second, and what it leaves.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::{finished, scratch};

pub(crate) const TINY: &str = r#"
format = 1
name = "tiny"
title = "A tiny experiment"
blocks = 3
[settings]
slice = "500us"
window = "10ms"
warmup = "1ms"
watchdog = "20s"
[grid]
ratio = [1, 2]
[[arm]]
name = "tas"
lock = "tas"
[[arm]]
name = "pv"
lock = "qspinlock"
pv = "on"
[[compare]]
name = "pv/tas"
arm = "pv"
baseline = "tas"
[control]
arm = "pv"
ratio = 2
"#;
/// Cells of one block: at each ratio a lock-free one and two arms, and the second half of the A/A pair.
pub(crate) const CELLS_PER_BLOCK: usize = 7;

/// A directory of this test's own with the tiny experiment in it, and a place for results.
pub(crate) fn tiny(name: &str) -> (String, PathBuf) {
    let path = scratch(name);
    let experiment = path.join("tiny.toml");
    fs::write(&experiment, TINY).expect("a writable scratch directory");
    (experiment.display().to_string(), path)
}

pub(crate) fn run_tiny(name: &str) -> PathBuf {
    let (experiment, path) = tiny(name);
    let results = path.join("results");
    finished(&["bench", &experiment, "--output", results.to_str().unwrap()]);
    results
}

pub(crate) fn records(results: &Path) -> Vec<Value> {
    let text = fs::read_to_string(results.join("runs.jsonl")).expect("runs.jsonl is there");
    text.lines().map(|line| serde_json::from_str(line).expect("every line is a record")).collect()
}

/// Cell and block of each record, as often as they occur.
pub(crate) fn runs(results: &Path) -> BTreeMap<(String, u64), usize> {
    let mut runs = BTreeMap::new();
    for record in records(results) {
        let place = &record["place"];
        let cell = place["cell_id"].as_str().unwrap().to_owned();
        *runs.entry((cell, place["block"].as_u64().unwrap())).or_default() += 1;
    }
    runs
}
