//! `--engine sim`: machines by name and by file, records, experiments. None of it needs `/dev/kvm`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::support::{
    apply, assert_valid, code, command, eventually, haltkick, json, nulls_without_reason, refusal, scratch,
    stderr, stdout, trial,
};
use crate::tiny::records;

/// A run of a millisecond on four pCPUs.
const SHORT: [&str; 12] = [
    "run",
    "--engine",
    "sim",
    "--cpus",
    "0-3",
    "--ratio",
    "2",
    "--duration",
    "1ms",
    "--warmup",
    "1ms",
    "--no-ideal",
];

fn record(more: &[&str]) -> Value {
    let output = haltkick(&[&SHORT, more, &["--format", "json"]].concat());
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    serde_json::from_str(&stdout(&output)).expect("a record")
}

#[apply(trial)]
fn machines_are_listed_and_run_by_their_names() {
    let list = stdout(&haltkick(&["list", "machines"]));
    for name in ["ivybridge-ex-4s", "westmere-ex-8s", "numaconnect-512"] {
        assert!(list.lines().any(|line| line.starts_with(name) && line.contains("CPUs")), "{list}");
    }
    let listed: Vec<_> = list.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(listed.len() > 10, "{list}");
    for machine in &listed {
        // With slices far shorter than the window no holder is off for all of it.
        let record = record(&["--machine", machine, "--lock", "tas", "--slice", "50us"]);
        assert_eq!(record["settings"]["vcpus"], 8, "{machine}");
        assert!(record["figures"]["acquisitions"].as_u64() > Some(0), "{machine}");
    }
}

/// The text of the machine that a run was simulated on.
fn machine_file(record: &Value) -> &str {
    let hash = record["settings"]["machine_sha256"].as_str().expect("the file has a hash");
    record["files"][hash].as_str().expect("the file is in the record")
}

#[apply(trial)]
fn a_simulated_record_holds_its_machine_and_is_valid() {
    let record = record(&["--machine", "cascadelake-2s", "--lock", "qspinlock", "--pv", "on"]);
    assert_valid("run", &record);
    assert_eq!(record["settings"]["engine"], "sim");
    let machine = machine_file(&record);
    assert!(machine.starts_with("format = 1\nname = \"cascadelake-2s\""), "{machine}");
    assert_eq!((&record["trusted"], &record["figures"]["lost_updates"]), (&json!(true), &json!(0)));
    assert_eq!(record["noise"]["steal_share"], Value::Null);
    assert_eq!(nulls_without_reason(&record), Vec::<String>::new());
    let why = record["why"].as_object().expect("reasons").iter();
    let of_noise: Vec<_> =
        why.filter(|(key, _)| key.starts_with("noise")).map(|(_, reason)| reason).collect();
    assert!(of_noise.contains(&&json!("nothing else runs on a simulated machine")), "{of_noise:?}");
    // The file in the record is a machine of its own.
    let path = scratch("machine-of-a-record").join("again.toml");
    fs::write(&path, machine).unwrap();
    let again = self::record(&["--machine", path.to_str().unwrap(), "--lock", "qspinlock", "--pv", "on"]);
    assert_eq!(again["per_vcpu"], record["per_vcpu"]);
}

#[apply(trial)]
fn a_record_adds_up_what_each_node_did() {
    // The second CPU is the first of the second socket of 15 cores.
    let two_sockets = ["--machine", "ivybridge-ex-4s", "--cpus", "0,15", "--vcpus", "5", "--duration", "1ms"];
    let output =
        haltkick(&[&["run", "--engine", "sim", "--no-ideal", "--format", "json"], &two_sockets[..]].concat());
    let record: Value = serde_json::from_str(&stdout(&output)).expect("a record");
    let figures = &record["figures"];
    let of =
        |key: &str| [0, 1].map(|node| figures[format!("node_{node}_{key}")].as_u64().expect("two nodes"));
    assert_eq!(of("vcpus"), [3, 2]);
    assert_eq!(of("acquisitions").iter().sum::<u64>(), figures["acquisitions"], "{figures}");
    let of_vcpus = |first: usize| -> u64 {
        let vcpus = record["per_vcpu"].as_array().unwrap().iter().skip(first).step_by(2);
        vcpus.map(|vcpu| vcpu["run_ns"].as_u64().unwrap()).sum()
    };
    assert_eq!(of("run_ns"), [of_vcpus(0), of_vcpus(1)]);
    let shown = stdout(&haltkick(&[&["run", "--engine", "sim", "--no-ideal"], &two_sockets[..]].concat()));
    assert!(shown.contains("by node") && shown.contains("by 3 vCPUs, 1: "), "{shown}");
    let one = self::record(&["--machine", "ivybridge-ex-4s"]);
    assert!(one["figures"]["node_0_vcpus"].is_null() && one["why"]["node_*_vcpus"].is_string());
}

