//! Whole experiments on /dev/kvm: files, order, interruption, resumption, spreading and merging, comparing.
//!
//! Without a usable /dev/kvm every test here says so and is skipped.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const TINY: &str = r#"
format = 1
name = "tiny"
title = "A tiny experiment"
blocks = 3
[settings]
window = "10ms"
warmup = "1ms"
watchdog = "20s"
[grid]
ratio = [1, 2]
[[arm]]
name = "tas"
lock = "tas"
[[arm]]
name = "pv"
lock = "qspinlock"
pv = "on"
[[compare]]
name = "pv/tas"
arm = "pv"
baseline = "tas"
[control]
arm = "pv"
ratio = 2
"#;
/// Cells of one block: at each ratio a lock-free one and two arms, and the second half of the A/A pair.
const CELLS_PER_BLOCK: usize = 7;

/// Exit codes of a run that came to its end; 7 because the machine that runs tests need not be quiet.
const FINISHED: [i32; 2] = [0, 7];

fn usable_kvm() -> bool {
    let usable = fs::OpenOptions::new().read(true).write(true).open("/dev/kvm");
    if let Err(error) = &usable {
        eprintln!("skipped: /dev/kvm: {error}");
    }
    usable.is_ok()
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_haltkick"));
    command.args(arguments);
    command
}

fn haltkick(arguments: &[&str]) -> Output {
    command(arguments).output().expect("haltkick can be started")
}

