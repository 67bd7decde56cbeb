//! Directories of results: the files that an experiment leaves, merged ones, and refusals there; experiments that are interrupted,
//! killed or cut off lose nothing.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

use crate::support::{
    CELLS_PER_BLOCK, Signal, apply, assert_complete, assert_valid, command, eventually, finished, json,
    kvm_trial, read, records, refuses, run_tiny, runs, scratch, started, tiny, trial, written,
};

#[apply(kvm_trial)]
fn an_experiment_leaves_a_complete_directory_that_keeps_to_the_schemas() {
    let results = run_tiny("complete");
    assert_eq!(runs(&results).len(), 3 * CELLS_PER_BLOCK);
    assert!(runs(&results).values().all(|count| *count == 1));
    records(&results).iter().for_each(assert_complete);
    for of in ["manifest", "summary"] {
        assert_valid(of, &json(format!("{results}/{of}.json")));
    }
    for name in ["summary.csv", "runs.csv", "report.html"] {
        assert!(!read(format!("{results}/{name}")).is_empty(), "{name}");
    }
    for name in ["throughput", "efficiency", "fairness", "time"] {
        assert!(!read(format!("{results}/{name}.svg")).is_empty(), "{name}");
    }
    let names = fs::read_dir(&results).unwrap().flatten().map(|file| file.file_name());
    let left_over: Vec<_> = names.filter(|name| name.to_string_lossy().contains("partial")).collect();
    assert!(left_over.is_empty(), "{left_over:?}");
}

#[apply(kvm_trial)]
fn broken_old_and_foreign_records_are_refused_with_file_and_line() {
    let results = run_tiny("broken");
    let (path, report) = (format!("{results}/runs.jsonl"), format!("report {results}"));
    let good = read(&path);
    let of_version_9 = good.lines().nth(1).unwrap().replace("\"schema_version\":2", "\"schema_version\":9");
    for (replacement, expected) in [
        ("garbage", "no JSON"),
        (
            "{\"schema\":\"somebody.else\",\"schema_version\":2}",
            "schema is 'somebody.else', not 'haltkick.run'",
        ),
        (&of_version_9, "a record of version 9, where this haltkick reads version 2"),
        ("{\"schema\":\"haltkick.run\",\"schema_version\":2}", "a broken record"),
    ] {
        let mut lines: Vec<&str> = good.lines().collect();
        lines[1] = replacement;
        fs::write(&path, lines.join("\n") + "\n").unwrap();
        refuses(&report, &format!("{path}:2: {expected}"));
    }
    fs::remove_file(&path).unwrap();
    symlink("/dev/zero", &path).unwrap();
    refuses(&report, "runs.jsonl: it is no regular file");
}

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
    // Half a last line is cut off, and its cell runs again.
    let path = format!("{results}/runs.jsonl");
    let text = read(&path);
    written(path, &text[..text.len() - 100]);
    let before = kept(&results);
    finished(&resume);
    assert!(kept(&results).starts_with(&before), "what was recorded was touched");
    assert_eq!(runs(&results), complete);
}
