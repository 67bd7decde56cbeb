//! Experiments without a file, cells that are run more than once, and what would be run.

use std::fs;

use serde_json::Value;

use crate::support::{
    SIMULATED, apply, assert_valid, code, finished, haltkick, json, refusal, scratch, stderr, stdout, trial,
};
use crate::tiny::{CELLS_PER_BLOCK, records, runs, tiny};

#[apply(trial)]
fn a_sweep_does_what_the_experiment_file_does_that_it_saves() {
    let path = scratch("sweep");
    let (file, swept, from_file) = (path.join("mine.toml"), path.join("swept"), path.join("from-file"));
    let [file_name, swept_name, from_file_name] =
        [&file, &swept, &from_file].map(|path| path.to_str().unwrap());
    let sweep =
        ["sweep", "--vary", "ratio=1,2", "--vary", "lock=ticket,qspinlock-wc", "--compare", "--blocks", "2"];
    let ends = ["--save", file_name, "--output", swept_name];
    let printed = stdout(&finished(&[&sweep[..], &SIMULATED, &ends].concat()));
    assert!(printed.contains("qspinlock-wc/ticket") && printed.contains("A/A pair (ticket"), "{printed}");
    let again = stdout(&finished(&["bench", file_name, "--output", from_file_name]));
    assert_eq!(again, printed, "simulated runs are the same to the last digit");
    // At each ratio a lock-free cell and two arms, and the second half of the A/A pair.
    assert_eq!(records(&swept).len(), 2 * 7);
    let manifest = json(&swept.join("manifest.json"));
    assert_valid("manifest", &manifest);
    assert_eq!(manifest["source"]["text"].as_str().unwrap(), fs::read_to_string(&file).unwrap());

    // The remains of a sweep are completed like any experiment.
    let file = swept.join("runs.jsonl");
    let text = fs::read_to_string(&file).unwrap();
    let kept: Vec<&str> = text.lines().take(5).collect();
    fs::write(&file, kept.join("\n") + "\n").unwrap();
    finished(&["bench", "--resume", swept_name]);
    assert_eq!(runs(&swept).len(), 2 * 7);

    let refused = refusal(&[&sweep[..], &SIMULATED, &["--save", file_name]].concat());
    assert!(refused.contains("mine.toml is there already: choose another name"), "{refused}");
}

#[apply(trial)]
fn a_sweep_that_cannot_be_is_refused_in_one_line() {
    for (arguments, expected) in [
        (
            &["--vary", "slice=1ms,2ms", "--slice", "1ms"][..],
            "haltkick: --vary slice: --slice says the same for all cells",
        ),
        (&["--vary", "lock=ticket", "--compare"], "haltkick: --compare: there is only one thing to compare"),
        (
            &["--vary", "lock=ticket,tas", "--vary", "pv=off,on"],
            "haltkick: sweep: arm 'tas pv on': pv: lock 'tas' has no paravirtual form",
        ),
        (
            &["--vary", "lock=tikcet,tas"],
            "haltkick: sweep: arm 'tikcet': lock: unknown lock 'tikcet': did you mean 'ticket'?",
        ),
    ] {
        let message = refusal(&[&["sweep"], arguments].concat());
        assert!(message.starts_with(expected) && message.lines().count() == 1, "{message}");
    }
    let message = refusal(&["sweep", "--vary", "lokc=tas"]);
    assert!(message.contains("unknown setting 'lokc': did you mean 'lock'?"), "{message}");
}

#[apply(trial)]
fn a_dry_run_prints_cells_and_their_time_and_runs_nothing() {
    let (experiment, path) = tiny("dry");
    let results = path.join("results");
    let output = finished(&["bench", &experiment, "--dry-run", "--output", results.to_str().unwrap()]);
    let text = stdout(&output);
    for cell in ["lock-free_ratio-1", "tas_ratio-2", "pv_ratio-2", "pv_ratio-2_control"] {
        assert_eq!(
            text.lines().filter(|line| line.ends_with(&format!(" {cell}"))).count(),
            1,
            "{cell}: {text}"
        );
    }
    let total =
        format!("{CELLS_PER_BLOCK} cells in each of 3 blocks: {} runs, about 1 s\n", 3 * CELLS_PER_BLOCK);
    assert!(text.contains(&total), "{text}");
    assert!(!results.exists(), "nothing is run");
    let sweep = stdout(&finished(&["sweep", "--vary", "lock=ticket,mcs", "--dry-run", "--window", "1s"]));
    assert!(sweep.contains("4 cells in each of 10 blocks: 40 runs, about 4"), "{sweep}");
    let impossible = ["sweep", "--vary", "lock=ticket,mcs", "--workload", "interrupted", "--dry-run"];
    let refused = refusal(&[&impossible[..], &SIMULATED].concat());
    assert!(
        refused.contains("cell lock-free: workload `interrupted` needs a lock for interrupts"),
        "{refused}"
    );
    let simulated = ["sweep", "--vary", "lock=ticket,mcs", "--dry-run", "--blocks", "2"];
    let planned = stdout(&finished(&[&simulated[..], &SIMULATED].concat()));
    assert!(planned.contains("8 runs, about "), "{planned}");
}

#[apply(trial)]
fn a_cell_that_is_repeated_has_as_many_records_and_one_table() {
    let run = [&["run", "--lock", "ticket"], &SIMULATED[..], &["--ratio", "2", "--repeat", "3"]].concat();
    let output = haltkick(&[&run[..], &["--format", "json"]].concat());
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let records: Vec<Value> =
        stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(records.len(), 3);
    for (i, record) in records.iter().enumerate() {
        assert_valid("run", record);
        assert_eq!(
            (record["place"]["block"].as_u64(), record["settings"]["seed"].as_u64()),
            (Some(i as u64), Some(i as u64 + 1))
        );
        assert!(record["figures"]["efficiency"].is_f64(), "each has an ideal of its own");
    }
    let table = stdout(&finished(&run));
    assert!(table.starts_with("3 runs of ticket\n3 runs in 3 blocks on 2 pCPUs"), "{table}");
    assert_eq!(table.lines().filter(|line| line.contains(" ticket  ")).count(), 1, "{table}");
    let message = refusal(&[&run[..], &["--profile"]].concat());
    assert!(message.contains("--repeat: a profile and a trace are of one run"), "{message}");
}
