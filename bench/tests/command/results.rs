//! Directories of results: the files that an experiment leaves, merged ones, and refusals there.

use std::fs;
use std::os::unix::fs::symlink;

use crate::support::{
    CELLS_PER_BLOCK, TINY, apply, assert_complete, assert_valid, finished, json, kvm_trial, read, records,
    refusal, refuses, run_tiny, runs, scratch, tiny, trial, written,
};

#[apply(trial)]
fn an_output_directory_that_is_taken_or_cannot_be_written_is_refused() {
    let directory = scratch("taken");
    let [file, manifest] =
        ["file", "manifest.json"].map(|name| written(format!("{directory}/{name}"), "precious"));
    for (path, expected) in [
        (&*file, &*format!("output directory {file}: ")),
        ("/proc/haltkick", "output directory /proc/haltkick: "),
        (&directory, "already holds an experiment"),
    ] {
        refuses(&format!("bench overcommit --output {path}"), expected);
    }
    assert_eq!((read(file), read(manifest)), ("precious".into(), "precious".into()));
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 2);
}

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

#[apply(trial)]
fn what_has_no_end_or_is_no_regular_file_is_not_read() {
    let directory = scratch("endless");
    let results = format!("{directory}/results");
    fs::create_dir(&results).unwrap();
    symlink("/dev/zero", format!("{results}/manifest.json")).unwrap();
    let of_kernels = |name: &str, kernel: &str, initrd: &str| {
        let text = include_str!("../../../examples/kernels/pv.toml");
        let text = text.replace("\"vmlinuz\"", kernel).replace("\"initrd.cpio\"", initrd);
        written(format!("{directory}/{name}"), text)
    };
    fs::File::create(format!("{directory}/huge")).and_then(|file| file.set_len(1 << 40)).unwrap();
    let kernel = of_kernels("kernel.toml", "\"huge\"", "\"kernel.toml\"");
    let initrd = of_kernels("initrd.toml", "\"kernel.toml\"", "\"huge\"");
    let huge = "huge: it has 1099511627776 bytes, and 3221225472 are the most";
    for (line, expected) in [
        ("bench /dev/zero", "/dev/zero: it has more than 1048576 bytes, which are the most"),
        (&format!("report {results}"), "manifest.json: it is no regular file"),
        (&format!("bench {kernel}"), huge),
        (&format!("bench {initrd}"), huge),
    ] {
        refuses(line, expected);
    }
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

#[apply(kvm_trial)]
fn directories_of_different_experiments_are_not_compared_or_merged() {
    let first = run_tiny("different");
    let (experiment, other) = tiny("different-other");
    fs::write(&experiment, TINY.replace("\"tiny\"", "\"other\"")).unwrap();
    finished(&format!("bench {experiment} --blocks 1 --output {other}"));
    for line in [format!("compare {first} {other}"), format!("merge {first} {other} --output /nowhere")] {
        let message = refusal(&line);
        assert!(message.contains("'tiny'") && message.contains("'other'"), "{message}");
    }
}
