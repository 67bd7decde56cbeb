//! A Linux guest under the command: Debian's kernel with a busybox as user space, in the machine of `just test-nested`, where
//! ring 0 is native and kernel and initial RAM disk are at hand (HALTKICK_LINUX names their directory). Skipped elsewhere.

use std::process::{Command, ExitCode, Output, Stdio};
use std::time::Duration;

use libtest_mimic::{Arguments, Trial};
use serde_json::Value;
use support::{Check, Failed, apply, named, trial};

/// vCPUs for each of the machine's two pCPUs.
const RATIO: u64 = 4;
/// Ratio for short stress under the VMM's scheduler, where every wake-up of an emulated vCPU waits for a look of a
/// millisecond: with twice as many it takes twice as long until user space is there.
const SHORT_RATIO: u64 = 2;
/// First line of `linux-init`.
const MARKER: &str = "user space is there";
/// For a kernel in an emulated machine in an emulated machine: no slow clocks, no tests, few words on a slow console.
const WORDS: &str = "quiet tsc=reliable no_timer_check mitigations=off cryptomgr.notests noxsave";

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(1);
    let missing = directory().is_none();
    if missing {
        eprintln!(
            "Linux guests are skipped, not tested: HALTKICK_LINUX names no directory with vmlinuz and initrd"
        );
    }
    let trials = support::trials(false).into_iter().map(|trial| trial.with_ignored_flag(missing)).collect();
    support::watch();
    libtest_mimic::run(&arguments, support::chosen(trials)).exit_code()
}

#[apply(trial)]
fn guests_survive_random_descheduling() -> Vec<Trial> {
    let trial = |(sched, pv)| {
        let title = format!("random_descheduling_under_the_{sched}s_scheduler_with_pv_{pv}");
        named(title, move || survives(sched, pv, stress_seconds()))
    };
    [("host", "on"), ("host", "off"), ("vmm", "on"), ("vmm", "off")].map(trial).into()
}

/// Returns how long each guest is to be under stress, if the tester sets it (`HALTKICK_STRESS_SECONDS`).
fn stress_seconds() -> Option<u32> {
    let asked = std::env::var("HALTKICK_STRESS_SECONDS").ok()?;
    Some(asked.parse().expect("HALTKICK_STRESS_SECONDS is a number"))
}

fn directory() -> Option<String> {
    std::env::var("HALTKICK_LINUX").ok()
}

fn boot(words: &str, ratio: u64, arguments: &[&str]) -> Output {
    let directory = directory().expect("tests without it are ignored");
    Command::new(env!("CARGO_BIN_EXE_haltkick"))
        .args(["run", "--format", "json", "--ratio", &ratio.to_string(), "--marker", MARKER])
        .args(["--kernel", &format!("{directory}/vmlinuz"), "--initrd", &format!("{directory}/initrd")])
        .args(["--append", &format!("{WORDS} {words}")])
        .args(arguments)
        .output()
        .expect("haltkick can be started")
}

/// Code, record and console.
fn told(output: &Output) -> (i32, Value, String) {
    let console = String::from_utf8_lossy(&output.stderr).into_owned();
    let record = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("no record ({error}), {}: {console}", output.status));
    (output.status.code().unwrap_or(-1), record, console)
}

fn survives(sched: &str, pv: &str, asked: Option<u32>) {
    let seconds = asked.unwrap_or(3);
    let ratio = if sched == "vmm" && asked.is_none() { SHORT_RATIO } else { RATIO };
    let policy = ["--deschedule", "random,rate=50,for=5ms", "--slice", "50ms"];
    let patience = format!("{}s", 200 + 2 * seconds);
    let arguments = [&["--sched", sched, "--pv", pv, "--duration", &patience][..], &policy].concat();
    let (code, record, console) = told(&boot(&format!("stress={seconds}"), ratio, &arguments));
    // 7: emulated hosts are noisy.
    let end = &record["end"];
    assert!(matches!(code, 0 | 7) && end == "power-off", "exit code {code}, {end}: {console}");
    let vcpus = ratio * record["settings"]["cpus"].as_array().map_or(0, Vec::len) as u64;
    assert!(console.contains(&format!("{MARKER}: {vcpus} CPUs")), "not all CPUs: {console}");
    let (on, off) = (console.contains("PV spinlocks enabled"), console.contains("PV spinlocks disabled"));
    assert_eq!((on, off), (pv == "on", pv == "off"), "not with pv {pv}: {console}");
    for cpu in 0..vcpus {
        let turns = console.lines().find_map(|line| line.strip_prefix(&format!("CPU {cpu}: ")));
        let turns = turns.and_then(|turns| turns.strip_suffix(" turns")?.parse::<u64>().ok());
        assert!(turns > Some(0), "CPU {cpu} did nothing: {console}");
    }
    let figures = &record["figures"];
    let booted = figures["user_space_ns"].as_u64();
    let run = figures["until_end_ns"].as_u64().unwrap_or(0);
    assert!(booted.is_some_and(|ns| ns + u64::from(seconds) * 1_000_000_000 <= run), "{figures}");
    assert!(figures["injected"].as_u64() >= Some(u64::from(seconds)), "{figures}");
    let per_vcpu = record["per_vcpu"].as_array().map(Vec::as_slice).unwrap_or_default();
    let ran = |vcpu: &Value| vcpu["run_ns"].as_u64() > Some(0) && vcpu["waits"].as_u64() > Some(0);
    assert!(per_vcpu.len() as u64 == vcpus && per_vcpu.iter().all(ran), "{per_vcpu:?}");
    println!(
        "sched {sched}, pv {pv}: user space after {:.1} s, off after {:.1} s, taken off {} times",
        booted.unwrap_or(0) as f64 / 1e9,
        run as f64 / 1e9,
        figures["injected"]
    );
}

