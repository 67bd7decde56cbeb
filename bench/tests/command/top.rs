//! `haltkick top` next to runs that show themselves, and next to other things.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::support::*;

/// Runs that show themselves in a directory of this test's own.
struct RuntimeDir(String);

impl RuntimeDir {
    fn new(name: &str) -> Self {
        Self(scratch(name))
    }

    fn command(&self, line: &str) -> Command {
        let mut command = command(line);
        command.env("XDG_RUNTIME_DIR", &self.0);
        command
    }

    /// Starts a command; its number.
    fn started(&self, line: &str) -> (Running, String) {
        let mut running = started(&mut self.command(line));
        let number = running.child().id().to_string();
        (running, number)
    }

    fn end_of(&self, line: &str) -> Ended {
        end_of(&mut self.command(line))
    }

    /// Has `top` refuse `target` in a line that says `what`.
    fn refuses(&self, target: &str, what: &str) {
        let ended = self.end_of(&format!("top {target}")).with(&[2]).says(&[what]);
        assert!(ended.err.lines().count() == 1 && ended.out.is_empty(), "{ended}");
    }

    /// Returns the view of `target` once it is `wanted`.
    fn seen(&self, target: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        eventually(&format!("a view of {target}"), || {
            let ended = self.end_of(&format!("top {target} --once --format json"));
            (ended.code == 0).then(|| ended.json()).filter(|view| wanted(view))
        })
    }
}

/// Interrupts a run, which ends with that.
fn interrupt(mut run: Running) {
    run.signal(Signal::INT);
    run.ended().with(&[130]);
}

/// How many vCPUs of the only guest are in one of `states`.
fn count(view: &Value, states: &[&str]) -> usize {
    let vcpus = view["guests"][0]["vcpus"].as_array().expect("vCPUs");
    vcpus.iter().filter(|vcpu| states.contains(&vcpu["state"].as_str().unwrap())).count()
}

fn sum(view: &Value, field: &str) -> f64 {
    let vcpus = view["guests"][0]["vcpus"].as_array().expect("vCPUs");
    vcpus.iter().map(|vcpu| vcpu[field].as_f64().unwrap_or_default()).sum()
}

fn is_in_window(view: &Value) -> bool {
    view["phase"] == "window" && view["rates_over_ns"].is_u64() && sum(view, "sections_per_second") > 0.0
}

/// Six vCPUs on one pCPU, watched from their window to their end.
fn watch(name: &str, engine: &str) {
    let (place, cpu) = (RuntimeDir::new(name), an_allowed_cpu());
    let run = format!("run --engine {engine} --live on --vcpus 6 --cpus {cpu} --lock ticket");
    let (run, number) = place.started(&format!("{run} --duration 10m --no-ideal"));
    let view = place.seen(&number, is_in_window);
    assert_valid("top", &view);
    assert_eq!(view["process"].to_string(), number);
    assert_eq!(view["guests"][0]["vcpus"].as_array().unwrap().len(), 6, "{view:#}");
    assert_eq!(view["guests"][0]["lock"], "ticket");
    assert!(count(&view, &["running"]) <= 1, "there is one pCPU: {view:#}");
    let awake = count(&view, &["running", "ready", "preempted"]);
    assert_eq!(awake, 6, "a ticket lock's waiters do not sleep: {view:#}");
    assert!(sum(&view, "exits_per_second") > 0.0, "slices end: {view:#}");
    assert_eq!(view["guests"][0]["vcpus"][5]["sleeps"], 0, "{view:#}");
    // A vCPU that was taken off was doing something, and on one pCPU most of them waited for the lock.
    place.seen(&number, |view| {
        let vcpus = view["guests"][0]["vcpus"].as_array().expect("vCPUs");
        vcpus.iter().any(|vcpu| {
            let is_off = vcpu["state"] == "preempted" && vcpu["since_ns"].is_u64();
            is_off && vcpu["doing"] == "waiter" && vcpu["lock"] == 0
        })
    });
    let table = place.end_of(&format!("top {number} --once")).prints(&["6 vCPUs on CPU ", "preempted ("]);
    assert!(!table.out.contains('\x1b'), "a pipe is no terminal: {:?}", table.out);
    let (top, _) = place.started(&format!("top {number} --interval 100ms --format json"));
    interrupt(run);
    top.ended().with(&[0]).says(&["has no run left"]);
}

