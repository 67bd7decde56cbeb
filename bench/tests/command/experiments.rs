//! Experiment files: found, read, printed, overridden; in which order, and for how long, their cells run.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::support::{
    CELLS_PER_BLOCK, TINY, an_allowed_cpu, apply, cut, ends, finished, haltkick, json, kvm_trial, read,
    records, refuses, runs, scratch, tiny, trial, written,
};

#[apply(trial)]
fn a_bad_experiment_file_ends_with_3_and_names_line_and_column() {
    let directory = scratch("bad-experiment");
    for (rest, complaint) in [
        (
            "[[arm]]\nname = \"a\"\nlock = \"tikcet\"\n",
            "6:1: arm 'a': lock: unknown lock 'tikcet': did you mean 'ticket'?",
        ),
        (
            "[settings]\ndeschedule = \"waiter\"\n[[arm]]\nname = \"a\"\nworkload = \"compute\"\n",
            "5:1: arm 'a': deschedule: no vCPU holds or awaits a lock in workload 'compute': deschedule random vCPUs, \
             or use one of critical-section",
        ),
    ] {
        let text = format!("format = 1\nname = \"x\"\ntitle = \"X\"\n{rest}");
        let file = written(format!("{directory}/mine.toml"), text);
        let ended = ends(3, &format!("bench {file}")).says(&[&format!("haltkick: {file}:{complaint}")]);
        assert_eq!(ended.err.lines().count(), 1, "{ended}");
    }
}

#[apply(trial)]
fn what_no_experiment_has_is_a_usage_error_with_the_nearest_name() {
    refuses("bench overcomit", "unknown experiment 'overcomit': did you mean 'overcommit'?");
    refuses("bench overcommit --ratios 1,4096", "ratio: 4096 is out of range");
}

#[apply(trial)]
fn a_printed_experiment_can_be_run_from_the_copy() {
    let printed = ends(0, "bench overcommit --print").prints(&["[[arm]]"]).out;
    let copy = written(format!("{}/copy.toml", scratch("print")), &printed);
    assert_eq!(haltkick(&format!("bench {copy} --print")).out, printed);
}

#[apply(kvm_trial)]
fn experiments_among_the_examples_are_planned() {
    // The script's experiment names CPUs that this host need not have.
    for (folder, how) in [("../examples/experiments", "--dry-run"), ("scripts", "--print")] {
        let files = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).unwrap();
        let files = files.map(|entry| entry.unwrap().path());
        for file in files.filter(|file| file.extension().is_some_and(|end| end == "toml")) {
            ends(0, &format!("bench {} {how}", file.display()));
        }
    }
}

#[apply(kvm_trial)]
fn the_tutorials_experiment_can_be_run_as_it_stands() {
    let text = read(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/tutorial.md"));
    let experiment = text.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let file = written(format!("{}/slice.toml", scratch("tutorial")), experiment);
    let planned = ends(0, &format!("bench {file} --cpus {} --dry-run", an_allowed_cpu())).out;
    // Twelve settings with two arms and a lock-free cell each, and the A/A pair.
    assert_eq!(planned.lines().filter(|line| line.contains("slice-")).count(), 12 * 3 + 1);
}

#[apply(kvm_trial)]
fn precision_and_time_decide_the_number_of_blocks() {
    let (experiment, results) = tiny("stopping");
    let blocks = |results: &str| runs(results).into_keys().map(|(_, block)| block + 1).max().unwrap();
    // Other tests use the CPUs at the same time.
    finished(&format!("bench {experiment} --target-precision 999% --anyway --output {results}"));
    let summary = json(format!("{results}/summary.json"));
    let mut ratios = summary["comparisons"].as_array().unwrap().iter().chain([&summary["control"]]);
    let is_known = |compared: &Value| {
        let bound = |name: &str| compared["ratio"]["interval"][name].as_f64();
        bound("low").zip(bound("high")).is_some_and(|(low, high)| (high / low).sqrt() - 1.0 <= 9.99)
    };
    // On a very busy host that is known of none after all the blocks that there can be.
    let (made, all_are_known) = (blocks(&results), ratios.all(is_known));
    assert!((6..=60).contains(&made) && all_are_known == (made < 60), "{made} blocks: {summary:#}");
    finished(&format!("bench {experiment} --max-time 1ms --output {results}-hurried"))
        .says(&["the first block takes longer than --max-time"]);
    assert_eq!(blocks(&format!("{results}-hurried")), 1);
}

#[apply(kvm_trial)]
fn extra_blocks_hold_only_cells_that_are_not_precise_enough() {
    let (experiment, results) = tiny("vague");
    // No cell is known that well, but the third arm is not asked for.
    let vague = TINY.replace("blocks = 3", "blocks = 1\ntarget-precision = \"0.001%\"");
    let vague = vague.replace("[[compare]]", "[[arm]]\nname = \"mcs\"\nlock = \"mcs\"\n[[compare]]");
    fs::write(&experiment, vague).unwrap();
    let (planned, vague) = (CELLS_PER_BLOCK + 2, CELLS_PER_BLOCK);
    finished(&format!("bench {experiment} --anyway --output {results}"));
    let whole = runs(&results);
    let cells = |block: u64| whole.keys().filter(|(_, of)| *of == block).count();
    assert!((0..6).all(|block| cells(block) == planned), "an interval needs six blocks: {whole:?}");
    assert!((6..20).all(|block| cells(block) == vague), "all but the third arm: {whole:?}");
    assert_eq!(cells(20), 0, "a target out of reach ends at twenty times the plan");

    cut(&results, 6 * planned + 8);
    finished(&format!("bench --resume {results} --anyway"));
    assert!(runs(&results).keys().eq(whole.keys()));

    finished(&format!("bench {experiment} --blocks 1 --output {results}-counted"));
    assert_eq!(runs(&format!("{results}-counted")).len(), planned, "who asks for one block gets one");
}

#[apply(kvm_trial)]
fn guests_of_an_experiment_have_a_row_each_and_one_run_id() {
    let (experiment, results) = tiny("beside");
    let beside = TINY.replace("lock = \"tas\"", "vm = \"lock=tas; name=second,lock=ticket\"");
    let beside = beside.replace("baseline = \"tas\"", "baseline = \"tas / second\"");
    fs::write(&experiment, beside.replace("blocks = 3", "blocks = 1")).unwrap();
    finished(&format!("bench {experiment} --output {results}"));
    let records = records(&results);
    let ids = |arm: &str| -> Vec<&Value> {
        let of_arm = records.iter().filter(|record| record["place"]["arm"] == arm);
        of_arm.map(|record| &record["run_id"]).collect()
    };
    assert_eq!((ids("tas").len(), ids("tas")), (2, ids("tas / second")));
    let summary = json(format!("{results}/summary.json"));
    assert!(summary["rows"].as_array().unwrap().iter().any(|row| row["arm"] == "tas / second"));
    assert_eq!(summary["comparisons"].as_array().unwrap().len(), 2, "{}", summary["comparisons"]);
}
