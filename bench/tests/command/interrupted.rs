//! Experiments that are interrupted, killed or cut off lose nothing.

use std::fs;
use std::time::Duration;

use crate::support::{
    CELLS_PER_BLOCK, Signal, apply, command, eventually, finished, kvm_trial, read, records, run_tiny, runs,
    scratch, started, tiny, trial, written,
};

/// A question about two small guests on a modelled host, whose waiters exit when they spin.
const QUESTION: &str = "answer pv --engine sim --machine nehalem-2s --cpus 0-1 --guests 2 --ratio 1 \
                        --host linux-7.3 --window 2ms --warmup 500us";

#[apply(trial)]
fn an_answer_is_given_when_stopped_or_when_its_time_is_over() {
    /// Cells of a block: three guests as asked for, without exits, and under another scheduler; and the A/A pair's second half.
    const CELLS: usize = 10;
    for (name, blocks, time, expected) in [
        ("answer-stopped", "100000", "1h", 130),
        ("answer-late", "100000", "10s", 0),
        ("answer-whole", "2", "1h", 0),
    ] {
        let results = format!("{}/out", scratch(name));
        let line = format!("{QUESTION} --output {results} --blocks {blocks} --for {time}");
        let mut answer = started(&mut command(&line));
        if expected == 130 {
            // Each of two guests has a record.
            wait_for_records(&results, 4 * CELLS);
            answer.signal(Signal::INT);
        }
        let ended = answer.ended().with(&[expected]).prints(&[
            "in ring 0, where waiters that spin exit, slices of 1.4ms by the scheduler of linux-7.3",
            "2 guests of 2 vCPUs on 2 pCPUs of the simulated nehalem-2s",
        ]);
        for tried in ["--pause-exits off", "--host cfs-2019"] {
            assert_eq!(ended.out.matches(tried).count(), 2, "{tried}: {ended}");
        }
        assert_eq!(ended.out.contains("a longer --for"), blocks != "2", "{ended}");
        let like = ended.out.lines();
        let like = like.filter_map(|line| line.strip_prefix("  on 4 machines like the simulated one: "));
        let tried: Vec<bool> = like.map(|word| word != "not tried yet").collect();
        assert_eq!(tried, [blocks == "2"; 2], "{ended}");
    }
}

/// The records that are on disk, as text: all lines of `runs.jsonl` that have an end.
fn kept(results: &str) -> String {
    let text = fs::read_to_string(format!("{results}/runs.jsonl")).unwrap_or_default();
    text.rfind('\n').map_or_else(String::new, |end| text[..=end].to_owned())
}

pub(crate) fn wait_for_records(results: &str, count: usize) {
    eventually(&format!("{count} records"), || (kept(results).lines().count() >= count).then_some(()));
}

#[apply(kvm_trial)]
fn an_experiment_killed_again_and_again_is_completed_without_loss() {
    let (experiment, results) = tiny("killed");
    let (blocks, resume) = (9, format!("bench --resume {results}"));
    let begin = format!("bench {experiment} --blocks {blocks} --output {results}");
    for kill in 0..8u64 {
        let before = kept(&results);
        let bench = started(&mut command(if kill == 0 { &begin } else { &resume }));
        // Half of them are killed between cells or in one, the others wherever they are.
        if kill % 2 == 0 {
            wait_for_records(&results, before.lines().count() + 1);
        }
        std::thread::sleep(Duration::from_millis(kill * 29 % 97));
        drop(bench);
        assert!(kept(&results).starts_with(&before), "what was recorded was touched");
    }
    let done = runs(&results).len();
    assert!(done < blocks * CELLS_PER_BLOCK, "it was over before it was killed for the last time");
    finished(&resume);
    let complete = runs(&results);
    assert_eq!(complete.len(), blocks * CELLS_PER_BLOCK);
    assert!(complete.values().all(|count| *count == 1), "{complete:?}");
}

#[apply(kvm_trial)]
fn half_a_last_line_is_cut_off_and_its_cell_runs_again() {
    let results = run_tiny("half-a-line");
    let path = format!("{results}/runs.jsonl");
    let text = read(&path);
    written(path, &text[..text.len() - 100]);
    let before = kept(&results);
    assert_eq!(before.lines().count(), 3 * CELLS_PER_BLOCK - 1);
    finished(&format!("bench --resume {results}"));
    assert!(kept(&results).starts_with(&before), "what was recorded was touched");
    assert_eq!(runs(&results).len(), 3 * CELLS_PER_BLOCK);
    assert_eq!(records(&results).len(), 3 * CELLS_PER_BLOCK);
}
