//! A Linux guest under the command: Debian's kernel with a busybox as user space, in the machine of `just test-nested`, where
//! ring 0 is native and kernel and initial RAM disk are at hand (HALTKICK_LINUX names their directory). Skipped elsewhere.

use std::time::Duration;

use libtest_mimic::Trial;
use serde_json::Value;

use crate::support::*;

/// vCPUs for each of the machine's two pCPUs.
const RATIO: u64 = 4;
/// Ratio for stress under the VMM's scheduler, where every wake-up of an emulated vCPU waits for a look of a
/// millisecond: with twice as many it takes twice as long until user space is there.
const SHORT_RATIO: u64 = 2;
/// First line of `linux-init`.
const MARKER: &str = "user space is there";
/// For a kernel in an emulated machine in an emulated machine: no slow clocks, no tests, few words on a slow console.
const WORDS: &str = "quiet tsc=reliable no_timer_check mitigations=off cryptomgr.notests noxsave";

#[apply(trial)]
fn guests_survive_random_descheduling() -> Vec<Trial> {
    let trial = |(sched, pv)| {
        let title = format!("random_descheduling_under_the_{sched}s_scheduler_with_pv_{pv}");
        ::support::named(title, move || survives(sched, pv))
    };
    [("host", "on"), ("host", "off"), ("vmm", "on"), ("vmm", "off")].map(trial).into()
}

fn directory() -> Result<String, Failed> {
    std::env::var("HALTKICK_LINUX")
        .or_else(|_| skip("HALTKICK_LINUX names no directory with vmlinuz and initrd"))
}

/// A run of that kernel with more words on its command line.
fn boot(words: &str, ratio: u64, more: &str) -> Result<Ended, Failed> {
    let directory = directory()?;
    let files =
        format!("--kernel {directory}/vmlinuz --initrd {directory}/initrd --append '{WORDS} {words}'");
    Ok(haltkick(&format!("run --format json --ratio {ratio} --marker '{MARKER}' {files} {more}")))
}

fn survives(sched: &str, pv: &str) -> Check {
    let seconds = 3_u32;
    let ratio = if sched == "vmm" { SHORT_RATIO } else { RATIO };
    let policy = "--deschedule random,rate=50,for=5ms --slice 50ms";
    let how = format!("--sched {sched} --pv {pv} --duration {}s {policy}", 200 + 2 * seconds);
    let ended = boot(&format!("stress={seconds}"), ratio, &how)?;
    let record = ended.json();
    assert_eq!(record["end"], "power-off", "{ended}");
    let vcpus = ratio * record["settings"]["cpus"].as_array().map_or(0, Vec::len) as u64;
    let spinlocks = if pv == "on" { "PV spinlocks enabled" } else { "PV spinlocks disabled" };
    // Emulated hosts are noisy.
    let ended = ended.with(FINISHED).says(&[&format!("{MARKER}: {vcpus} CPUs"), spinlocks]);
    for cpu in 0..vcpus {
        let turns = ended.err.lines().find_map(|line| line.strip_prefix(&format!("CPU {cpu}: ")));
        let turns = turns.and_then(|turns| turns.strip_suffix(" turns")?.parse::<u64>().ok());
        assert!(turns > Some(0), "CPU {cpu} did nothing: {ended}");
    }
    let figures = &record["figures"];
    let booted = figures["user_space_ns"].as_u64();
    let run = figures["until_end_ns"].as_u64().unwrap_or(0);
    assert!(booted.is_some_and(|ns| ns + u64::from(seconds) * 1_000_000_000 <= run), "{figures}");
    assert!(figures["injected"].as_u64() >= Some(u64::from(seconds)), "{figures}");
    let per_vcpu = record["per_vcpu"].as_array().map(Vec::as_slice).unwrap_or_default();
    let ran = |vcpu: &Value| vcpu["run_ns"].as_u64() > Some(0) && vcpu["waits"].as_u64() > Some(0);
    assert!(per_vcpu.len() as u64 == vcpus && per_vcpu.iter().all(ran), "{per_vcpu:?}");
    Ok(())
}

