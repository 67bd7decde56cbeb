//! Experiments that are interrupted, killed or cut off lose nothing.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use crate::support::{
    Check, apply, code, command, eventually, finished, haltkick, json, kvm, scratch, stderr, stdout, trial,
};
use crate::tiny::{CELLS_PER_BLOCK, records, run_tiny, runs, tiny};

/// A question about two small guests on a modelled host, whose waiters exit when they spin.
const QUESTION: [&str; 19] = [
    "answer",
    "pv",
    "--engine",
    "sim",
    "--machine",
    "nehalem-2s",
    "--cpus",
    "0-1",
    "--guests",
    "2",
    "--ratio",
    "1",
    "--host",
    "linux-7.3",
    "--window",
    "2ms",
    "--warmup",
    "500us",
    "--output",
];

#[apply(trial)]
fn an_answer_is_given_when_stopped_or_when_its_time_is_over() {
    /// Cells of a block: three guests as asked for, without exits, and under another scheduler; and the A/A pair's second half.
    const CELLS: usize = 10;
    for (name, blocks, time, expected) in [
        ("answer-stopped", "100000", "1h", 130),
        ("answer-late", "100000", "10s", 0),
        ("answer-whole", "2", "1h", 0),
    ] {
        let results = scratch(name).join("out");
        let more = [results.to_str().unwrap(), "--blocks", blocks, "--for", time];
        let mut child = command(&[&QUESTION[..], &more].concat());
        let child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        if expected == 130 {
            // Each of two guests has a record.
            wait_for_records(&results, 4 * CELLS);
            signal(&child, rustix::process::Signal::INT);
        }
        let output = child.wait_with_output().unwrap();
        assert_eq!(code(&output), expected, "{name}: {}", stderr(&output));
        let said = stdout(&output);
        assert!(
            said.contains(
                "in ring 0, where waiters that spin exit, slices of 1.4ms by the scheduler of linux-7.3"
            ),
            "{said}"
        );
        assert!(said.contains("2 guests of 2 vCPUs on 2 pCPUs of the simulated nehalem-2s"), "{said}");
        for tried in ["--pause-exits off", "--host cfs-2019"] {
            assert_eq!(said.matches(tried).count(), 2, "{tried}: {said}");
        }
        assert_eq!(said.contains("a longer --for"), blocks != "2", "{said}");
        let like =
            said.lines().filter_map(|line| line.strip_prefix("  on 4 machines like the simulated one: "));
        let tried: Vec<bool> = like.map(|word| word != "not tried yet").collect();
        assert_eq!(tried, [blocks == "2"; 2], "{said}");
    }
}

/// The records that are on disk, as text: all lines of `runs.jsonl` that have an end.
fn kept(results: &Path) -> String {
    let text = fs::read_to_string(results.join("runs.jsonl")).unwrap_or_default();
    text.rfind('\n').map_or_else(String::new, |end| text[..=end].to_owned())
}

fn wait_for_records(results: &Path, count: usize) {
    eventually(&format!("{count} records"), || (kept(results).lines().count() >= count).then_some(()));
}

pub(crate) fn signal(child: &Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, signal).expect("the child is ours");
}

#[apply(trial)]
fn ctrl_c_keeps_what_was_measured_and_shows_its_table() -> Check {
    kvm()?;
    let (experiment, path) = tiny("ctrl-c");
    let results = path.join("results");
    let child = command(&["bench", &experiment, "--blocks", "1000", "--output", results.to_str().unwrap()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("haltkick can be started");
    wait_for_records(&results, CELLS_PER_BLOCK + 3);
    signal(&child, rustix::process::Signal::INT);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("A tiny experiment"), "{table}");
    let kept = records(&results).len();
    assert!(kept >= CELLS_PER_BLOCK + 3);
    assert_eq!(json(&results.join("summary.json"))["runs"], kept);
    Ok(())
}

#[apply(trial)]
fn a_directory_that_a_bench_writes_to_is_not_written_by_another() -> Check {
    kvm()?;
    let (experiment, path) = tiny("at-once");
    let results = path.join("results");
    let directory = results.to_str().unwrap();
    let mut first = command(&["bench", &experiment, "--blocks", "1000", "--output", directory])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("haltkick can be started");
    wait_for_records(&results, 1);
    let second = haltkick(&["bench", "--resume", directory, "--max-time", "1ms"]);
    let report = haltkick(&["report", directory]);
    signal(&first, rustix::process::Signal::INT);
    first.wait().unwrap();
    assert_eq!(code(&second), 2, "{}", stderr(&second));
    assert!(stderr(&second).contains("another haltkick writes to "), "{}", stderr(&second));
    assert!([0, 7].contains(&code(&report)), "what is there so far can be looked at: {}", stderr(&report));
    assert!(runs(&results).values().all(|count| *count == 1));
    Ok(())
}

#[apply(trial)]
fn an_experiment_killed_again_and_again_is_completed_without_loss() -> Check {
    kvm()?;
    let (experiment, path) = tiny("killed");
    let results = path.join("results");
    let directory = results.to_str().unwrap().to_owned();
    let blocks = 9;
    for kill in 0..8u64 {
        let before = kept(&results);
        let mut begin = match kill {
            0 => command(&["bench", &experiment, "--blocks", &blocks.to_string(), "--output", &directory]),
            _ => command(&["bench", "--resume", &directory]),
        };
        let mut child = begin.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // Half of them are killed between cells or in one, the others wherever they are.
        if kill % 2 == 0 {
            wait_for_records(&results, before.lines().count() + 1);
        }
        std::thread::sleep(Duration::from_millis(kill * 29 % 97));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(kept(&results).starts_with(&before), "what was recorded was touched");
    }
    assert!(
        runs(&results).len() < blocks * CELLS_PER_BLOCK,
        "it was over before it was killed for the last time"
    );
    finished(&["bench", "--resume", &directory]);
    let complete = runs(&results);
    assert_eq!(complete.len(), blocks * CELLS_PER_BLOCK);
    let repeated: Vec<_> = complete.iter().filter(|(_, count)| **count > 1).collect();
    assert!(repeated.is_empty(), "{repeated:?}");
    Ok(())
}

#[apply(trial)]
fn half_a_last_line_is_cut_off_and_its_cell_runs_again() -> Check {
    kvm()?;
    let results = run_tiny("half-a-line");
    let path = results.join("runs.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, &text[..text.len() - 100]).unwrap();
    let before = kept(&results);
    assert_eq!(before.lines().count(), 3 * CELLS_PER_BLOCK - 1);
    finished(&["bench", "--resume", results.to_str().unwrap()]);
    assert!(kept(&results).starts_with(&before), "what was recorded was touched");
    assert_eq!(runs(&results).len(), 3 * CELLS_PER_BLOCK);
    assert_eq!(records(&results).len(), 3 * CELLS_PER_BLOCK);
    Ok(())
}
