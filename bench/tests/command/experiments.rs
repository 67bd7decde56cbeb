//! Experiment files: found, read, printed, overridden; in which order, and for how long, their cells run.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::support::{
    Check, an_allowed_cpu, apply, code, finished, haltkick, json, kvm, refusal, scratch, stderr, stdout,
    trial,
};
use crate::tiny::{CELLS_PER_BLOCK, TINY, records, runs, tiny};

#[apply(trial)]
fn an_unknown_experiment_is_refused_with_the_nearest_name() {
    let message = refusal(&["bench", "overcomit"]);
    assert!(message.contains("unknown experiment 'overcomit': did you mean 'overcommit'?"), "{message}");
}

#[apply(trial)]
fn a_bad_experiment_file_ends_with_3_and_names_line_and_column() {
    let path = scratch("bad-experiment").join("mine.toml");
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
        std::fs::write(&path, format!("format = 1\nname = \"x\"\ntitle = \"X\"\n{rest}")).unwrap();
        let output = haltkick(&["bench", path.to_str().unwrap()]);
        assert_eq!(code(&output), 3);
        let expected = format!("haltkick: {}:{complaint}", path.display());
        let stderr = stderr(&output);
        assert!(stderr.starts_with(&expected) && stderr.lines().count() == 1, "{stderr}");
    }
}

#[apply(trial)]
fn an_override_that_makes_cells_impossible_is_a_usage_error() {
    let message = refusal(&["bench", "overcommit", "--ratios", "1,4096"]);
    assert!(message.contains("ratio: 4096 is out of range"), "{message}");
    let message = refusal(&["bench", "overcommit", "--set", "hodl=1us"]);
    assert!(message.contains("unknown setting 'hodl': did you mean 'hold'?"), "{message}");
}

#[apply(trial)]
fn a_printed_experiment_can_be_run_from_the_copy() {
    let printed = haltkick(&["bench", "overcommit", "--print"]);
    assert_eq!(code(&printed), 0);
    let copy = scratch("print").join("copy.toml");
    std::fs::write(&copy, stdout(&printed)).unwrap();
    let again = haltkick(&["bench", copy.to_str().unwrap(), "--print"]);
    assert_eq!(stdout(&again), stdout(&printed));
    assert!(stdout(&printed).contains("[[arm]]"));
}

#[apply(trial)]
fn experiments_among_the_examples_are_planned() -> Check {
    kvm()?;
    // The script's experiment names CPUs that this host need not have.
    for (folder, how) in [("../examples/experiments", "--dry-run"), ("scripts", "--print")] {
        let files = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).unwrap();
        let files = files.map(|entry| entry.unwrap().path());
        for file in files.filter(|file| file.extension().is_some_and(|end| end == "toml")) {
            let planned = haltkick(&["bench", file.to_str().unwrap(), how]);
            assert_eq!(code(&planned), 0, "{}: {}", file.display(), stderr(&planned));
        }
    }
    Ok(())
}