fn finished(arguments: &[&str]) -> Output {
    let output = haltkick(arguments);
    let code = output.status.code().expect("haltkick ends by itself");
    assert!(
        FINISHED.contains(&code),
        "{arguments:?} ended with {code}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// A directory of this test's own with the tiny experiment in it, and a place for results.
fn scratch(name: &str) -> (String, PathBuf) {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).expect("a scratch directory");
    let experiment = path.join("tiny.toml");
    fs::write(&experiment, TINY).expect("a writable scratch directory");
    (experiment.display().to_string(), path)
}

fn run_tiny(name: &str) -> PathBuf {
    let (experiment, path) = scratch(name);
    let results = path.join("results");
    finished(&["bench", &experiment, "--output", results.to_str().unwrap()]);
    results
}

fn records(results: &Path) -> Vec<Value> {
    let text = fs::read_to_string(results.join("runs.jsonl")).expect("runs.jsonl is there");
    text.lines().map(|line| serde_json::from_str(line).expect("every line is a record")).collect()
}

/// Cell and block of each record, as often as they occur.
fn runs(results: &Path) -> BTreeMap<(String, u64), usize> {
    let mut runs = BTreeMap::new();
    for record in records(results) {
        let place = &record["place"];
        let cell = place["cell_id"].as_str().unwrap().to_owned();
        *runs.entry((cell, place["block"].as_u64().unwrap())).or_default() += 1;
    }
    runs
}

fn schema(of: &str) -> Value {
    serde_json::from_slice(&haltkick(&["schema", of]).stdout).expect("a schema is JSON")
}

fn assert_valid(of: &str, value: &Value) {
    let validator = jsonschema::validator_for(&schema(of)).expect("a schema is a schema");
    let errors: Vec<String> =
        validator.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(errors.is_empty(), "{of}: {errors:#?}");
}

#[test]
fn a_guest_that_dies_is_named_and_leaves_the_record_of_the_other() {
    if !usable_kvm() {
        return;
    }
    let arguments =
        ["run", "--vcpus=4", "--duration=50ms", "--format=json", "--vm=name=doomed,workload=selftest-panic"];
    let output = haltkick(&[&arguments[..], &["--vm=name=other,lock=tas"]].concat());
    assert_eq!(output.status.code(), Some(5));
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(words.contains("haltkick: guest `doomed`: guest panicked"), "{words}");
    let record: Value = serde_json::from_slice(&output.stdout).expect("one record");
    assert_valid("run", &record);
    assert_eq!((&record["config"]["guest"], &record["trusted"]), (&"other".into(), &false.into()));
    assert!(record["warnings"].to_string().contains("guest doomed died"), "{}", record["warnings"]);
}

#[test]
fn guests_of_an_experiment_have_a_row_each_and_one_run_id() {
    if !usable_kvm() {
        return;
    }
    let (experiment, path) = scratch("beside");
    let beside = TINY.replace("lock = \"tas\"", "vm = \"lock=tas; name=second,lock=ticket\"");
    let beside = beside.replace("baseline = \"tas\"", "baseline = \"tas / second\"");
    fs::write(&experiment, beside.replace("blocks = 3", "blocks = 1")).unwrap();
    let results = path.join("results");
    finished(&["bench", &experiment, "--output", results.to_str().unwrap()]);
    let records = records(&results);
    let of = |arm: &str| -> Vec<&Value> {
        records
            .iter()
            .filter(|record| record["place"]["arm"] == arm)
            .map(|record| &record["run_id"])
            .collect()
    };
    assert_eq!((of("tas").len(), of("tas")), (2, of("tas / second")));
    let summary = json(&results.join("summary.json"));
    assert!(summary["rows"].as_array().unwrap().iter().any(|row| row["arm"] == "tas / second"));
    assert_eq!(summary["comparisons"].as_array().unwrap().len(), 2, "{}", summary["comparisons"]);
}

#[test]
fn published_figures_stand_beside_ours() {
    if !usable_kvm() {
        return;
    }
    let (_, path) = scratch("reproduce");
    let results = path.join("results");
    let arguments = [
        "reproduce",
        "qspinlock",
        "--blocks=2",
        "--ratios=1,4",
        "--window=20ms",
        "--set=warmup=5ms",
        "--set=work=5ms",
        "--set=think=5us",
    ];
    let output = ["--format=json", "--output", results.to_str().unwrap()];
    let arguments = [&arguments[..], &output].concat();
    let reproduction: Value = serde_json::from_slice(&finished(&arguments).stdout).expect("JSON");
    assert_valid("reproduction", &reproduction);
    assert_eq!(reproduction, json(&results.join("reproduction.json")));
    let row = &reproduction["rows"][0];
    assert!(row["published"].as_f64().unwrap() > 2.0, "{row}");
    let summary = json(&results.join("qspinlock/summary.json"));
    let comparison = |sched: &str, ratio: &str| {
        let mut comparisons = summary["comparisons"].as_array().unwrap().iter();
        let is_it = |it: &&Value| {
            let point = &it["setting"];
            it["name"] == "PV/PV ticket" && point["sched"] == sched && point["ratio"] == ratio
        };
        comparisons.find(is_it).expect("the comparison was made")["ratio"].clone()
    };
    assert_eq!((&row["ours"], &row["control"]), (&comparison("host", "4"), &comparison("vmm", "1")));
    assert_eq!(row["setting"]["ratio"], "4", "{row}");
    // The same again: the records are there, so that nothing needs to be run.
    let runs = runs(&results.join("qspinlock"));
    finished(&arguments);
    assert_eq!(self::runs(&results.join("qspinlock")), runs);
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).expect("the file is there")).expect("the file is JSON")
}

/// Paths of nulls for which `why` has nothing, neither for them nor for what they are part of.
fn nulls_without_reason(record: &Value) -> Vec<String> {
    fn collect(value: &Value, path: &str, nulls: &mut BTreeSet<String>) {
        match value {
            Value::Null => {
                nulls.insert(path.to_owned());
            }
            Value::Array(items) => items.iter().for_each(|item| collect(item, path, nulls)),
            Value::Object(fields) => fields.iter().for_each(|(key, value)| {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                collect(value, &path, nulls);
            }),
            _ => {}
        }
    }
    let mut nulls = BTreeSet::new();
    collect(record, "", &mut nulls);
    let explained = |path: &String| {
        let group = path.split('.').next().unwrap_or_default();
        record["why"].get(path).or(record["why"].get(group)).is_some_and(|why| why.as_str() != Some(""))
    };
    nulls.into_iter().filter(|path| path != "place" && !explained(path)).collect()
}

#[test]
fn an_experiment_leaves_a_complete_directory_that_keeps_to_the_schemas() {
    if !usable_kvm() {
        return;
    }
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
        "waits.svg",
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
}