#[apply(trial)]
fn two_runs_with_one_seed_write_one_record() {
    let run = |seed: &str| {
        let mut record = record(&["--machine", "milan-1s", "--lock", "mcs", "--seed", seed]);
        let fields = record.as_object_mut().expect("a record");
        // Fields of this process on this host, rather than of the run.
        for field in ["host", "started", "run_id"] {
            fields.remove(field);
        }
        record
    };
    let first = run("7");
    assert_eq!(first, run("7"));
    assert_ne!(first["per_vcpu"], run("8")["per_vcpu"]);
}

#[apply(trial)]
fn a_simulated_profile_adds_up_to_the_time_of_its_pcpus() {
    let profiled = ["--machine", "skylake-8s", "--lock", "ticket", "--profile"];
    let record = record(&profiled);
    let profile = &record["profile"];
    assert_eq!(profile["period_ns"], 1);
    let number = |name: &str| profile[name].as_u64().expect("a number");
    let pcpus_ns = 4 * 1_000_000;
    // pCPUs may have come ahead of the others where the window opens and closes.
    let all_ns = number("samples") + number("nobody");
    assert!(all_ns.abs_diff(pcpus_ns) < 4 * 20_000, "{all_ns} ns");
    let table = stdout(&haltkick(&[&SHORT[..], &profiled].concat()));
    assert!(table.contains("that vCPUs had on simulated pCPUs"), "{table}");
}

#[apply(trial)]
fn an_unknown_missing_or_bad_machine_is_refused_with_a_hint() {
    let run = |more: &[&str]| refusal(&[&["run", "--engine", "sim"], more].concat());
    let unknown = run(&["--machine", "ivybridge-ex-4"]);
    assert!(
        unknown.contains("unknown machine 'ivybridge-ex-4': did you mean 'ivybridge-ex-4s'?"),
        "{unknown}"
    );
    assert!(
        run(&[]).contains("--machine: engine sim simulates a machine: name one of `haltkick list machines`")
    );
    let strange = refusal(&["run", "--engine", "threads", "--machine", "milan-1s"]);
    assert!(strange.contains("--machine: only engine sim simulates a machine: use engine sim"), "{strange}");
    let path = scratch("bad-machine").join("here.toml");
    let file = path.to_str().unwrap();
    assert!(run(&["--machine", file]).contains("No such file"));
    let record = self::record(&["--machine", "nehalem-2s"]);
    let good = machine_file(&record);
    for (from, to, complaint) in [
        ("socket-ns = {", "socket-ms = {", "unknown field `socket-ms`"),
        ("threads-per-core = 2", "threads-per-core = 2000", "must be 1 to 1024"),
        ("format = 1", "format = 2", "format 2 is unknown: this version reads format 1"),
    ] {
        assert!(good.contains(from), "{good}");
        fs::write(&path, good.replacen(from, to, 1)).unwrap();
        let message = run(&["--machine", file]);
        assert!(message.contains(file) && message.contains(complaint), "{message}");
    }
    fs::write(&path, good.replacen("socket-ns = {", "socket-ns = [", 1)).unwrap();
    let line = good.lines().position(|line| line.starts_with("socket-ns")).expect("it has one") + 1;
    let message = run(&["--machine", file]);
    assert!(message.contains(&format!("line {line}")), "line {line}: {message}");
}

