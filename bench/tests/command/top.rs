//! `haltkick top` next to runs that show themselves, and next to other things.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use crate::support::{
    Check, SIMULATED, an_allowed_cpu, apply, assert_valid, code, command, eventually, json, kvm, scratch,
    stderr, stdout, trial,
};
use crate::tiny::{records, tiny};

/// Runs that show themselves in a directory of this test's own.
struct RuntimeDir(PathBuf);

impl RuntimeDir {
    fn new(name: &str) -> Self {
        Self(scratch(name))
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = command(arguments);
        command.env("XDG_RUNTIME_DIR", &self.0).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn spawn(&self, arguments: &[&str]) -> Running {
        Running(self.command(arguments).spawn().expect("haltkick can be started"))
    }

    fn output(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("haltkick can be started")
    }

    /// Has `top` refuse `target` in a line that says `what`.
    fn refuses(&self, target: &str, what: &str) {
        let output = self.output(&["top", target]);
        let said = stderr(&output);
        assert_eq!(code(&output), 2, "{said}");
        assert!(said.contains(what) && said.lines().count() == 1, "{what} is not in: {said}");
        assert_eq!(stdout(&output), "");
    }

    /// Returns the view of `target` once it is `wanted`.
    fn seen(&self, target: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        eventually(&format!("a view of {target}"), || {
            let output = self.output(&["top", target, "--once", "--format", "json"]);
            if code(&output) != 0 {
                return None;
            }
            let view: Value = serde_json::from_str(&stdout(&output)).expect("a view is JSON");
            wanted(&view).then_some(view)
        })
    }
}

/// A process that is ended if its test is.
struct Running(Child);

impl Running {
    fn number(&self) -> String {
        self.0.id().to_string()
    }

    fn interrupt(&self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("the child is ours");
    }

    fn end(mut self) -> (Option<i32>, String) {
        let status = self.0.wait().expect("it ends");
        let mut said = String::new();
        let mut from = self.0.stderr.take().expect("it was piped");
        std::io::Read::read_to_string(&mut from, &mut said).expect("it is text");
        (status.code(), said)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
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
    let run = ["run", "--engine", engine, "--live", "on", "--vcpus", "6", "--cpus", &cpu, "--lock", "ticket"];
    let run = place.spawn(&[&run[..], &["--duration", "10m", "--no-ideal"]].concat());
    let view = place.seen(&run.number(), is_in_window);
    assert_valid("top", &view);
    assert_eq!(view["process"].to_string(), run.number());
    assert_eq!(view["guests"][0]["vcpus"].as_array().unwrap().len(), 6, "{view:#}");
    assert_eq!(view["guests"][0]["lock"], "ticket");
    assert!(count(&view, &["running"]) <= 1, "there is one pCPU: {view:#}");
    assert_eq!(
        count(&view, &["running", "ready", "preempted"]),
        6,
        "a ticket lock's waiters do not sleep: {view:#}"
    );
    assert!(sum(&view, "exits_per_second") > 0.0, "slices end: {view:#}");
    assert_eq!(view["guests"][0]["vcpus"][5]["sleeps"], 0, "{view:#}");
    // A vCPU that was taken off was doing something, and on one pCPU most of them waited for the lock.
    place.seen(&run.number(), |view| {
        let vcpus = view["guests"][0]["vcpus"].as_array().expect("vCPUs");
        vcpus.iter().any(|vcpu| {
            let is_off = vcpu["state"] == "preempted" && vcpu["since_ns"].is_u64();
            is_off && vcpu["doing"] == "waiter" && vcpu["lock"] == 0
        })
    });
    let table = stdout(&place.output(&["top", &run.number(), "--once"]));
    assert!(table.contains("6 vCPUs on CPU ") && table.contains("preempted ("), "{table}");
    assert!(!table.contains('\x1b'), "a pipe is no terminal: {table:?}");
    let top = place.spawn(&["top", &run.number(), "--interval", "100ms", "--format", "json"]);
    run.interrupt();
    let (run_ended, said) = run.end();
    assert_eq!(run_ended, Some(130), "{said}");
    let (top_ended, said) = top.end();
    assert_eq!(top_ended, Some(0), "{said}");
    assert!(said.contains("has no run left"), "{said}");
}

#[apply(trial)]
fn every_vcpu_on_threads_is_seen_until_the_run_ends() {
    watch("top-threads", "threads");
}

#[apply(trial)]
fn every_vcpu_on_kvm_is_seen_until_the_run_ends() -> Check {
    kvm()?;
    watch("top-kvm", "kvm");
    Ok(())
}

#[apply(trial)]
fn the_host_s_scheduler_is_watched_too() {
    let (place, cpu) = (RuntimeDir::new("top-host"), an_allowed_cpu());
    let run =
        ["run", "--engine", "threads", "--sched", "host", "--live", "on", "--vcpus", "3", "--cpus", &cpu];
    let run = place.spawn(&[&run[..], &["--attribution", "off", "--duration", "10m", "--no-ideal"]].concat());
    let view = place.seen(&run.number(), is_in_window);
    assert_eq!((view["sched"].as_str(), count(&view, &["runnable"])), (Some("host"), 3), "{view:#}");
    run.interrupt();
    assert_eq!(run.end().0, Some(130));
}

#[apply(trial)]
fn a_simulated_run_is_seen_in_its_own_time() {
    // Enough virtual time that even an optimized simulator takes longer than the view does.
    let place = RuntimeDir::new("top-sim");
    let arguments = SIMULATED.map(|argument| if argument == "1ms" { "250s" } else { argument });
    let run = place.spawn(&[&["run", "--live", "on", "--vcpus", "4", "--pv", "on"][..], &arguments].concat());
    let view = place.seen(&run.number(), |view| view["phase"] == "warms-up" && sum(view, "sections") > 0.0);
    assert_eq!((view["virtual_time"].as_bool(), count(&view, &["not-started"])), (Some(true), 0), "{view:#}");
    assert!(count(&view, &["running"]) <= 2, "there are two pCPUs: {view:#}");
    run.interrupt();
    assert_eq!(run.end().0, Some(130));
}

fn views_in(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).expect("a directory").flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("live-")).collect()
}

