//! Files that an experiment leaves in its directory, and refusals there.

use std::fs;

use crate::support::{
    Check, apply, assert_valid, haltkick, json, kvm, nulls_without_reason, refusal, scratch, trial,
};
use crate::tiny::{CELLS_PER_BLOCK, records, run_tiny, runs};

#[apply(trial)]
fn an_output_directory_that_cannot_be_written_is_refused_before_any_run() {
    let file = scratch("in-the-way").join("file");
    std::fs::write(&file, "").unwrap();
    for path in [file.to_str().unwrap(), "/proc/haltkick"] {
        let message = refusal(&["bench", "overcommit", "--output", path]);
        assert!(message.contains(&format!("output directory {path}: ")), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
    assert_eq!(std::fs::read(&file).unwrap(), b"");
}

#[apply(trial)]
fn a_directory_that_holds_an_experiment_is_not_overwritten() {
    let directory = scratch("taken");
    std::fs::write(directory.join("manifest.json"), "precious").unwrap();
    let message = refusal(&["bench", "overcommit", "--output", directory.to_str().unwrap()]);
    assert!(message.contains("already holds an experiment"), "{message}");
    assert_eq!(std::fs::read_to_string(directory.join("manifest.json")).unwrap(), "precious");
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1);
}

#[apply(trial)]
fn an_experiment_leaves_a_complete_directory_that_keeps_to_the_schemas() -> Check {
    kvm()?;
    let results = run_tiny("complete");
    assert_eq!(runs(&results).len(), 3 * CELLS_PER_BLOCK);
    assert!(runs(&results).values().all(|count| *count == 1));
    for record in records(&results) {
        assert_valid("run", &record);
        assert_eq!(nulls_without_reason(&record), [""; 0], "{}", record["why"]);
    }
    assert_valid("manifest", &json(&results.join("manifest.json")));
    assert_valid("summary", &json(&results.join("summary.json")));
    for name in [
        "summary.csv",
        "runs.csv",
        "report.html",
        "throughput.svg",
        "efficiency.svg",
        "fairness.svg",
        "time.svg",
    ] {
        assert!(results.join(name).metadata().is_ok_and(|file| file.len() > 0), "{name} is missing");
    }
    let left_over: Vec<_> = fs::read_dir(&results)
        .unwrap()
        .flatten()
        .filter(|file| file.file_name().to_string_lossy().contains("partial"))
        .collect();
    assert!(left_over.is_empty(), "{left_over:?}");
    Ok(())
}

#[apply(trial)]
fn what_has_no_end_or_is_no_regular_file_is_not_read() {
    let directory = scratch("endless");
    let results = directory.join("results");
    fs::create_dir(&results).unwrap();
    std::os::unix::fs::symlink("/dev/zero", results.join("manifest.json")).unwrap();
    let of_kernels = |name: &str, kernel: &str, initrd: &str| {
        let text = include_str!("../../../examples/kernels/pv.toml");
        let path = directory.join(name);
        fs::write(&path, text.replace("\"vmlinuz\"", kernel).replace("\"initrd.cpio\"", initrd)).unwrap();
        path.display().to_string()
    };
    fs::File::create(directory.join("huge")).and_then(|file| file.set_len(1 << 40)).unwrap();
    let kernel = of_kernels("kernel.toml", "\"huge\"", "\"kernel.toml\"");
    let initrd = of_kernels("initrd.toml", "\"kernel.toml\"", "\"huge\"");
    let results = results.to_str().unwrap();
    for (arguments, expected) in [
        (&["bench", "/dev/zero"][..], "/dev/zero: it has more than 1048576 bytes, which are the most"),
        (&["report", results], "manifest.json: it is no regular file"),
        (&["bench", &kernel], "huge: it has 1099511627776 bytes, and 3221225472 are the most"),
        (&["bench", &initrd], "huge: it has 1099511627776 bytes, and 3221225472 are the most"),
    ] {
        let message = refusal(arguments);
        assert!(message.contains(expected) && message.lines().count() == 1, "{arguments:?}: {message}");
    }
}

#[apply(trial)]
fn broken_old_and_foreign_records_are_refused_with_file_and_line() -> Check {
    kvm()?;
    let results = run_tiny("broken");
    let path = results.join("runs.jsonl");
    let good = fs::read_to_string(&path).unwrap();
    for (replacement, expected) in [
        ("garbage".to_owned(), "no JSON"),
        (
            "{\"schema\":\"somebody.else\",\"schema_version\":2}".to_owned(),
            "schema is 'somebody.else', not 'haltkick.run'",
        ),
        (
            good.lines().nth(1).unwrap().replace("\"schema_version\":2", "\"schema_version\":9"),
            "a record of version 9, where this haltkick reads version 2",
        ),
        ("{\"schema\":\"haltkick.run\",\"schema_version\":2}".to_owned(), "a broken record"),
    ] {
        let mut lines: Vec<&str> = good.lines().collect();
        lines[1] = &replacement;
        fs::write(&path, lines.join("\n") + "\n").unwrap();
        let output = haltkick(&["report", results.to_str().unwrap()]);
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.contains(&format!("{}:2: {expected}", path.display())), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
    let message = refusal(&["report", results.to_str().unwrap()]);
    assert!(message.contains("runs.jsonl: it is no regular file"), "{message}");
    Ok(())
}
