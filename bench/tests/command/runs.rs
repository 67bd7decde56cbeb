//! Single runs, their records, and how they fail. Limits that the host's kernel keeps: files, memory, and the quota of the control
//! group in which the command is started.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::*;

#[apply(trial)]
fn a_guest_that_comes_late_is_calibrated_and_has_an_ideal() {
    // Its ideal has a window of 200 ms, in which it is there for the same share: 50 ms, which a busy host may take away.
    let late = "run --engine threads --vcpus 1 --duration 400ms --from 300ms --format json";
    eventually("an efficiency of about 1", || {
        let record = finished(late).json();
        assert_complete(&record);
        let found = ["engine", "ring", "from_ns"].map(|name| &record["settings"][name]);
        assert_eq!(found, [&json!("threads"), &json!(3), &json!(300_000_000)]);
        let efficiency = record["figures"]["efficiency"].as_f64().expect("it has an ideal");
        (0.4..2.0).contains(&efficiency).then_some(())
    });
}

#[apply(kvm_trial)]
fn a_failed_guest_gives_an_exit_code_a_story_and_a_record() {
    for (workload, code, expected, cause, at_fault) in [
        ("selftest-panic", 5, "guest panicked on vCPU 0", "panic", Some(0)),
        ("selftest-exception", 5, "guest exception on vCPU 3: #PF", "exception", Some(3)),
        ("selftest-exclusion", 5, "mutual exclusion violated", "exclusion-broken", None),
        ("selftest-hang", 6, "no progress", "holder-runs", Some(0)),
    ] {
        let fixed = "run --vcpus 4 --duration 5s --watchdog 500ms --lock tas --format json";
        let failed = ends(code, &format!("{fixed} --workload {workload}"));
        let last = failed.err.lines().last().unwrap();
        assert!(last.starts_with("haltkick: ") && last.contains(expected), "{failed}");
        let record = failed.json();
        assert_valid("failure", &record);
        let verdict = &record["explanation"]["verdict"];
        assert_eq!((&verdict["cause"], verdict["vcpu"].as_u64()), (&cause.into(), at_fault), "{workload}");
        assert_eq!(record["exit_code"], code, "{workload}");
        let console = record["console"].as_str().unwrap();
        let said = console.contains("selftest-panic: vCPU 0 is about to panic");
        assert_eq!(said, workload == "selftest-panic", "{workload}: {console}");
        failed.says(&[verdict["text"].as_str().unwrap(), console.trim_end()]);
    }
}

#[apply(kvm_trial)]
fn a_guest_that_dies_is_named_beside_the_others_record() {
    let guests = "--vm=name=doomed,workload=selftest-panic --vm=name=other,lock=tas";
    // In a short window of a busy host the vCPU that is to panic may have no turn, and then it has not died.
    let ended = in_some_window("a guest that dies", |window| {
        let ended = haltkick(&format!("run --vcpus=4 --format=json {guests} --duration {window}"));
        Some(ended).filter(|ended| !FINISHED.contains(&ended.code))
    });
    let record = ended.with(&[5]).says(&["haltkick: guest `doomed`: guest panicked"]).json();
    assert_valid("run", &record);
    assert_eq!((&record["settings"]["guest"], &record["trusted"]), (&"other".into(), &false.into()));
    assert!(record["warnings"].to_string().contains("guest doomed died"), "{}", record["warnings"]);
}

#[apply(kvm_trial)]
fn the_record_says_how_long_a_neighbour_delayed_the_runs_threads() -> Check {
    let cpu = an_allowed_cpu();
    has("taskset")?;
    // It does nothing but run.
    let neighbour = started(Command::new("taskset").args(["-c", &cpu, "sh", "-c", "while :; do :; done"]));
    let run = format!("run --cpus {cpu} --ratio 2 --lock tas --no-ideal --format json");
    let delay_share = |record: &Value| record["noise"]["run_delay_share"].as_f64();
    // A neighbour may begin late, and may itself wait for others.
    let (ended, record) = in_some_window("a neighbour that delays the run", |window| {
        let ended = haltkick(&format!("{run} --duration {window}"));
        let record = ended.json();
        let delayed = delay_share(&record).is_none_or(|share| share > 0.1);
        Some((ended, record)).filter(|_| delayed)
    });
    drop(neighbour);
    if delay_share(&record).is_none() {
        return skip(&record["why"]["noise.run_delay_share"]);
    }
    assert!(is_warned(&record, "busy-neighbour"), "{ended}");
    assert_eq!(ended.code, 7, "a run by itself is the headline");
}

#[apply(trial)]
fn a_run_whose_process_was_stopped_meanwhile_is_not_trusted() {
    let run = format!("run --engine threads --sched host --vcpus 2 --cpus {}", an_allowed_cpu());
    let mut run = started(&mut command(&format!("{run} --duration 1s --no-ideal --format json")));
    let tasks = format!("/proc/{}/task", run.child().id());
    let runs_vcpus = || fs::read_dir(&tasks).is_ok_and(|tasks| tasks.count() >= 4).then_some(());
    eventually("threads that run vCPUs", runs_vcpus);
    run.signal(Signal::STOP);
    std::thread::sleep(Duration::from_millis(1500));
    run.signal(Signal::CONT);
    let record = run.ended().json();
    assert!(is_warned(&record, "stopped") && record["trusted"] == false, "{}", record["warnings"]);
    let share = record["noise"]["stopped_share"].as_f64();
    assert!(share.is_some_and(|share| share > 0.1), "{:#}", record["noise"]);
}

