//! Experiments with and without a file, cells that are run more than once, what would be run, in which order, and for how long;
//! comparisons of directories and on machines like a simulated one, and the think time that loads an arm.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::*;

#[apply(trial)]
fn a_sweep_does_what_the_experiment_file_does_that_it_saves() {
    let path = scratch("sweep");
    let [file, swept, again] = ["mine.toml", "swept", "from-file"].map(|name| format!("{path}/{name}"));
    let sweep = "sweep --vary ratio=1,2 --vary lock=ticket,qspinlock-wc --compare --blocks 2";
    let saving = format!("{sweep} {SIMULATED} --save {file}");
    let printed = finished(&format!("{saving} --output {swept}"));
    let printed = printed.prints(&["qspinlock-wc/ticket", "A/A pair (ticket"]).out;
    let again = finished(&format!("bench {file} --output {again}")).out;
    assert_eq!(again, printed, "simulated runs are the same to the last digit");
    // At each ratio a lock-free cell and two arms, and the second half of the A/A pair.
    assert_eq!(records(&swept).len(), 2 * 7);
    let manifest = json(format!("{swept}/manifest.json"));
    assert_valid("manifest", &manifest);
    assert_eq!(manifest["source"]["text"].as_str().unwrap(), read(file));
    let facts = manifest["facts"].as_object().expect("facts");
    let is_known = |fact: &Value| fact["value"].is_string();
    for (name, fact) in facts {
        assert!(is_known(fact) != fact["why"].as_str().is_some_and(|why| !why.is_empty()), "{name}: {fact}");
    }
    for name in
        ["kernel.release", "cpu.model", "topology.allowed", "tool.guest_sha256", "tool.lock_file_sha256"]
    {
        assert!(is_known(&facts[name]), "{name}: {}", facts[name]);
    }

    // The remains of a sweep are completed like any experiment.
    cut(&swept, 5);
    finished(&format!("bench --resume {swept}"));
    assert_eq!(runs(&swept).len(), 2 * 7);
    refuses(&saving, "mine.toml is there already: choose another name");
}

#[apply(trial)]
fn a_dry_run_prints_cells_and_their_time_and_runs_nothing() {
    let (experiment, results) = tiny("dry");
    let planned = finished(&format!("bench {experiment} --dry-run --output {results}"));
    let all = 3 * CELLS_PER_BLOCK;
    let planned =
        planned.prints(&[&format!("{CELLS_PER_BLOCK} cells in each of 3 blocks: {all} runs, about 1 s\n")]);
    assert_eq!(planned.out.lines().filter(|line| line.contains("ratio-")).count(), CELLS_PER_BLOCK);
    let rules = "blocks = 3\ntarget-precision = \"8%\"\nretry-disturbed = 2\nmax-time = \"85s\"";
    let ruled = written(format!("{results}.toml"), TINY.replace("blocks = 3", rules));
    let remarks = ["known to 8 %, 60 at most", "again, 2 times at most", "after 1 min 25 s"];
    finished(&format!("bench {ruled} --dry-run")).prints(&remarks);
    assert!(!fs::exists(&results).unwrap(), "nothing is run");
    let sweep = "sweep --vary lock=ticket,mcs --dry-run";
    finished(&format!("{sweep} --window 1s")).prints(&["4 cells in each of 10 blocks: 40 runs, about 4"]);
    finished(&format!("{sweep} --blocks 2 {SIMULATED}")).prints(&["8 runs, about "]);
}

#[apply(trial)]
fn a_cell_that_is_repeated_has_as_many_records_and_one_table() {
    let run = format!("run --lock ticket {SIMULATED} --ratio 2 --repeat 3");
    let records = ends(0, &format!("{run} --format json")).jsons();
    assert_eq!(records.len(), 3);
    for (i, record) in records.iter().enumerate() {
        assert_valid("run", record);
        assert_eq!((&record["place"]["block"], &record["settings"]["seed"]), (&json!(i), &json!(i + 1)));
        assert!(record["figures"]["efficiency"].is_f64(), "each has an ideal of its own");
    }
    let table = finished(&run).out;
    assert!(table.starts_with("3 runs of ticket\n3 runs in 3 blocks on 2 pCPUs"), "{table}");
    assert_eq!(table.lines().filter(|line| line.contains(" ticket  ")).count(), 1, "{table}");
}

const SIM: &str = "sweep --engine sim --machine nehalem-2s --cpus 0-3 --ratio 1 --duration 1ms --warmup 100us \
                   --oracle=off";

/// Two arms of which one holds the lock longer.
const LONGER: &str = "--vary hold=1us,4us --lock mcs --compare --think 1us --blocks";

/// The end of a sweep into a directory of its own.
fn sweep(name: &str, more: &str) -> (Ended, String) {
    let output = format!("{}/results", scratch(name));
    (haltkick(&format!("{SIM} {more} --output {output}")), output)
}

