//! Experiment files: found, read, printed, overridden; in which order, and for how long, their cells run.

use std::fs;
use std::path::Path;

use crate::support::{
    CELLS_PER_BLOCK, TINY, an_allowed_cpu, apply, cut, ends, finished, haltkick, kvm_trial, read, runs,
    scratch, tiny, trial, written,
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