#[apply(trial)]
fn the_tutorials_experiment_can_be_run_as_it_stands() -> Check {
    kvm()?;
    let tutorial = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/tutorial.md");
    let text = std::fs::read_to_string(tutorial).unwrap();
    let experiment = text.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let path = scratch("tutorial").join("slice.toml");
    std::fs::write(&path, experiment).unwrap();
    let output = haltkick(&["bench", path.to_str().unwrap(), "--cpus", &an_allowed_cpu(), "--dry-run"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    // Twelve settings with two arms and a lock-free cell each, and the A/A pair.
    assert_eq!(stdout(&output).lines().filter(|line| line.contains("slice-")).count(), 12 * 3 + 1);
    Ok(())
}

#[apply(trial)]
fn precision_and_time_decide_the_number_of_blocks() -> Check {
    kvm()?;
    let (experiment, path) = tiny("stopping");
    let blocks = |results: &Path| runs(results).into_keys().map(|(_, block)| block + 1).max().unwrap();
    let patient = path.join("patient");
    finished(&["bench", &experiment, "--target-precision", "999%", "--output", patient.to_str().unwrap()]);
    let summary = json(&patient.join("summary.json"));
    let mut ratios = summary["comparisons"].as_array().unwrap().iter().chain([&summary["control"]]);
    let is_known = |compared: &Value| {
        let bound = |name: &str| compared["ratio"]["interval"][name].as_f64();
        bound("low").zip(bound("high")).is_some_and(|(low, high)| (high / low).sqrt() - 1.0 <= 9.99)
    };
    // On a very busy host that is known of none after all the blocks that there can be.
    let (made, all_are_known) = (blocks(&patient), ratios.all(is_known));
    assert!((6..=60).contains(&made) && all_are_known == (made < 60), "{made} blocks: {summary:#}");
    let hurried = path.join("hurried");
    let said = stderr(&finished(&[
        "bench",
        &experiment,
        "--max-time",
        "1ms",
        "--output",
        hurried.to_str().unwrap(),
    ]));
    assert!(said.contains("the first block takes longer than --max-time"), "{said}");
    assert_eq!(blocks(&hurried), 1);
    Ok(())
}

#[apply(trial)]
fn extra_blocks_hold_only_cells_that_are_not_precise_enough() -> Check {
    kvm()?;
    let (experiment, path) = tiny("vague");
    // No cell is known that well, but the third arm is not asked for.
    let vague = TINY.replace("blocks = 3", "blocks = 1\ntarget-precision = \"0.001%\"");
    let vague = vague.replace("[[compare]]", "[[arm]]\nname = \"mcs\"\nlock = \"mcs\"\n[[compare]]");
    fs::write(&experiment, vague).unwrap();
    let (planned, vague) = (CELLS_PER_BLOCK + 2, CELLS_PER_BLOCK);
    let results = path.join("results");
    finished(&["bench", &experiment, "--output", results.to_str().unwrap()]);
    let whole = runs(&results);
    let cells = |block: u64| whole.keys().filter(|(_, of)| *of == block).count();
    assert!((0..6).all(|block| cells(block) == planned), "an interval needs six blocks: {whole:?}");
    assert!((6..20).all(|block| cells(block) == vague), "all but the third arm: {whole:?}");
    assert_eq!(cells(20), 0, "a target out of reach ends at twenty times the plan");

    let file = results.join("runs.jsonl");
    let text = fs::read_to_string(&file).unwrap();
    let kept: Vec<&str> = text.lines().take(6 * planned + 8).collect();
    fs::write(&file, kept.join("\n") + "\n").unwrap();
    finished(&["bench", "--resume", results.to_str().unwrap()]);
    let resumed = runs(&results);
    assert_eq!(resumed.keys().collect::<Vec<_>>(), whole.keys().collect::<Vec<_>>());

    let counted = path.join("counted");
    finished(&["bench", &experiment, "--blocks", "1", "--output", counted.to_str().unwrap()]);
    assert_eq!(runs(&counted).len(), planned, "who asks for one block gets one");
    Ok(())
}

#[apply(trial)]
fn guests_of_an_experiment_have_a_row_each_and_one_run_id() -> Check {
    kvm()?;
    let (experiment, path) = tiny("beside");
    let beside = TINY.replace("lock = \"tas\"", "vm = \"lock=tas; name=second,lock=ticket\"");
    let beside = beside.replace("baseline = \"tas\"", "baseline = \"tas / second\"");
    fs::write(&experiment, beside.replace("blocks = 3", "blocks = 1")).unwrap();
    let results = path.join("results");
    finished(&["bench", &experiment, "--output", results.to_str().unwrap()]);
    let records = records(&results);
    let of = |arm: &str| -> Vec<&Value> {
        records
            .iter()
            .filter(|record| record["place"]["arm"] == arm)
            .map(|record| &record["run_id"])
            .collect()
    };
    assert_eq!((of("tas").len(), of("tas")), (2, of("tas / second")));
    let summary = json(&results.join("summary.json"));
    assert!(summary["rows"].as_array().unwrap().iter().any(|row| row["arm"] == "tas / second"));
    assert_eq!(summary["comparisons"].as_array().unwrap().len(), 2, "{}", summary["comparisons"]);
    Ok(())
}