/// The example that compares them, with loops of a second, time to boot, and words for an emulator. Next to it are
/// kernel and initial RAM disk.
fn example() -> Result<String, Failed> {
    let directory = std::path::Path::new("/tmp/linux-pv");
    std::fs::create_dir_all(directory)?;
    let files = self::directory().expect("tests without it are ignored");
    for (file, name) in [("vmlinuz", "vmlinuz"), ("loops", "initrd.cpio")] {
        std::fs::copy(format!("{files}/{file}"), directory.join(name))?;
    }
    let text = include_str!("../../examples/kernels/pv.toml");
    let few = text.replace(":5", ":1").replace("window = \"3m\"", "window = \"10m\"");
    let words = format!("cmdline = \"{WORDS} run=");
    let file = directory.join("pv.toml");
    std::fs::write(&file, few.replace("cmdline = \"quiet run=", &words))?;
    Ok(file.display().to_string())
}

#[apply(trial)]
fn pv_on_pv_off_and_nopvspin_are_compared_by_guest_output() -> Check {
    let (file, results) = (example()?, "/tmp/linux-pv/results");
    let whole = ["bench", &file, "--blocks", "1", "--set", "ratio=1", "--output", results];
    // A machine that says nothing for minutes is taken for one that hangs.
    let mut child = Command::new(env!("CARGO_BIN_EXE_haltkick")).args(whole).stdout(Stdio::null()).spawn()?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        std::thread::sleep(Duration::from_secs(10));
        println!("it runs");
    };
    assert!(matches!(status.code(), Some(0 | 7)), "{whole:?}: {status}");
    let shown = Command::new(env!("CARGO_BIN_EXE_haltkick")).args(["report", results]).output()?;
    assert!(matches!(shown.status.code(), Some(0 | 7)), "{shown:?}");
    let shown = String::from_utf8_lossy(&shown.stdout);
    for words in ["pv/nopvspin", "page-loop", "pages/s", "A/A pair (nopvspin)", "pv/nopvspin, futex"] {
        assert!(shown.contains(words), "no '{words}': {shown}");
    }
    let mut records: Vec<Value> = Vec::new();
    for line in std::fs::read_to_string(format!("{results}/runs.jsonl"))?.lines() {
        records.push(serde_json::from_str(line)?);
    }
    assert_eq!(records.len(), 4);
    for record in &records {
        for loops in ["page-loop", "copy-loop", "futex-loop", "spin-loop"] {
            assert!(record["figures"][loops].as_f64() > Some(0.0), "no {loops}: {record}");
        }
        let (arm, config) = (record["place"]["arm"].as_str(), &record["settings"]);
        let is_declined = config["command_line"].as_str().is_some_and(|words| words.ends_with(" nopvspin"));
        assert_eq!(is_declined, arm == Some("nopvspin"), "{config}");
        assert_eq!(config["pv"], arm != Some("no pv"), "{config}");
        println!("{}: {}", arm.unwrap_or("?"), record["figures"]);
    }
    let manifest: Value =
        serde_json::from_str(&std::fs::read_to_string(format!("{results}/manifest.json"))?)?;
    assert_eq!(manifest["kernels"].as_array().map(Vec::len), Some(3), "{}", manifest["kernels"]);
    Ok(())
}

#[apply(trial)]
fn a_panic_is_a_failure_of_the_guest() {
    let words = "rdinit=/there/is/none root=none";
    let (code, record, console) = told(&boot(words, RATIO, &["--sched", "host", "--duration", "120s"]));
    assert!(code == 5 && record["end"] == "panic", "exit code {code}, {}: {console}", record["end"]);
    assert!(console.contains("Kernel panic") && console.contains("kernel panicked after"), "{console}");
}

#[apply(trial)]
fn a_guest_that_stays_is_stopped_when_its_time_is_over() {
    let (code, record, console) = told(&boot("", RATIO, &["--sched", "host", "--duration", "2s"]));
    assert!(code == 6 && record["end"] == "time-limit", "exit code {code}, {}: {console}", record["end"]);
    let figures = &record["figures"];
    assert!(figures["user_space_ns"].is_null() && record["why"]["user_space_ns"].is_string(), "{figures}");
}

#[apply(trial)]
fn a_workload_inside_runs_on_kvm_and_its_record_comes_back() {
    let kernel = directory().expect("tests without it are ignored") + "/vmlinuz";
    let output = Command::new(env!("CARGO_BIN_EXE_haltkick"))
        .args(["run", "--format", "json", "--kernel", &kernel, "--vcpus", "2", "--sched", "host"])
        .args(["--append", WORDS, "--duration", "200s"])
        .args(["--workload-inside", "run --lock ticket --ratio 2 --duration 300ms"])
        .output()
        .expect("haltkick can be started");
    let (code, record, console) = told(&output);
    let inside = &record["inside"];
    println!("{}; {}", inside["host"], record["figures"]);
    // 7: emulated hosts are noisy.
    let ended = (&record["end"], &record["settings"]["engine"]);
    assert!(matches!(code, 0 | 7) && ended == (&"power-off".into(), &"kvm".into()), "{code}: {console}");
    assert_eq!(inside["settings"]["vcpus"], 4, "{inside}: {console}");
    assert!(inside["figures"]["acquisitions"].as_u64() > Some(0), "{inside}: {console}");
}