#[apply(trial)]
fn what_no_simulated_machine_can_do_is_refused() {
    let run =
        |more: &[&str]| refusal(&[&["run", "--engine", "sim", "--machine", "nehalem-2s"], more].concat());
    let hosted = ["--sched", "host", "--host", "linux-7.3"];
    for (arguments, reason) in [
        (&["--sched", "host"][..], "--sched: a simulated machine needs a model of the host"),
        (&["--host", "linux-7.3"], "--host: the VMM schedules: use sched host"),
        (&["--sched", "host", "--host", "linux-7.4"], "did you mean 'linux-7.3'?"),
        (&["--sched", "host", "--host", "cfs-2015", "--deschedule", "holder"], "--deschedule: the model"),
        (
            &["--ple", "gap=256"],
            "--ple: only a model of a host has pause-loop exits: use sched host, and host",
        ),
        (&[&hosted[..], &["--ple", "gap=0"]].concat(), "gap: 0 is out of range"),
        (&[&hosted[..], &["--ple", "gap=256", "--pause-exits", "off"]].concat(), "--ple: pause-exits is off"),
        (&[&hosted[..], &["--ple", "gap=256"]].concat(), "--ple: Intel's pause loops exit in ring 0"),
        (&[&hosted[..], &["--ple", "target=holders"]].concat(), "did you mean 'holder'?"),
        (&[&hosted[..], &["--from", "1ms"]].concat(), "--from: only the VMM's own scheduler"),
        (&["--from", "1s"], "--from: 1s is beyond the window"),
        (&["--from", "0s/1ms", "--min-sections", "9"], "--from: the window cannot grow"),
        (&["--from", "2ms/1ms"], "--from: the guest goes at 1ms and comes at 2ms"),
        (&["--pv-backend", "kvm"], "put to sleep by the VMM"),
        (&["--cpus", "0-16"], "CPU 16"),
    ] {
        let message = run(arguments);
        assert!(message.contains(reason), "{arguments:?}: {message}");
    }
}

#[apply(trial)]
fn pause_loops_exit_on_a_modelled_host_by_its_limits() {
    // Its PAUSE takes 109 ticks of the counter.
    let waits = ["--machine", "cascadelake-2s", "--lock", "ticket", "--hold", "20us", "--think", "1us"];
    let run = |more: &[&str]| {
        let ring = if more.contains(&"--ring") { &[][..] } else { &["--ring", "0"] };
        let record = record(&[&waits[..], &["--sched", "host", "--host", "linux-7.3"], ring, more].concat());
        (record["vm_exits"]["pause_loop"].as_u64().expect("it is counted"), record["settings"]["ple"].clone())
    };
    let (exits, limits) = run(&[]);
    assert!(exits > 0);
    assert_eq!(limits, "gap=128,window=4096");
    assert_eq!(run(&["--ple", "gap=100"]), (0, json!("gap=100,window=4096")));
    for none in [["--pause-exits", "off"], ["--ring", "3"]] {
        assert_eq!(run(&none), (0, Value::Null), "{none:?}");
    }
    let (longer, _) = run(&["--ple", "window=16384"]);
    assert!(longer < exits, "{longer} exits with four times the window, {exits} with one");
}

#[apply(trial)]
fn a_lock_does_not_hang_while_other_guests_have_their_turns() {
    // Each guest has a pCPU for each vCPU, but not for itself: who was let in waits for three turns.
    let guests =
        "--cpus 0-1 --guests 4 --vcpus 2 --lock ticket --slice 20ms --hold 1us --think 0s --drain on";
    let times =
        "run --engine sim --machine nehalem-2s --duration 200ms --warmup 10ms --watchdog 10s --no-ideal";
    let output = haltkick(&times.split(' ').chain(guests.split(' ')).collect::<Vec<_>>());
    assert!([0, 7].contains(&code(&output)), "{}", stderr(&output));
}

#[apply(trial)]
fn two_guests_on_one_machine_leave_a_record_each() {
    let pair = ["--machine", "nehalem-2s", "--vm", "name=a,lock=tas", "--vm", "name=b,lock=qspinlock,pv=on"];
    let run = || {
        let output = haltkick(&[&SHORT, &pair[..], &["--format", "json"]].concat());
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        let lines = stdout(&output);
        lines.lines().map(|line| serde_json::from_str(line).expect("a record")).collect::<Vec<Value>>()
    };
    let records = run();
    assert_eq!(records.len(), 2);
    for (record, (name, lock)) in records.iter().zip([("a", "tas"), ("b", "qspinlock")]) {
        assert_valid("run", record);
        let config = &record["settings"];
        assert_eq!((&config["guest"], &config["lock"]), (&json!(name), &json!(lock)));
        assert!(config["machine"].as_str().is_some_and(|machine| machine.contains("nehalem-2s")), "{config}");
        assert_eq!(
            (&record["trusted"], &record["figures"]["lost_updates"]),
            (&json!(true), &json!(0)),
            "{name}"
        );
        assert_eq!(nulls_without_reason(record), Vec::<String>::new());
    }
    let again = run();
    assert!(records.iter().zip(&again).all(|(one, other)| one["per_vcpu"] == other["per_vcpu"]));
}