#[apply(kvm_trial)]
fn guests_with_too_few_files_together_are_refused_or_get_more() -> Check {
    let within = |files: &str, with: &str, run: &str| {
        shell(&format!("ulimit {files} && exec {with} {HALTKICK} run --no-ideal {run}"))
    };
    let guests = "--sched vmm --lock none --pv off --duration 20ms --vm vcpus=150 --vm vcpus=150";
    // Up to the hard limit any process may go by itself.
    within("-S -n 300", "", guests).with(FINISHED);
    let mut with = "";
    if FINISHED.contains(&within("-n 300", "", guests).code) {
        // A privileged user raises the limit.
        with = "setpriv --bounding-set=-sys_resource";
        let tried = shell(&format!("ulimit -n 300 && {with} sh -c 'ulimit -n 301'"));
        if tried.code == 127 || !tried.err.contains("ulimit") {
            return skip(format_args!("`{with}` does not take away the privilege to open more files"));
        }
    }
    within("-n 300", with, guests).with(&[4]).says(&["open files"]);
    within("-n 20", with, "--vcpus 16").with(&[4]).says(&["haltkick: 16 vCPUs need ", "open files"]);
}

/// A control group of the test's own, which ends with it.
struct Group(PathBuf);

impl Group {
    /// A group that may run for 20 ms in each 40 ms, in the hierarchy of version 1 or 2.
    fn new() -> Result<Self, Failed> {
        let in_one = [("cpu.cfs_period_us", "40000"), ("cpu.cfs_quota_us", "20000")];
        for (root, files) in
            [("/sys/fs/cgroup/cpu", &in_one[..]), ("/sys/fs/cgroup", &[("cpu.max", "20000 40000")])]
        {
            let folder = PathBuf::from(root).join(format!("haltkick-test-{}", std::process::id()));
            if fs::create_dir(&folder).is_err() {
                continue;
            }
            let group = Self(folder);
            let is_set = |file: PathBuf, text| file.exists() && fs::write(file, text).is_ok();
            if files.iter().all(|(name, text)| is_set(group.0.join(name), text)) {
                return Ok(group);
            }
        }
        skip("no control group with a quota can be made here")
    }

    /// Runs the command in it.
    fn run(&self, line: &str) -> Ended {
        let mut within = Command::new("sh");
        within.args(["-c", "echo $$ >\"$0/cgroup.procs\"; exec \"$@\""]).arg(&self.0);
        end_of(within.arg(HALTKICK).args(words(line)))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        _ = fs::remove_dir(&self.0);
    }
}

/// Two vCPUs that would use two pCPUs.
const TWO: &str =
    "run --sched host --engine threads --vcpus 2 --lock none --no-ideal --format json --quota inherited";

#[apply(trial)]
fn the_quota_of_the_own_control_group_is_read_and_counted() -> Check {
    if haltkick_vmm::allowed_cpus().len() < 2 {
        return skip("two vCPUs need two pCPUs to use up more than their quota");
    }
    let group = Group::new()?;
    group.run("doctor").prints(&["20000 40000"]);
    // A host that is busy may not give it its quota in a short window.
    for window in ["300ms", "1s", "3s", "10s"] {
        let record = group.run(&format!("{TWO} --duration {window}")).with(FINISHED).json();
        assert_complete(&record);
        assert_eq!(record["settings"]["quota"], "inherited");
        let figures = &record["figures"];
        let count = |name: &str| figures[name].as_u64().unwrap_or_else(|| panic!("{name}: {figures}"));
        let throttled = count("throttled_periods");
        assert!(throttled <= count("throttled_of_periods"), "{figures}");
        if throttled > 0 && count("throttled_pcpu_ns") > 0 {
            return Ok(());
        }
    }
    skip::<()>("this host is too busy to let a guest use up its quota")?;
}

#[apply(trial)]
fn a_quota_that_no_group_has_ends_with_advice() -> Check {
    // This test's own group may have one.
    if haltkick_vmm::inherited_quota().is_ok_and(|quota| quota.is_some()) {
        return skip("this test runs under a quota itself");
    }
    ends(4, &format!("{TWO} --duration 10ms")).says(&["haltkick: quota inherited: ", "systemd-run"]);
}

#[apply(trial)]
fn memory_that_the_address_space_does_not_allow_is_named() {
    let mut told = 0;
    for kib in [60_000, 80_000, 100_000, 120_000, 150_000] {
        for engine in ["sim --machine skylake-8s --cpus 0-63", "threads"] {
            let run = format!("run --engine {engine} --vcpus 64 --lock ticket --window 1ms --no-ideal");
            let ended = shell(&format!("ulimit -v {kib} && exec {HALTKICK} {run}"));
            let last = ended.err.lines().last().unwrap_or_default();
            let is_told = [2, 4].contains(&ended.code) && last.contains("memory.max");
            assert!(is_told || FINISHED.contains(&ended.code), "{ended}");
            told += u32::from(is_told);
        }
    }
    assert!(told > 0);
}