#[apply(trial)]
fn every_vcpu_on_threads_is_seen_until_the_run_ends() {
    watch("top-threads", "threads");
}

#[apply(kvm_trial)]
fn every_vcpu_on_kvm_is_seen_until_the_run_ends() {
    watch("top-kvm", "kvm");
}

#[apply(trial)]
fn the_host_s_scheduler_is_watched_too() {
    let (place, cpu) = (RuntimeDir::new("top-host"), an_allowed_cpu());
    let run = format!("run --engine threads --sched host --live on --vcpus 3 --cpus {cpu}");
    let (run, number) = place.started(&format!("{run} --attribution off --duration 10m --no-ideal"));
    let view = place.seen(&number, is_in_window);
    assert_eq!((view["sched"].as_str(), count(&view, &["runnable"])), (Some("host"), 3), "{view:#}");
    interrupt(run);
}

#[apply(trial)]
fn a_simulated_run_is_seen_in_its_own_time() {
    // Enough virtual time that even an optimized simulator takes longer than the view does.
    let place = RuntimeDir::new("top-sim");
    let long = SIMULATED.replace("1ms", "250s");
    let (run, number) = place.started(&format!("run --live on --vcpus 4 --pv on {long}"));
    let view = place.seen(&number, |view| view["phase"] == "warms-up" && sum(view, "sections") > 0.0);
    assert_eq!((view["virtual_time"].as_bool(), count(&view, &["not-started"])), (Some(true), 0), "{view:#}");
    assert!(count(&view, &["running"]) <= 2, "there are two pCPUs: {view:#}");
    interrupt(run);
}

#[apply(trial)]
fn an_experiment_is_watched_by_its_directory_and_leaves_no_view() {
    let (experiment, results) = tiny("top-bench");
    let place = RuntimeDir::new("top-bench-place");
    let bench = format!("bench {experiment} --blocks 1000 --output {results}");
    let (bench, number) =
        place.started(&format!("{bench} --set live=on --set engine=threads --set window=300ms"));
    let view = place.seen(&results, |view| view["phase"] == "window");
    assert_eq!(view["process"].to_string(), number);
    place.refuses(&number, "of an experiment (--set live=on) give its directory");
    let runs = format!("{results}/runs.jsonl");
    eventually("a record", || fs::read_to_string(&runs).ok()?.contains('\n').then_some(()));
    interrupt(bench);
    let left = fs::read_dir(&results).expect("a directory").flatten().map(|entry| entry.file_name());
    let views: Vec<_> = left.filter(|name| name.to_string_lossy().starts_with("live-")).collect();
    assert_eq!(views, [""; 0], "the view goes with the experiment");
    for record in records(&results) {
        assert!(record["settings"]["lock"] == "none" || record["settings"]["live"] == true, "{record:#}");
    }
    assert_eq!(json(format!("{results}/manifest.json"))["schema"], "haltkick.manifest");
}

#[apply(trial)]
fn what_is_no_view_is_refused_in_one_line() {
    let place = RuntimeDir::new("top-refused");
    let directory = &place.0;
    // A run without `--live on` leaves no view.
    let record = place.end_of(&format!("run {SIMULATED} --no-ideal --format json")).json();
    assert_eq!(record["settings"]["live"], false);
    assert_eq!(fs::read_dir(directory).expect("a directory").count(), 0);
    place.refuses(directory, "no run in it shows itself");
    place.refuses("no/such/place", "neither a directory nor the number of a process");
    place.refuses("1", "process 1 shows no single run");
    // Lines of other programs and versions: `results::live`.
    written(format!("{directory}/live-1.jsonl"), "x".repeat(5 << 20));
    place.refuses(directory, "too long");
    fs::remove_file(format!("{directory}/live-1.jsonl")).unwrap();
    fs::create_dir(format!("{directory}/live-1.jsonl")).unwrap();
    place.refuses(directory, "it is no regular file");
}