#[test]
fn a_record_without_a_value_says_why() {
    if !usable_kvm() {
        return;
    }
    let output = finished(&[
        "run",
        "--lock",
        "none",
        "--vcpus",
        "2",
        "--duration",
        "5ms",
        "--sched",
        "host",
        "--format",
        "json",
    ]);
    let record: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_valid("run", &record);
    assert_eq!(nulls_without_reason(&record), [""; 0], "{}", record["why"]);
    for (path, pointer) in
        [("config.slice_ns", "/config/slice_ns"), ("totals.lost_updates", "/totals/lost_updates")]
    {
        assert_eq!(record.pointer(pointer), Some(&Value::Null), "{path}");
        assert!(record["why"][path].as_str().is_some_and(|why| !why.is_empty()), "{path}: {}", record["why"]);
    }
}

#[test]
fn a_guest_that_fails_ends_the_run_with_its_exit_code_a_story_and_a_record() {
    if !usable_kvm() {
        return;
    }
    for (workload, code, expected, cause, at_fault) in [
        ("selftest-panic", 5, "guest panicked on vCPU 0", "panic", Some(0)),
        ("selftest-exception", 5, "guest exception on vCPU 3: #PF", "exception", Some(3)),
        ("selftest-exclusion", 5, "mutual exclusion violated", "exclusion-broken", None),
        ("selftest-hang", 6, "no progress", "holder-runs", Some(0)),
    ] {
        let output = haltkick(&[
            "run",
            "--vcpus",
            "4",
            "--duration",
            "5s",
            "--watchdog",
            "500ms",
            "--lock",
            "tas",
            "--workload",
            workload,
            "--format",
            "json",
        ]);
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{workload}: {message}");
        let last = message.lines().last().unwrap();
        assert!(last.starts_with("haltkick: ") && last.contains(expected), "{workload}: {message}");
        let record: Value = serde_json::from_slice(&output.stdout).expect("a record of the failure");
        assert_valid("failure", &record);
        let verdict = &record["explanation"]["verdict"];
        assert_eq!(
            (&verdict["cause"], verdict["vcpu"].as_u64()),
            (&Value::from(cause), at_fault),
            "{workload}"
        );
        assert!(message.contains(verdict["text"].as_str().unwrap()), "{workload}: {message}");
        assert_eq!(record["exit_code"], code, "{workload}");
        let console = record["console"].as_str().unwrap();
        assert!(message.contains(console.trim_end()), "{workload}: {console}");
    }
}

#[test]
fn the_same_seed_gives_the_same_order_and_another_seed_another() {
    if !usable_kvm() {
        return;
    }
    let (experiment, _) = scratch("order");
    let list = |seed: &str| {
        String::from_utf8(haltkick(&["bench", &experiment, "--list-cells", "--seed", seed]).stdout).unwrap()
    };
    let without_seed = |text: String| {
        text.lines().map(|line| line.split("--cell=").nth(1).unwrap().to_owned()).collect::<Vec<_>>()
    };
    let first = without_seed(list("1"));
    assert_eq!(first.len(), 3 * CELLS_PER_BLOCK);
    assert_eq!(first, without_seed(list("1")));
    assert_ne!(first, without_seed(list("2")));
    let one_block = |i: usize| {
        first[i * CELLS_PER_BLOCK..(i + 1) * CELLS_PER_BLOCK]
            .iter()
            .map(|id| id.split("_block").next().unwrap())
            .collect::<Vec<_>>()
    };
    assert!(one_block(0) != one_block(1) || one_block(1) != one_block(2), "every block has the same order");
}

/// Waits until `runs.jsonl` has as many lines, at most a minute.
fn wait_for_records(results: &Path, lines: usize) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let count = || fs::read_to_string(results.join("runs.jsonl")).map_or(0, |text| text.lines().count());
    while count() < lines {
        assert!(Instant::now() < deadline, "no {lines} records within a minute");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn signal(child: &Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, signal).expect("the child is ours");
}

#[test]
fn ctrl_c_keeps_what_was_measured_and_shows_its_table() {
    if !usable_kvm() {
        return;
    }
    let (experiment, path) = scratch("ctrl-c");
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
    assert!(table.contains("qspinlock") || table.contains("pv"), "{table}");
    let kept = records(&results).len();
    assert!(kept >= CELLS_PER_BLOCK + 3);
    assert_eq!(json(&results.join("summary.json"))["runs"], kept);
}

