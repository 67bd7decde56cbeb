//! Files, their names and their ends: links in the way, names that no terminal should get, and output that nothing takes.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::{SIMULATED, apply, code, command, haltkick, refusal, scratch, stderr, stdout, trial};
use crate::tiny::records;

/// Two arms on a simulated machine.
const SIMULATED_TINY: &str = r#"
format = 1
name = "s"
title = "S"
blocks = 4
[settings]
engine = "sim"
machine = "cascadelake-2s"
cpus = "0-1"
vcpus = 4
window = "1ms"
warmup = "1ms"
think = "1us"
[[arm]]
name = "tas"
lock = "tas"
[[arm]]
name = "mcs"
lock = "mcs"
"#;

fn experiment(within: &Path) -> PathBuf {
    let path = within.join("s.toml");
    fs::write(&path, SIMULATED_TINY).expect("a writable scratch directory");
    path
}

/// A shell that runs `script`, in which `$1` is the command.
fn shell(script: &str, more: &[&Path]) -> Output {
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh", env!("CARGO_BIN_EXE_haltkick")]).args(more);
    shell.output().expect("there is a shell")
}

#[apply(trial)]
fn no_control_character_of_a_name_reaches_a_terminal() {
    let named = scratch("names-of-files").join("a\u{1b}]0;b\u{7}c");
    let within = |name: &str| named.join(name).to_str().unwrap().to_owned();
    fs::create_dir(&named).unwrap();
    let good = experiment(&named).to_str().unwrap().to_owned();
    fs::write(named.join("bad.toml"), "format = 2\n").unwrap();
    let (results, merged, bad, none) =
        (within("results"), within("merged"), within("bad.toml"), within("none"));
    for (arguments, expected) in [
        (&["bench", &good, "--output", &results][..], 0),
        (&["bench", &good, "--output", &results], 2),
        (&["bench", "--resume", &results], 0),
        (&["bench", "--resume", &none], 2),
        (&["report", &results], 0),
        (&["report", &none], 2),
        (&["merge", &results, "--output", &merged], 0),
        (&["compare", &results, &none], 2),
        (&["bench", &bad], 3),
        (&["bench", &none], 2),
        (&["top", &none], 2),
        (&["top", &results, "--once"], 2),
        (&["run", "--trace", &within("no/trace")], 2),
        (&["run", "--guest", &none], 2),
        (&["check", &none], 2),
        (&["run", "--perf-\u{1b}[5n"], 2),
    ] {
        // As on a terminal, where colours are not taken out.
        let output = command(arguments).env("CLICOLOR_FORCE", "1").output().unwrap();
        assert_eq!(code(&output), expected, "{arguments:?}: {}", stderr(&output));
        let said = [stdout(&output), stderr(&output)].concat();
        assert!(
            !["\u{1b}]", "\u{1b}[5n", "\u{7}"].iter().any(|it| said.contains(it)),
            "{arguments:?}: {said:?}"
        );
    }
}

#[apply(trial)]
fn an_output_directory_need_not_be_named_in_utf8() {
    let directory = scratch("no-text");
    let results = directory.join(OsStr::from_bytes(b"results-\xff"));
    let mut bench = command(&["bench"]);
    let output = bench.arg(experiment(&directory)).arg("--output").arg(&results).output().unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(results.join("report.html").exists());
    assert_eq!(records(&results).len(), 4 * 3);
}

