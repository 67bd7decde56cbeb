//! `--engine sim`: machines by name and by file, records, experiments, recorded schedules. None of it needs `/dev/kvm`.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::many::nodes_add_up;
use crate::objects::TAS;
use crate::results::wait_for_records;
use crate::support::*;

/// A run of a millisecond on four pCPUs.
const SHORT: &str = "run --engine sim --cpus 0-3 --ratio 2 --duration 1ms --warmup 1ms --no-ideal";

fn record(more: &str) -> Value {
    ends(0, &format!("{SHORT} {more} --format json")).json()
}

#[apply(trial)]
fn machines_are_listed_and_run_by_their_names() {
    let list = haltkick("list machines").out;
    for name in ["ivybridge-ex-4s", "westmere-ex-8s", "numaconnect-512"] {
        assert!(list.lines().any(|line| line.starts_with(name) && line.contains("CPUs")), "{list}");
    }
    let listed: Vec<_> = list.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(listed.len() > 10, "{list}");
    for machine in &listed {
        // With slices far shorter than the window no holder is off for all of it.
        let record = record(&format!("--machine {machine} --lock tas --slice 50us"));
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
fn simulated_records_of_two_guests_hold_their_machine_and_are_valid() {
    let run = |machine: &str| {
        let guests = "--vm name=a,lock=tas --vm name=b,lock=qspinlock,pv=on";
        ends(0, &format!("{SHORT} {guests} --machine {machine} --format json")).jsons()
    };
    let records = run("nehalem-2s");
    assert_eq!((records.len(), &records[0]["run_id"]), (2, &records[1]["run_id"]));
    for (record, guest) in records.iter().zip([("a", "tas"), ("b", "qspinlock")]) {
        assert_complete(record);
        let of_guest = ["guest", "lock", "engine"].map(|name| record["settings"][name].as_str());
        assert_eq!(of_guest, [guest.0, guest.1, "sim"].map(Some));
        assert!(record["settings"]["machine"].to_string().contains("nehalem-2s"), "{}", record["settings"]);
        assert_eq!((&record["trusted"], &record["figures"]["lost_updates"]), (&json!(true), &json!(0)));
        assert_eq!(record["noise"]["steal_share"], Value::Null);
        let mut why = record["why"].as_object().expect("reasons").iter();
        let is_told = |(key, reason): (&String, &Value)| {
            key.starts_with("noise") && reason == "nothing else runs on a simulated machine"
        };
        assert!(why.any(is_told), "{:#}", record["why"]);
    }
    let machine = machine_file(&records[0]);
    assert!(machine.starts_with("format = 1\nname = \"nehalem-2s\""), "{machine}");
    // The file in the record is a machine of its own.
    let path = written(format!("{}/again.toml", scratch("machine-of-a-record")), machine);
    assert_eq!(run(&path)[1]["per_vcpu"], records[1]["per_vcpu"]);
}

#[apply(trial)]
fn each_vcpu_leaves_after_its_own_operations() {
    let run =
        "run --engine sim --machine nehalem-2s --cpus 0-2 --vcpus 3 --no-ideal --think 100ns --each 100";
    // Sections under one lock take as long as it is held, one after the other; readers are inside together.
    for (work, section_ns) in [
        ("line-lock --lock ticket --hold 0ns", 0.0..400.0),
        ("line-lock --lock ticket --hold 1us", 1000.0..1400.0),
        ("line-lock-read --lock rwsem --hold 1us", 0.0..800.0),
        ("line-add --lock none", 0.0..100.0),
    ] {
        let record = ends(0, &format!("{run} --format json --workload {work}")).json();
        let vcpus = record["per_vcpu"].as_array().unwrap();
        assert!(vcpus.iter().all(|vcpu| vcpu["acquisitions"] == 100), "{work}: {vcpus:?}");
        assert_eq!(record["settings"]["work_sections"], 300);
        let took_ns = record["figures"]["completion_ns"].as_f64().expect("it is measured") / 300.0;
        assert!(section_ns.contains(&took_ns), "{work}: {took_ns} ns");
    }
}

#[apply(trial)]
fn a_record_adds_up_what_each_node_did() {
    // The second CPU is the first of the second socket of 15 cores.
    let run = "run --engine sim --no-ideal --machine ivybridge-ex-4s --cpus 0,15 --vcpus 5 --duration 1ms";
    let record = haltkick(&format!("{run} --format json")).json();
    nodes_add_up(&record);
    let vcpus = ["node_0_vcpus", "node_1_vcpus"].map(|figure| &record["figures"][figure]);
    assert_eq!(vcpus, [3, 2], "{}", record["figures"]);
    haltkick(run).prints(&["by node", "by 3 vCPUs, 1: "]);
    let one = self::record("--machine ivybridge-ex-4s");
    assert!(one["figures"]["node_0_vcpus"].is_null() && one["why"]["node_*_vcpus"].is_string());
}

#[apply(trial)]
fn pause_loops_exit_on_a_modelled_host_by_its_limits() {
    // Its PAUSE takes 109 ticks of the counter.
    let waits =
        "--machine cascadelake-2s --lock ticket --hold 20us --think 1us --sched host --host linux-7.3";
    let run = |more: &str| {
        let record = record(&format!("{waits} {more}"));
        let limits = record["settings"]["ple"].clone();
        (record["vm_exits"]["pause_loop"].as_u64().expect("it is counted"), limits)
    };
    let (exits, limits) = run("");
    assert!(exits > 0);
    assert_eq!(limits, "gap=128,window=4096");
    for (more, expected) in [
        ("--ple gap=100", json!("gap=100,window=4096")),
        ("--pause-exits off", Value::Null),
        ("--ring 3", Value::Null),
    ] {
        assert_eq!(run(more), (0, expected), "{more}");
    }
    let (longer, _) = run("--ple window=16384");
    assert!(longer < exits, "{longer} exits with four times the window, {exits} with one");
}

#[apply(trial)]
fn no_guest_hangs_that_waits_for_its_turns_or_starts_then() {
    for run in [
        // Each guest has a pCPU for each vCPU, but not for itself: who was let in waits for three turns.
        "--machine nehalem-2s --cpus 0-1 --guests 4 --vcpus 2 --lock ticket --slice 20ms --hold 1us --think 0s --drain on \
         --duration 200ms --warmup 10ms --watchdog 10s",
        // On this machine a guest's first vCPU starts the others at an exit at which its pCPU is to change vCPUs.
        "--machine cascadelake-2s~10/12 --cpus 0-31 --sched host --host linux-7.3 --guests 4 --ratio 1 --lock virt-tas \
         --duration 1ms --warmup 1ms --watchdog 20ms",
    ] {
        finished(&format!("run --engine sim --no-ideal {run}"));
    }
}

#[apply(trial)]
fn an_experiment_goes_on_only_with_its_machine_and_lock_objects() {
    let record = record("--machine nehalem-2s");
    let text = machine_file(&record);
    let directory = scratch("changed-files");
    let machine = written(format!("{directory}/machine.toml"), text);
    let [arm, with] = ["arm", "with"].map(|name| written(format!("{directory}/{name}.c"), TAS));
    let experiment = simulated().replace("\"cascadelake-2s\"", &format!("\"{machine}\""));
    let experiment = experiment.replace("lock = \"tas\"", &format!("lock = \"file:{arm}\""));
    let (experiment, results) = placed("changed-files-of", &experiment);
    let resume = format!("bench --resume {results}");
    finished(&format!("bench {experiment} --with {with} --output {results}")).prints(&["with.c"]);
    cut(&results, 4);
    let tries = format!("{TAS}\nint hk_try_lock(struct lock *lock) {{ return !lock->held; }}");
    let slower = text.replace("exit-ns = { value = 800,", "exit-ns = { value = 900,");
    for (file, changed, says) in [
        (machine, slower, "was begun with another machine in cell "),
        (arm, tries.clone(), "lock objects that have changed"),
        (with, tries, "lock objects that have changed"),
    ] {
        let before = read(&file);
        assert_ne!(before, changed);
        written(file.clone(), changed);
        refuses(&resume, says);
        assert_eq!(records(&results).len(), 4, "nothing was added");
        written(file, before);
    }
    finished(&resume);
}

/// The records as they were written, without what tells a process and a moment from others.
fn whole_findings(results: &str) -> Vec<Value> {
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
    // Two arms with one lock.
    let text = simulated().replace("lock = \"tas\"", "lock = \"qspinlock\"\npv = \"on\"");
    let results = [1, 2, 7].map(|jobs| {
        let (experiment, results) = placed(&format!("{jobs}-at-a-time"), &text);
        finished(&format!("bench {experiment} --output {results} --jobs {jobs}"));
        results
    });
    let [in_turn, two, seven] = results.each_ref().map(|results| whole_findings(results));
    assert_eq!(in_turn.len(), 3 * CELLS_PER_BLOCK);
    assert_eq!((&two, &seven), (&in_turn, &in_turn));
    // An arm differs from itself by nothing, and each block from others by its seed.
    let summary = json(format!("{}/summary.json", results[0]));
    let comparison = &summary["comparisons"][0];
    assert_eq!(comparison["ratio"]["hodges_lehmann"], 1.0, "{comparison}");
    assert_eq!(comparison["per_block"], json!([1.0, 1.0, 1.0]), "{comparison}");
    let of_cell = in_turn.iter().filter(|record| record["place"]["cell_id"] == "pv_ratio-2");
    let counts: BTreeSet<_> = of_cell.map(|record| record["figures"]["acquisitions"].to_string()).collect();
    assert!(counts.len() > 1, "every block has another seed: {counts:?}");
}

#[apply(trial)]
fn ctrl_c_keeps_the_records_that_come_first_and_shows_their_table() {
    let (experiment, results) = placed("interrupted-simulation", &simulated());
    let whole = format!("{results}-whole");
    finished(&format!("bench {experiment} --output {whole}"));
    let whole = whole_findings(&whole);
    let bench = format!("bench {experiment} --blocks 1000 --jobs 3 --output {results}");
    let mut bench = started(&mut command(&bench));
    wait_for_records(&results, 2);
    bench.signal(Signal::INT);
    bench.ended().with(&[130]).prints(&["A tiny experiment"]);
    let kept = whole_findings(&results);
    assert_eq!(json(format!("{results}/summary.json"))["runs"], kept.len());
    assert!((2..1000 * CELLS_PER_BLOCK).contains(&kept.len()), "{} records", kept.len());
    for (index, record) in kept.iter().enumerate() {
        assert_eq!(record["place"]["order_index"], index, "none is left out");
    }
    let common = kept.len().min(whole.len());
    assert_eq!(kept[..common], whole[..common]);
}

/// A run of a schedule or of one that is recorded.
const OF_SCHEDULE: &str = "run --engine sim --machine nehalem-2s --no-ideal --format json";

#[apply(trial)]
fn a_recorded_schedule_repeats_under_another_lock() {
    let trace = format!("{}/recorded.pftrace", scratch("schedule"));
    // Four vCPUs share two CPUs; then each has one of its own, and none where the recording took it.
    let shared = "--cpus 0-1 --ratio 2 --slice 200us --window 6ms";
    let line = format!("{OF_SCHEDULE} --pv on --lock qspinlock {shared} --trace {trace}");
    let recorded = ends(0, &line).json();
    let [kept, dropped, implausible] = ["", "_dropped", "_implausible"]
        .map(|of| recorded["trace"][format!("guest_sections{of}")].as_u64().expect("a count"));
    let sections = recorded["figures"]["acquisitions"].as_u64().expect("a count");
    assert!(sections > 0 && kept + dropped >= sections && implausible == 0, "{:#}", recorded["trace"]);
    for lock in ["qspinlock", "ticket"] {
        let alone = format!("--cpus 0-3 --ratio 1 --window 5ms --schedule {trace}");
        let record = ends(0, &format!("{OF_SCHEDULE} --pv on --lock {lock} {alone}")).json();
        let kept = &record["schedule"];
        let honoured = kept["honoured"].as_f64().expect("a share");
        assert!(honoured > 0.995 && honoured <= 1.0, "{kept:#}");
        assert!(kept["absences"].as_u64().unwrap() > 20, "{kept:#}");
        // Half of the four vCPUs' time, or less where they slept.
        let absent_ns = kept["absent_ns"].as_u64().unwrap();
        assert!((4_000_000..=11_000_000).contains(&absent_ns), "{kept:#}");
        assert_eq!((&record["settings"]["schedule"], &record["trusted"]), (&json!(trace), &json!(true)));
    }
}

#[apply(trial)]
fn a_schedule_that_lacks_events_makes_the_run_invalid() {
    let text = "\
CPU 0/KVM-9 [000] 1.5: sched_switch: CPU 0/KVM:9 [120] R ==> x:1 [120]
x-1 [000] 1.501: sched_switch: x:1 [120] S ==> CPU 0/KVM:9 [120]
CPU:0 [LOST 7 EVENTS]
x-1 [001] 1.6: sched_switch: x:1 [120] S ==> y:2 [120]
";
    let file = written(format!("{}/x.txt", scratch("schedule-lacks")), text);
    let run = format!("{OF_SCHEDULE} --cpus 0-1 --ratio 1 --window 5ms --lock tas --schedule {file}");
    let record = ends(7, &run).json();
    let message =
        "the recorded schedule lacks events: line 3: events were lost: record with larger buffers (7 in all)";
    let warning = json!({ "code": "schedule-doubtful", "message": message });
    assert_eq!((&record["trusted"], &record["warnings"]), (&json!(false), &json!([warning])));
}