#[test]
fn an_experiment_killed_again_and_again_is_completed_without_loss() {
    if !usable_kvm() {
        return;
    }
    let (experiment, path) = scratch("killed");
    let results = path.join("results");
    let directory = results.to_str().unwrap().to_owned();
    let mut seen = BTreeSet::new();
    for kill in 0..8u64 {
        let mut begin = match kill {
            0 => command(&["bench", &experiment, "--output", &directory]),
            _ => command(&["bench", "--resume", &directory]),
        };
        let mut child = begin.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        if kill == 0 {
            wait_for_records(&results, 1);
        }
        std::thread::sleep(Duration::from_millis(kill * 29 % 97));
        child.kill().unwrap();
        child.wait().unwrap();
        let now: BTreeSet<_> = runs(&results).into_keys().collect();
        assert!(now.is_superset(&seen), "records were lost");
        seen = now;
    }
    finished(&["bench", "--resume", &directory]);
    let complete = runs(&results);
    assert_eq!(complete.len(), 3 * CELLS_PER_BLOCK);
    let repeated: Vec<_> =
        complete.iter().filter(|(cell, count)| **count > 1 && !cell.0.starts_with("lock-free")).collect();
    assert!(repeated.is_empty(), "{repeated:?}");
}

#[test]
fn half_a_line_at_the_end_is_cut_off_and_its_cell_run_again() {
    if !usable_kvm() {
        return;
    }
    let results = run_tiny("half-a-line");
    let path = results.join("runs.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, &text[..text.len() - 100]).unwrap();
    finished(&["bench", "--resume", results.to_str().unwrap()]);
    assert_eq!(runs(&results).len(), 3 * CELLS_PER_BLOCK);
    assert!(records(&results).len() <= 3 * CELLS_PER_BLOCK + 1);
}

#[test]
fn cells_run_one_by_one_merge_into_the_same_experiment() {
    if !usable_kvm() {
        return;
    }
    let (experiment, path) = scratch("spread");
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
            let status = Command::new("sh").args(["-c", &line]).status().expect("sh can be started");
            assert!(FINISHED.contains(&status.code().unwrap()), "{line}");
        }
        parts.push(directory.display().to_string());
    }
    finished(&["merge", &parts[0], &parts[1], "--output", whole.to_str().unwrap()]);
    assert_eq!(runs(&whole).len(), CELLS_PER_BLOCK);
    assert_eq!(json(&whole.join("manifest.json"))["outline"]["blocks"], 1);
}

#[test]
fn merging_two_whole_runs_doubles_the_blocks() {
    if !usable_kvm() {
        return;
    }
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
}

#[test]
fn compare_finds_a_loss_within_and_between_directories() {
    if !usable_kvm() {
        return;
    }
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
}

#[test]
fn broken_old_and_foreign_records_are_refused_with_file_and_line() {
    if !usable_kvm() {
        return;
    }
    let results = run_tiny("broken");
    let path = results.join("runs.jsonl");
    let good = fs::read_to_string(&path).unwrap();
    for (replacement, expected) in [
        ("garbage".to_owned(), "no JSON"),
        (
            "{\"schema\":\"somebody.else\",\"schema_version\":1}".to_owned(),
            "schema is 'somebody.else', not 'haltkick.run'",
        ),
        (
            good.lines().nth(1).unwrap().replace("\"schema_version\":1", "\"schema_version\":9"),
            "a record of version 9, where this haltkick reads version 1",
        ),
        ("{\"schema\":\"haltkick.run\",\"schema_version\":1}".to_owned(), "a broken record"),
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
}

#[test]
fn directories_of_different_experiments_are_not_compared_or_merged() {
    if !usable_kvm() {
        return;
    }
    let tiny = run_tiny("different");
    let (experiment, path) = scratch("different-other");
    fs::write(&experiment, TINY.replace("\"tiny\"", "\"other\"")).unwrap();
    let other = path.join("results").display().to_string();
    finished(&["bench", &experiment, "--blocks", "1", "--output", &other]);
    for arguments in [
        vec!["compare", tiny.to_str().unwrap(), &other],
        vec!["merge", tiny.to_str().unwrap(), &other, "--output", "/nowhere"],
    ] {
        let output = haltkick(&arguments);
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.contains("experiment") && message.lines().count() == 1, "{message}");
    }
}