#[apply(trial)]
fn a_limit_on_file_sizes_costs_what_does_not_fit() {
    let directory = scratch("limited");
    let results = directory.join("results");
    let script = "ulimit -f 40 && exec \"$1\" bench \"$2\" --output \"$3\"";
    let output = shell(script, &[&experiment(&directory), &results]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let kept = records(&results).len();
    assert!((1..12).contains(&kept), "{kept} records are in a file of at most 40 blocks");
    let expected = format!("File too large (os error 27): {kept} records are kept");
    assert!(stderr(&output).contains(&expected), "{}", stderr(&output));
    let resumed = haltkick(&["bench", "--resume", results.to_str().unwrap()]);
    assert_eq!((code(&resumed), records(&results).len()), (0, 4 * 3), "{}", stderr(&resumed));
}

#[apply(trial)]
fn a_closed_or_full_standard_output_is_reported() {
    let run = format!("exec \"$1\" run {} --no-ideal --format json", SIMULATED.join(" "));
    for (to, expected) in
        [(">&-", "standard output: it is closed"), (">/dev/full", "standard output: No space")]
    {
        let output = shell(&format!("{run} {to}"), &[]);
        assert_eq!(code(&output), 1, "{to}: {}", stderr(&output));
        assert!(stderr(&output).starts_with(&format!("haltkick: {expected}")), "{to}: {}", stderr(&output));
    }
    assert_eq!(code(&shell(&format!("{run} >/dev/null"), &[])), 0);
    assert_eq!(code(&shell(&format!("{run} | true; exit $?"), &[])), 0);
}

#[apply(trial)]
fn results_are_kept_whether_or_not_their_table_is_taken() {
    for (name, to) in [("table-full", ">/dev/full"), ("table-closed", ">&-")] {
        let directory = scratch(name);
        let results = directory.join("results");
        let script = format!("exec \"$1\" bench \"$2\" --output \"$3\" {to}");
        let output = shell(&script, &[&experiment(&directory), &results]);
        assert_eq!(code(&output), 1, "{}", stderr(&output));
        assert!(results.join("report.html").exists(), "{}", stderr(&output));
        let last = stderr(&output).lines().last().unwrap().to_owned();
        let expected = format!(": all 12 records are kept, with the report, in {}", results.display());
        assert!(last.starts_with("haltkick: standard output: ") && last.ends_with(&expected), "{last}");
    }
}

#[apply(trial)]
fn no_file_with_a_predictable_name_is_written_through_a_link() {
    let directory = scratch("links");
    let target = directory.join("target");
    let results = directory.join("results");
    let untouched = |output: &Output, exit: i32| {
        assert_eq!(code(output), exit, "{}", stderr(output));
        assert_eq!(fs::read_to_string(&target).unwrap(), "precious", "{}", stderr(output));
    };
    fs::write(&target, "precious").unwrap();
    // `exec` keeps the number of the process.
    let map = "/tmp/perf-$$.map";
    let run = "exec \"$1\" run --engine threads --perf-map --no-ideal --duration 5ms";
    let output = shell(&format!("echo {map}; ln -s \"$2\" {map} && {run}"), &[&target]);
    untouched(&output, 2);
    assert!(stderr(&output).contains("--perf-map: /tmp/perf-"), "{}", stderr(&output));
    fs::remove_file(stdout(&output).lines().next().unwrap()).unwrap();
    let output = shell(&format!("echo {map}; echo stale >{map} && {run}"), &[]);
    let map = PathBuf::from(stdout(&output).lines().next().unwrap());
    assert!([0, 7].contains(&code(&output)), "{}", stderr(&output));
    assert!(fs::read_to_string(&map).unwrap().lines().count() > 10, "one of an earlier process is replaced");
    fs::remove_file(map).unwrap();

    let bench = "exec \"$1\" bench \"$2\" --output \"$3\"";
    let partial = "mkdir \"$3\" && ln -s \"$4\" \"$3/manifest.json.partial-$$\"";
    let experiment = experiment(&directory);
    let output = shell(&format!("{partial} && {bench}"), &[&experiment, &results, &target]);
    untouched(&output, 1);
    fs::remove_dir_all(&results).unwrap();
    fs::create_dir(&results).unwrap();
    fs::write(&target, "").unwrap();
    symlink(&target, results.join("runs.jsonl")).unwrap();
    let message = refusal(&["bench", experiment.to_str().unwrap(), "--output", results.to_str().unwrap()]);
    assert!(message.contains("symbolic link"), "{message}");
    assert_eq!(fs::read_to_string(&target).unwrap(), "");
}

#[apply(trial)]
fn a_large_grid_is_refused_before_its_cells_are_made() {
    let directory = scratch("grid");
    let file = directory.join("grid.toml");
    let values = |unit: &str| (1..=20).map(|i| format!("\"{i}{unit}\"")).collect::<Vec<_>>().join(", ");
    let text = format!(
        "format = 1\nname = \"g\"\ntitle = \"G\"\n[grid]\nhold = [{us}]\nthink = [{us}]\nwindow = [{ms}]\nwarmup = [{ms}]\n\
         watchdog = [{s}]\nslice = [{ms}]\n[[arm]]\nname = \"a\"\nlock = \"tas\"\n",
        us = values("us"),
        ms = values("ms"),
        s = values("s"),
    );
    fs::write(&file, text).unwrap();
    // Without a cap this would take hundreds of GiB.
    let output = shell("ulimit -v 4000000 && exec \"$1\" bench \"$2\" --dry-run", &[&file]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let said = stderr(&output);
    assert!(
        said.contains("grid.toml:") && said.contains("64000000 cells, and an experiment has at most "),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
    let varied = |key: &str, unit: &str| {
        format!("{key}={}", (1..=60).map(|i| format!("{i}{unit}")).collect::<Vec<_>>().join(","))
    };
    let [hold, think, slice] = [varied("hold", "us"), varied("think", "us"), varied("slice", "ms")];
    let message = refusal(&["sweep", "--dry-run", "--vary", &hold, "--vary", &think, "--vary", &slice]);
    assert!(message.contains("--vary: 216000 cells, and an experiment has at most "), "{message}");
}