#[apply(trial)]
fn an_experiment_is_watched_by_its_directory_and_leaves_no_view() {
    let (experiment, path) = tiny("top-bench");
    let (place, results) = (RuntimeDir::new("top-bench-place"), path.join("results"));
    let directory = results.to_str().unwrap();
    let set = ["--set", "live=on", "--set", "engine=threads", "--set", "window=300ms"];
    let bench = ["bench", &experiment, "--blocks", "1000", "--output", directory];
    let bench = place.spawn(&[&bench[..], &set].concat());
    let in_run = |view: &Value| view["phase"] == "window";
    let view = place.seen(directory, in_run);
    assert_eq!(view["process"].to_string(), bench.number());
    place.refuses(&bench.number(), "of an experiment (--set live=on) give its directory");
    eventually("a record", || {
        fs::read_to_string(results.join("runs.jsonl")).ok()?.contains('\n').then_some(())
    });
    bench.interrupt();
    let (ended, said) = bench.end();
    assert_eq!(ended, Some(130), "{said}");
    assert_eq!(views_in(&results), [""; 0], "the view goes with the experiment");
    let live = |record: &Value| record["settings"]["live"].as_bool();
    let of_arm = |record: &Value| record["settings"]["lock"] != "none";
    assert!(
        records(&results).iter().filter(|record| of_arm(record)).all(|record| live(record) == Some(true))
    );
    assert_eq!(json(&results.join("manifest.json"))["schema"], "haltkick.manifest");
}

#[apply(trial)]
fn a_run_that_nobody_asked_shows_itself_to_nobody() {
    let (place, cpu) = (RuntimeDir::new("top-off"), an_allowed_cpu());
    let run =
        ["run", "--engine", "threads", "--vcpus", "2", "--cpus", &cpu, "--duration", "10ms", "--no-ideal"];
    let output = place.output(&[&run[..], &["--format", "json"]].concat());
    let record: Value = serde_json::from_str(&stdout(&output)).expect("a record");
    assert_eq!(record["settings"]["live"], false);
    assert_eq!(fs::read_dir(&place.0).expect("a directory").count(), 0);
}

#[apply(trial)]
fn what_is_no_view_is_refused_in_one_line() {
    let place = RuntimeDir::new("top-refused");
    let directory = place.0.to_str().unwrap();
    place.refuses(directory, "no run in it shows itself");
    place.refuses("no/such/place", "neither a directory nor the number of a process");
    place.refuses("1", "process 1 shows no single run");
    let view = place.0.join("live-1.jsonl");
    fs::write(&view, "{\"schema\": \"haltkick.top\", \"schema_version\": 1}\n").unwrap();
    place.refuses(directory, "live-1.jsonl is not the live view of a run");
    fs::write(&view, "{\"schema\": \"haltkick.top\", \"schema_version\": 2}\n").unwrap();
    place.refuses(directory, "is a live view of version 2");
    fs::write(&view, vec![b'x'; 5 << 20]).unwrap();
    place.refuses(directory, "too long");
    fs::remove_file(&view).unwrap();
    fs::create_dir(&view).unwrap();
    place.refuses(directory, "is no file");
}
