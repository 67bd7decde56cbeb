//! Files, their names and their ends: links in the way, names that no terminal should get, output that nothing takes, full disks.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::support::*;

/// The tiny experiment on a simulated machine.
fn experiment(within: &str) -> String {
    written(format!("{within}/s.toml"), simulated())
}

#[apply(trial)]
fn no_control_character_of_a_name_reaches_a_terminal() {
    let named = format!("{}/a\u{1b}]0;b\u{7}c", scratch("names-of-files"));
    fs::create_dir(&named).unwrap();
    let good = experiment(&named);
    let bad = written(format!("{named}/bad.toml"), "format = 2\n");
    let (results, none) = (format!("{named}/results"), format!("{named}/none"));
    for (line, expected) in [
        (format!("bench {good} --output {results}"), 0),
        (format!("bench {good} --output {results}"), 2),
        (format!("bench --resume {results}"), 0),
        (format!("bench --resume {none}"), 2),
        (format!("report {results}"), 0),
        (format!("report {none}"), 2),
        (format!("merge {results} --output {named}/merged"), 0),
        (format!("compare {results} {none}"), 2),
        (format!("bench {bad}"), 3),
        (format!("bench {none}"), 2),
        (format!("top {none}"), 2),
        (format!("top {results} --once"), 2),
        (format!("run --trace {named}/no/trace"), 2),
        (format!("run --guest {none}"), 2),
        (format!("check {none}"), 2),
        ("run --perf-\u{1b}[5n".into(), 2),
    ] {
        // As on a terminal, where colours are not taken out.
        let Ended { out, err, .. } = end_of(command(&line).env("CLICOLOR_FORCE", "1")).with(&[expected]);
        let reaches = |it: &&str| out.contains(it) || err.contains(it);
        assert_eq!(["\u{1b}]", "\u{1b}[5n", "\u{7}"].iter().find(|it| reaches(it)), None, "{line:?}");
    }
}

#[apply(trial)]
fn an_output_directory_need_not_be_named_in_utf8() {
    let directory = scratch("no-text");
    let results = Path::new(&directory).join(OsStr::from_bytes(b"results-\xff"));
    let mut bench = command(&format!("bench {} --output", experiment(&directory)));
    end_of(bench.arg(&results)).with(&[0]);
    assert!(results.join("report.html").exists());
    assert_eq!(read(results.join("runs.jsonl")).lines().count(), 3 * CELLS_PER_BLOCK);
}

#[apply(trial)]
fn a_limit_on_file_sizes_costs_what_does_not_fit() {
    let directory = scratch("limited");
    let (experiment, results) = (experiment(&directory), format!("{directory}/results"));
    let limited = |blocks: u32, results: &str| {
        shell(&format!("ulimit -f {blocks} && exec {HALTKICK} bench {experiment} --output {results}"))
            .with(&[1])
    };
    // The table of what is there is printed.
    let ended = limited(40, &results).prints(&["A tiny experiment"]);
    let kept = records(&results).len();
    assert!((1..3 * CELLS_PER_BLOCK).contains(&kept), "{kept} records are in a file of at most 40 blocks");
    ended.says(&[&format!("File too large (os error 27): {kept} records are kept; make room, then")]);
    ends(0, &format!("bench --resume {results}"));
    assert_eq!(records(&results).len(), 3 * CELLS_PER_BLOCK);
    let none = format!("{directory}/none");
    limited(2, &none).says(&["manifest.json: File too large"]);
    assert!(!Path::new(&none).exists(), "half a manifest is left");
}

