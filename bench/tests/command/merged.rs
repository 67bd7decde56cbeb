//! Results of several runs: merged, compared.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::{FINISHED, Tested, assert_valid, code, finished, haltkick, json, kvm, stderr, trials};
use crate::tiny::{CELLS_PER_BLOCK, TINY, records, run_tiny, runs, tiny};

trials![
    cells_run_one_by_one_merge_into_the_same_experiment,
    merging_two_whole_runs_doubles_the_blocks,
    compare_finds_a_loss_within_and_between_directories,
    directories_of_different_experiments_are_not_compared_or_merged,
];

fn cells_run_one_by_one_merge_into_the_same_experiment() -> Tested {
    kvm()?;
    let (experiment, path) = tiny("spread");
    let whole = path.join("whole");
    let mut parts = vec![];
    for part in ["a", "b"] {
        let directory = path.join(part);
        let list = finished(&[
            "bench",
            &experiment,
            "--blocks",
            "1",
            "--list-cells",
            "--output",
            directory.to_str().unwrap(),
        ]);
        let commands = String::from_utf8(list.stdout).unwrap();
        let half = commands.lines().enumerate().filter(|(i, _)| (i % 2 == 0) == (part == "a"));
        for (_, line) in half {
            let line = line.replacen("haltkick", env!("CARGO_BIN_EXE_haltkick"), 1);
            let output = Command::new("sh").args(["-c", &line]).output().expect("sh can be started");
            assert!(FINISHED.contains(&code(&output)), "{line}: {}", stderr(&output));
        }
        parts.push(directory.display().to_string());
    }
    finished(&["merge", &parts[0], &parts[1], "--output", whole.to_str().unwrap()]);
    assert_eq!(runs(&whole).len(), CELLS_PER_BLOCK);
    assert_eq!(json(&whole.join("manifest.json"))["outline"]["blocks"], 1);
    Ok(())
}

fn merging_two_whole_runs_doubles_the_blocks() -> Tested {
    kvm()?;
    let (first, second) = (run_tiny("merge-first"), run_tiny("merge-second"));
    let both = first.with_file_name("both");
    finished(&[
        "merge",
        first.to_str().unwrap(),
        second.to_str().unwrap(),
        "--output",
        both.to_str().unwrap(),
    ]);
    let merged = runs(&both);
    assert_eq!(merged.len(), 6 * CELLS_PER_BLOCK);
    assert!(merged.values().all(|count| *count == 1));
    Ok(())
}

fn compare_finds_a_loss_within_and_between_directories() -> Tested {
    kvm()?;
    let before = run_tiny("compare-before");
    let after = before.with_file_name("after");
    fs::create_dir_all(&after).unwrap();
    fs::copy(before.join("manifest.json"), after.join("manifest.json")).unwrap();
    // Six blocks each, so that there are intervals; the later directory has lost nine tenths.
    let write = |directory: &Path, factor: f64| {
        let mut lines = String::new();
        for copy in 0..2 {
            for mut record in records(&before).into_iter().take(3 * CELLS_PER_BLOCK) {
                record["place"]["block"] = (record["place"]["block"].as_u64().unwrap() + copy * 3).into();
                let speed = 1000.0 + record["place"]["order_index"].as_f64().unwrap();
                record["totals"]["acquisitions_per_second"] = (speed * factor).into();
                // Other load does not matter here: this is about a loss.
                (record["trusted"], record["warnings"]) = (true.into(), Value::Array(vec![]));
                lines += &format!("{record}\n");
            }
        }
        fs::write(directory.join("runs.jsonl"), lines).unwrap();
    };
    write(&after, 0.1);
    write(&before, 1.0);
    let (before, after) = (before.display().to_string(), after.display().to_string());
    assert_eq!(haltkick(&["compare", &before, &after, "--threshold", "50%"]).status.code(), Some(8));
    assert_eq!(haltkick(&["compare", &after, &before]).status.code(), Some(0));
    assert_eq!(haltkick(&["compare", &before, &before]).status.code(), Some(0));
    let compared = haltkick(&["compare", &before, &after, "--format", "json"]);
    let value: Value = serde_json::from_slice(&compared.stdout).unwrap();
    assert_valid("comparison", &value);
    assert_eq!(value["cells"].as_array().unwrap().len(), 4);
    let arms = haltkick(&["compare", &format!("{before}:tas"), &format!("{before}:tas")]);
    assert!(
        String::from_utf8_lossy(&arms.stdout).contains("1.000x"),
        "{}",
        String::from_utf8_lossy(&arms.stdout)
    );
    Ok(())
}

fn directories_of_different_experiments_are_not_compared_or_merged() -> Tested {
    kvm()?;
    let first = run_tiny("different");
    let (experiment, path) = tiny("different-other");
    fs::write(&experiment, TINY.replace("\"tiny\"", "\"other\"")).unwrap();
    let other = path.join("results").display().to_string();
    finished(&["bench", &experiment, "--blocks", "1", "--output", &other]);
    for arguments in [
        vec!["compare", first.to_str().unwrap(), &other],
        vec!["merge", first.to_str().unwrap(), &other, "--output", "/nowhere"],
    ] {
        let output = haltkick(&arguments);
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{message}");
        let both = message.contains("'tiny'") && message.contains("'other'");
        assert!(both && message.lines().count() == 1, "{message}");
    }
    Ok(())
}