#[test]
fn the_report_needs_no_network_and_renders_without_errors() {
    if !usable_kvm() {
        return;
    }
    let results = run_tiny("report");
    let report = results.join("report.html");
    let html = fs::read_to_string(&report).unwrap();
    assert!(html.len() < 3 << 20, "{} bytes", html.len());
    let addresses: Vec<&str> =
        html.match_indices("http").map(|(at, _)| &html[at..(at + 26).min(html.len())]).collect();
    assert!(addresses.iter().all(|address| *address == "http://www.w3.org/2000/svg"), "{addresses:?}");
    assert!(!html.contains("<script") && !html.contains("@import") && !html.contains("src="));
    let rendered = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"])
        .arg(format!("file://{}", report.display()))
        .output();
    let Ok(rendered) = rendered else {
        eprintln!("skipped: no chromium to render the report with (apt-get install chromium)");
        return;
    };
    let dom = String::from_utf8_lossy(&rendered.stdout);
    assert_eq!(dom.matches("<section").count(), html.matches("<section").count());
    assert_eq!(dom.matches("<svg").count(), html.matches("<svg").count());
    let log = String::from_utf8_lossy(&rendered.stderr);
    let complaints: Vec<&str> = log.lines().filter(|line| line.contains("CONSOLE")).collect();
    assert!(complaints.is_empty(), "{complaints:#?}");
}

#[test]
fn precision_and_time_decide_the_number_of_blocks() {
    if !usable_kvm() {
        return;
    }
    let (experiment, path) = scratch("stopping");
    let blocks = |results: &Path| runs(results).into_keys().map(|(_, block)| block + 1).max().unwrap();
    let patient = path.join("patient");
    finished(&["bench", &experiment, "--target-precision", "999%", "--output", patient.to_str().unwrap()]);
    assert!((6..=60).contains(&blocks(&patient)), "{} blocks", blocks(&patient));
    let hurried = path.join("hurried");
    finished(&["bench", &experiment, "--max-time", "1ms", "--output", hurried.to_str().unwrap()]);
    assert_eq!(blocks(&hurried), 1);
}

#[test]
fn blocks_beyond_the_planned_ones_hold_only_what_is_not_known_well_enough() {
    if !usable_kvm() {
        return;
    }
    let (experiment, path) = scratch("vague");
    let vague = TINY.replace("blocks = 3", "blocks = 1\ntarget-precision = \"0.001%\"");
    fs::write(&experiment, vague).unwrap();
    let results = path.join("results");
    finished(&["bench", &experiment, "--output", results.to_str().unwrap()]);
    let whole = runs(&results);
    let cells = |block: u64| whole.keys().filter(|(_, of)| *of == block).count();
    assert!((0..6).all(|block| cells(block) == CELLS_PER_BLOCK), "an interval needs six blocks: {whole:?}");
    assert!((6..20).all(|block| cells(block) == CELLS_PER_BLOCK - 1), "all but the A/A pair: {whole:?}");
    assert_eq!(cells(20), 0, "a target out of reach ends at twenty times the plan");

    let file = results.join("runs.jsonl");
    let text = fs::read_to_string(&file).unwrap();
    let kept: Vec<&str> = text.lines().take(6 * CELLS_PER_BLOCK + 8).collect();
    fs::write(&file, kept.join("\n") + "\n").unwrap();
    finished(&["bench", "--resume", results.to_str().unwrap()]);
    let resumed = runs(&results);
    assert_eq!(resumed.keys().collect::<Vec<_>>(), whole.keys().collect::<Vec<_>>());

    let counted = path.join("counted");
    finished(&["bench", &experiment, "--blocks", "1", "--output", counted.to_str().unwrap()]);
    assert_eq!(runs(&counted).len(), CELLS_PER_BLOCK, "who asks for one block gets one");
}

#[test]
fn the_doctor_answers_in_json_that_keeps_to_its_schema() {
    let output = haltkick(&["doctor", "--json"]);
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_valid("doctor", &value);
    let findings = value["findings"].as_array().unwrap();
    assert!(findings.len() >= 15, "{} findings", findings.len());
    for finding in findings {
        assert!(!finding["why"].as_str().unwrap().is_empty(), "{finding}");
        assert!(finding["value"].is_string() || finding["level"] == "unknown", "{finding}");
    }
}