const TWICE: &str = r#"
format = 1
name = "twice"
title = "A lock and itself"
blocks = 3
[settings]
engine = "sim"
machine = "nehalem-2s"
cpus = "0-3"
ratio = 2
window = "1ms"
warmup = "1ms"
lock = "qspinlock"
pv = "on"
[[arm]]
name = "a"
[[arm]]
name = "b"
[[compare]]
name = "b/a"
arm = "b"
baseline = "a"
"#;

/// Runs that experiment into a directory. What is in the way of a verdict from three blocks is no matter here.
fn twice(name: &str, more: &[&str]) -> PathBuf {
    let (experiment, results) = twice_in(name);
    bench(&[&[experiment.as_str(), "--output", results.to_str().unwrap()], more].concat());
    results
}

/// That experiment's file, and a place for its results.
fn twice_in(name: &str) -> (String, PathBuf) {
    let path = scratch(name);
    let experiment = path.join("twice.toml");
    fs::write(&experiment, TWICE).unwrap();
    (experiment.display().to_string(), path.join("results"))
}

fn bench(arguments: &[&str]) {
    let output = haltkick(&[&["bench"], arguments].concat());
    assert!([0, 7].contains(&code(&output)), "{arguments:?}: {}", stderr(&output));
}

/// Findings of the runs, by cell and block.
fn findings(results: &Path) -> Vec<(String, u64, Value)> {
    let mut findings: Vec<_> = records(results)
        .into_iter()
        .map(|record| {
            let place = &record["place"];
            let cell = place["cell_id"].as_str().expect("a cell").to_owned();
            (cell, place["block"].as_u64().expect("a block"), record["per_vcpu"].clone())
        })
        .collect();
    findings.sort_by(|one, other| (&one.0, one.1).cmp(&(&other.0, other.1)));
    // A block that is completed runs its cell without a lock once more, and finds the same.
    findings.dedup();
    findings
}

/// On this machine a guest's first vCPU starts the others at an exit at which its pCPU is to change vCPUs.
#[apply(trial)]
fn a_modelled_host_loses_no_vcpu_that_starts_as_another_yields() {
    let machine =
        ["--engine", "sim", "--machine", "cascadelake-2s~10/12", "--cpus", "0-31", "--sched", "host"];
    let guests = ["--host", "linux-7.3", "--guests", "4", "--ratio", "1", "--lock", "virt-tas", "--no-ideal"];
    let times = ["--duration", "1ms", "--warmup", "1ms", "--watchdog", "20ms"];
    let output = haltkick(&[&["run"], &machine[..], &guests, &times].concat());
    assert_eq!(code(&output), 0, "{}", stderr(&output));
}

#[apply(trial)]
fn an_experiment_on_a_simulated_machine_resumes_where_it_ended() {
    let results = twice("resumed-simulation", &[]);
    let whole = findings(&results);
    assert!(whole.len() >= 6, "{} records", whole.len());
    // The last four records are lost.
    let runs = results.join("runs.jsonl");
    let text = fs::read_to_string(&runs).unwrap();
    let lines: Vec<_> = text.lines().collect();
    fs::write(&runs, lines[..lines.len() - 4].join("\n") + "\n").unwrap();
    bench(&["--resume", results.to_str().unwrap()]);
    assert_eq!(findings(&results), whole, "what is run again is what it was");
}