/// The example that compares them, with loops of a second, time to boot, and words for an emulator. Next to it are
/// kernel and initial RAM disk.
fn example() -> Result<String, Failed> {
    let (files, directory) = (self::directory()?, std::path::Path::new("/tmp/linux-pv"));
    std::fs::create_dir_all(directory)?;
    for (file, name) in [("vmlinuz", "vmlinuz"), ("loops", "initrd.cpio")] {
        std::fs::copy(format!("{files}/{file}"), directory.join(name))?;
    }
    let text = include_str!("../../../examples/kernels/pv.toml");
    let few = text.replace(":5", ":1").replace("window = \"3m\"", "window = \"10m\"");
    let words = format!("cmdline = \"{WORDS} run=");
    let file = directory.join("pv.toml");
    std::fs::write(&file, few.replace("cmdline = \"quiet run=", &words))?;
    Ok(file.display().to_string())
}

#[apply(trial)]
fn pv_on_pv_off_and_nopvspin_are_compared_by_guest_output() -> Check {
    let (file, results) = (example()?, "/tmp/linux-pv/results");
    let mut bench =
        started(&mut command(&format!("bench {file} --blocks 1 --set ratio=1 --output {results}")));
    // A machine that says nothing for minutes is taken for one that hangs.
    while bench.child().try_wait()?.is_none() {
        std::thread::sleep(Duration::from_secs(10));
        println!("it runs");
    }
    bench.ended().with(FINISHED);
    let columns = ["pv/nopvspin", "page-loop", "pages/s", "A/A pair (nopvspin)", "pv/nopvspin, futex"];
    finished(&format!("report {results}")).prints(&columns);
    let records = records(results);
    assert_eq!(records.len(), 4);
    for record in &records {
        for loops in ["page-loop", "copy-loop", "futex-loop", "spin-loop"] {
            assert!(record["figures"][loops].as_f64() > Some(0.0), "no {loops}: {record}");
        }
        let (arm, config) = (record["place"]["arm"].as_str(), &record["settings"]);
        let is_declined = config["command_line"].as_str().is_some_and(|words| words.ends_with(" nopvspin"));
        assert_eq!(is_declined, arm == Some("nopvspin"), "{config}");
        assert_eq!(config["pv"], arm != Some("no pv"), "{config}");
    }
    let manifest = json(format!("{results}/manifest.json"));
    assert_eq!(manifest["kernels"].as_array().map(Vec::len), Some(3), "{}", manifest["kernels"]);
}

#[apply(trial)]
fn a_panic_is_a_failure_of_the_guest() -> Check {
    let ended = boot("rdinit=/there/is/none root=none", RATIO, "--sched host --duration 120s")?;
    let ended = ended.with(&[5]).says(&["Kernel panic", "kernel panicked after"]);
    assert_eq!(ended.json()["end"], "panic", "{ended}");
}

#[apply(trial)]
fn a_guest_that_stays_is_stopped_when_its_time_is_over() -> Check {
    let record = boot("", RATIO, "--sched host --duration 2s")?.with(&[6]).json();
    assert_eq!(record["end"], "time-limit", "{record}");
    let figures = &record["figures"];
    assert!(figures["user_space_ns"].is_null() && record["why"]["user_space_ns"].is_string(), "{figures}");
}

#[apply(trial)]
fn a_workload_inside_runs_on_kvm_and_its_record_comes_back() -> Check {
    let kernel = directory()? + "/vmlinuz";
    let run = format!("run --format json --kernel {kernel} --vcpus 2 --sched host --append '{WORDS}'");
    let inside = "--workload-inside 'run --lock ticket --ratio 2 --duration 300ms'";
    let ended = finished(&format!("{run} --duration 200s {inside}"));
    let record = ended.json();
    let inside = &record["inside"];
    assert_eq!(record["end"], "power-off", "{ended}");
    assert_eq!(record["settings"]["engine"], "kvm", "{ended}");
    assert_eq!(inside["settings"]["vcpus"], 4, "{ended}");
    assert!(inside["figures"]["acquisitions"].as_u64() > Some(0), "{ended}");
}