#[apply(trial)]
fn an_experiment_tells_what_its_comparisons_depend_on_and_is_resumed() {
    let path = scratch("robust");
    let [file, results] = ["mine.toml", "results"].map(|name| format!("{path}/{name}"));
    finished(&format!("{SIM} {LONGER} 5 --save {file} --dry-run"));
    let summary = ends(0, &format!("bench {file} --robust=4 --format json --output {results}")).json();
    assert_valid("summary", &summary);
    let compared = summary["comparisons"].as_array().expect("comparisons");
    assert_eq!(compared.len(), 1, "{compared:#?}");
    let expected = json!({ "robustness": "robust", "flips_at": null, "points": 4 });
    assert_eq!(compared[0]["sensitivity"], expected, "{compared:#?}");
    // From the records alone, in the terminal and in the report.
    haltkick(&format!("report {results}")).prints(&["robust (4 machines like it)"]);
    assert!(read(format!("{results}/report.html")).contains("slower, robust"), "the report says it, too");

    // An experiment that began with the flag is completed with it.
    cut(&results, 9);
    let again = finished(&format!("bench --resume {results} --format json")).json();
    assert_eq!(again["comparisons"], summary["comparisons"]);
}

#[apply(trial)]
fn compare_finds_a_loss_within_and_between_directories() {
    let directory = |name, hold| {
        let vary = "--vary lock=ticket,mcs --think 1us --blocks 6";
        let (ended, directory) = sweep(name, &format!("{vary} --hold {hold}"));
        ended.with(FINISHED);
        directory
    };
    let (before, after) = (directory("compare-before", "1us"), directory("compare-after", "4us"));
    let compare = format!("compare {before} {after}");
    refuses(&compare, "--anyway does");
    let compared = ends(8, &format!("{compare} --anyway --threshold 50% --format json")).json();
    assert_valid("comparison", &compared);
    assert_eq!(compared["cells"].as_array().unwrap().len(), 2);
    ends(0, &format!("compare {after} {before} --anyway"));
    ends(0, &format!("compare {before} {before}"));
    ends(0, &format!("compare {before}:mcs {before}:mcs")).prints(&["1.000x"]);
}

#[apply(trial)]
fn arms_are_measured_at_the_think_time_that_loads_one() {
    let vary = "--vary lock=ticket,mcs --compare --hold 200ns --blocks 2";
    let load = "--load-to lock-share=30%:ticket";
    let (done, directory) = sweep("load-to", &format!("{vary} {load} --format json"));
    let done = done.with(&[0]).says(&["--load-to: all arms run at think "]);
    // The last trial is within two hundredths of the share.
    let (_, last) = done.err.rsplit_once(" spends ").expect("trials");
    let percent: f64 = last.split_once(" %").expect("a share").0.parse().expect("a number");
    assert!((29.4..=30.6).contains(&percent), "{done}");
    let records = records(&directory);
    let thinks: BTreeSet<u64> =
        records.iter().map(|record| record["settings"]["think_ns"].as_u64().expect("a time")).collect();
    assert_eq!(thinks.len(), 1, "{thinks:?}");
    // A vCPU's time, less its sections and pauses, went into the ticket lock.
    let ticket = records.iter().find(|record| record["settings"]["lock"] == "ticket").expect("a record");
    let each_ns = 4e9 / ticket["figures"]["acquisitions_per_second"].as_f64().expect("a rate");
    let share = 1.0 - (200.0 + *thinks.first().unwrap() as f64) / each_ns;
    assert!((0.2..0.45).contains(&share), "{share} at {thinks:?}");
    let (refused, _) = sweep("load-to-refused", &format!("{vary} --load-to lock-share=99.9%:ticket"));
    let refused = refused.with(&[2]).says(&["does not spend 99.9 % of its time in locks"]);
    assert_eq!(
        refused.err.matches("--load-to: at think ").count(),
        1,
        "not even without any think: {refused}"
    );
}

#[apply(trial)]
fn a_printed_experiment_can_be_run_from_the_copy() {
    let printed = ends(0, "bench overcommit --print").prints(&["[[arm]]"]).out;
    let copy = written(format!("{}/copy.toml", scratch("print")), &printed);
    assert_eq!(haltkick(&format!("bench {copy} --print")).out, printed);
}

#[apply(kvm_trial)]
fn experiments_of_examples_and_of_the_tutorial_are_planned() {
    // The script's experiment names CPUs that this host need not have.
    for (folder, how) in [("../examples/experiments", "--dry-run"), ("scripts", "--print")] {
        let files = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).unwrap();
        let files = files.map(|entry| entry.unwrap().path());
        for file in files.filter(|file| file.extension().is_some_and(|end| end == "toml")) {
            ends(0, &format!("bench {} {how}", file.display()));
        }
    }
    let text = read(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/tutorial.md"));
    let experiment = text.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let file = written(format!("{}/slice.toml", scratch("tutorial")), experiment);
    let planned = ends(0, &format!("bench {file} --cpus {} --dry-run", an_allowed_cpu())).out;
    // Twelve settings with two arms and a lock-free cell each, and the A/A pair.
    assert_eq!(planned.lines().filter(|line| line.contains("slice-")).count(), 12 * 3 + 1);
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
    finished(&format!("bench {experiment} --max-time 1ms --output {results}-hurried"))
        .says(&["the first block takes longer than --max-time"]);
    assert_eq!(runs(&format!("{results}-hurried")).len(), planned);
}
