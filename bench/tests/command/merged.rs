//! Results of several runs: merged, compared.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::support::{Check, apply, assert_valid, finished, haltkick, kvm, trial};
use crate::tiny::{CELLS_PER_BLOCK, TINY, records, run_tiny, runs, tiny};

#[apply(trial)]
fn merging_two_whole_runs_doubles_the_blocks() -> Check {
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

#[apply(trial)]
fn compare_finds_a_loss_within_and_between_directories() -> Check {
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
                record["figures"]["acquisitions_per_second"] = (speed * factor).into();
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

#[apply(trial)]
fn directories_of_different_experiments_are_not_compared_or_merged() -> Check {
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