#[apply(trial)]
fn an_experiment_does_not_go_on_with_a_changed_machine_file() {
    let (experiment, results) = twice_in("changed-machine");
    let (results, machine) = (results.display().to_string(), format!("{}.machine.toml", results.display()));
    let record = record(&["--machine", "nehalem-2s"]);
    let text = machine_file(&record);
    fs::write(&machine, text).unwrap();
    fs::write(&experiment, TWICE.replace("\"nehalem-2s\"", &format!("\"{machine}\""))).unwrap();
    bench(&[&experiment, "--output", &results]);
    let begun = format!("{results}/runs.jsonl");
    let records = fs::read_to_string(&begun).unwrap();
    fs::write(&begun, records.lines().take(4).map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    let changed = text.replace("exit-ns = { value = 800,", "exit-ns = { value = 900,");
    assert_ne!(changed, text);
    fs::write(&machine, changed).unwrap();
    let refused = refusal(&["bench", "--resume", &results]);
    assert!(refused.contains("was begun with another machine in cell "), "{refused}");
    assert_eq!(fs::read_to_string(&begun).unwrap().lines().count(), 4, "nothing was added");
    fs::write(&machine, text).unwrap();
    bench(&["--resume", &results]);
}

#[apply(trial)]
fn an_arm_differs_from_itself_by_nothing() {
    let results = twice("simulated-pair", &[]);
    let summary = json(&results.join("summary.json"));
    let comparison = &summary["comparisons"][0];
    assert_eq!(comparison["ratio"]["hodges_lehmann"], 1.0, "{comparison}");
    assert!(comparison["per_block"].as_array().unwrap().iter().all(|ratio| *ratio == 1.0), "{comparison}");
    let acquisitions = |record: &Value| record["figures"]["acquisitions"].clone();
    let all = records(&results);
    let blocks: std::collections::BTreeSet<_> =
        all.iter().map(|record| acquisitions(record).to_string()).collect();
    assert!(blocks.len() > 1, "every block has another seed: {blocks:?}");
}

/// The records as they were written, without what tells a process and a moment from others.
fn written(results: &Path) -> Vec<Value> {
    let mut records = records(results);
    for record in &mut records {
        for field in ["run_id", "started"] {
            record.as_object_mut().expect("a record").remove(field).expect("every record has it");
        }
    }
    records
}

#[apply(trial)]
fn any_number_of_cells_at_a_time_write_the_same_records() {
    let in_turn = written(&twice("one-at-a-time", &["--jobs", "1"]));
    assert_eq!(in_turn.len(), 3 * 3);
    for jobs in ["2", "7"] {
        assert_eq!(written(&twice(&format!("{jobs}-at-a-time"), &["--jobs", jobs])), in_turn, "{jobs}");
    }
}

#[apply(trial)]
fn only_simulated_cells_run_at_the_same_time() {
    let (experiment, results) = twice_in("measured-jobs");
    let text = fs::read_to_string(&experiment).unwrap();
    let measured =
        text.replace("engine = \"sim\"\nmachine = \"nehalem-2s\"\ncpus = \"0-3\"", "engine = \"threads\"");
    fs::write(&experiment, measured).unwrap();
    let output = results.to_str().unwrap();
    let message = refusal(&["bench", &experiment, "--jobs", "2", "--output", output]);
    assert!(message.contains("--jobs: only simulated cells run at the same time"), "{message}");
    assert!(!results.exists(), "nothing was begun");
    refusal(&["bench", &experiment, "--jobs", "0", "--output", output]);
}

#[apply(trial)]
fn an_interrupted_simulation_keeps_the_records_that_come_first() {
    let whole = written(&twice("never-interrupted", &["--jobs", "1"]));
    let (experiment, results) = twice_in("interrupted-simulation");
    let directory = results.to_str().unwrap();
    let child = command(&["bench", &experiment, "--blocks", "1000", "--jobs", "3", "--output", directory])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("haltkick can be started");
    let lines = || fs::read_to_string(results.join("runs.jsonl")).unwrap_or_default().lines().count();
    eventually("some records", || (lines() >= 2).then_some(()));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("the child is ours");
    let output = child.wait_with_output().unwrap();
    assert_eq!(code(&output), 130, "{}", stderr(&output));
    let kept = written(&results);
    assert!((2..3000).contains(&kept.len()), "{} records", kept.len());
    for (index, record) in kept.iter().enumerate() {
        assert_eq!(record["place"]["order_index"], index, "none is left out");
    }
    let common = kept.len().min(whole.len());
    assert_eq!(kept[..common], whole[..common]);
}