#[apply(trial)]
fn a_closed_or_full_standard_output_is_reported_and_costs_no_results() {
    let run = |to| shell(&format!("exec {HALTKICK} run {SIMULATED} --no-ideal --format json {to}"));
    run(">/dev/null").with(&[0]);
    for (to, reason) in [(">&-", "it is closed"), (">/dev/full", "No space")] {
        let reason = format!("haltkick: standard output: {reason}");
        let ended = run(to).with(&[1]);
        assert!(ended.err.starts_with(&reason), "{ended}");
        let directory = scratch("table-not-taken");
        let (experiment, results) = (experiment(&directory), format!("{directory}/results"));
        let bench = shell(&format!("exec {HALTKICK} bench {experiment} --output {results} {to}")).with(&[1]);
        assert!(Path::new(&results).join("report.html").exists(), "{bench}");
        let (last, kept) =
            (bench.err.lines().last().unwrap(), ": all 21 records are kept, with the report, in");
        assert!(last.starts_with(&reason) && last.ends_with(&format!("{kept} {results}")), "{bench}");
    }
}

#[apply(trial)]
fn no_file_with_a_predictable_name_is_written_through_a_link() {
    let directory = scratch("links");
    let target = written(format!("{directory}/target"), "precious");
    // `exec` keeps the number of the process.
    let map = "/tmp/perf-$$.map";
    let run = format!("exec {HALTKICK} run --engine threads --perf-map --no-ideal --duration 5ms");
    let map_of = |ended: &Ended| ended.out.lines().next().unwrap().to_owned();
    let refused = shell(&format!("echo {map}; ln -s {target} {map} && {run}"));
    fs::remove_file(map_of(&refused)).unwrap();
    refused.with(&[2]).says(&["--perf-map: /tmp/perf-"]);
    let stale = shell(&format!("echo {map}; echo stale >{map} && {run}")).with(FINISHED);
    assert!(read(map_of(&stale)).lines().count() > 10, "one of an earlier process is replaced");
    fs::remove_file(map_of(&stale)).unwrap();

    let results = format!("{directory}/results");
    let bench = format!("bench {} --output {results}", experiment(&directory));
    let partial = format!("mkdir {results} && ln -s {target} {results}/manifest.json.partial-$$");
    shell(&format!("{partial} && exec {HALTKICK} {bench}")).with(&[1]);
    fs::remove_dir_all(&results).unwrap();
    fs::create_dir(&results).unwrap();
    assert_eq!(read(&target), "precious");
    // It looks like records of which there are none yet.
    written(target.clone(), "");
    symlink(&target, format!("{results}/runs.jsonl")).unwrap();
    refuses(&bench, "symbolic link");
    assert_eq!(read(&target), "");
}

#[apply(trial)]
fn a_large_grid_is_refused_before_its_cells_are_made() {
    let values = |most: u32| (1..=most).map(|i| format!("{i}ms")).collect::<Vec<_>>();
    let axes = ["hold", "think", "slice", "window", "warmup"];
    let grid = axes.map(|key| format!("{key} = {:?}\n", values(40))).concat();
    let text =
        format!("format = 1\nname = 'g'\ntitle = 'G'\n[grid]\n{grid}[[arm]]\nname = 'a'\nlock = 'tas'\n");
    let file = written(format!("{}/grid.toml", scratch("grid")), text);
    // Without a cap this would take hundreds of GiB.
    let ended = shell(&format!("ulimit -v 4000000 && exec {HALTKICK} bench {file} --dry-run"));
    let ended = ended.with(&[3]).says(&["grid.toml:", "102400000 cells, and an experiment has at most "]);
    assert_eq!(ended.err.lines().count(), 1, "{ended}");
    let vary = axes.map(|key| format!(" --vary {key}={}", values(60).join(",")));
    refuses(
        &format!("sweep --dry-run{}", vary[..3].concat()),
        "--vary: 216000 cells, and an experiment has at most ",
    );
}

#[apply(kvm_trial)]
fn a_trace_too_large_for_the_disk_leaves_the_record() {
    let full = "--trace: /dev/full: No space left on device (os error 28): the record is complete";
    let ended = ends(1, "run --no-ideal --duration 50ms --format json --trace /dev/full").says(&[full]);
    assert_valid("run", &ended.json());
    assert!(Path::new("/dev/full").exists());
}
