//! Workloads inside Linux guests: of a real kernel in QEMU's emulator, and of programs that say they are QEMU and lie.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::kernels::pretended_kernel;
use crate::qemu::pretended_qemu;
use crate::support::{
    Check, Ended, an_allowed_cpu, apply, assert_valid, command, end_of, finished, haltkick, read, refuses,
    scratch, skip, trial, written,
};

/// The kernel that `bench/tests/nested/nested.sh setup` unpacks, or one of this host.
fn a_kernel() -> Result<PathBuf, crate::support::Failed> {
    let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/nested/kernel/vmlinuz");
    let installed = std::fs::read_dir("/boot").into_iter().flatten().flatten().map(|entry| entry.path());
    let installed = installed.filter(|path| path.to_string_lossy().starts_with("/boot/vmlinuz-"));
    let readable = |path: &PathBuf| std::fs::File::open(path).is_ok();
    match std::iter::once(unpacked).chain(installed).find(readable) {
        Some(path) => Ok(path),
        None => skip("no kernel to boot: bench/tests/nested/nested.sh setup gets one"),
    }
}

#[apply(trial)]
fn a_lock_runs_on_threads_of_a_real_kernel() -> Check {
    haltkick_vmm::find_qemu().or_else(skip)?;
    let line = format!(
        "run --kernel {} --engine qemu-tcg --vcpus 2 --duration 2m --format json \
         --append 'quiet tsc=reliable no_timer_check mitigations=off' \
         --workload-inside 'run --lock ticket --ratio 2 --duration 300ms --seed 7'",
        a_kernel()?.display()
    );
    // Ten seconds suffice. While compilers run, one kernel in thirty hangs in QEMU 7.2's emulator, before user space or with
    // an RCU stall, for want of a vCPU's timer. That is no fault of this program, and it does not come three times in a row.
    let hung = |ended: &Ended| ended.err.contains("had not powered off");
    let ended = (0..2).map(|_| haltkick(&line)).find(|ended| !hung(ended));
    // An emulator's figures are not valid.
    let ended = ended.unwrap_or_else(|| haltkick(&line)).with(&[7]);
    assert!(!ended.err.contains("haltkick-inside"), "its lines are not for people: {ended}");
    let record = ended.json();
    let inside = &record["inside"];
    assert_valid("run", &record);
    assert_valid("run", inside);
    for (value, expected) in [
        (&record["settings"]["engine"], Value::from("qemu-tcg")),
        (&record["end"], "power-off".into()),
        (&inside["settings"]["engine"], "threads".into()),
        (&inside["settings"]["sched"], "host".into()),
        (&inside["settings"]["lock"], "ticket".into()),
        (&inside["settings"]["vcpus"], 4.into()),
        (&inside["settings"]["seed"], 7.into()),
        (&record["figures"]["acquisitions_per_second"], inside["figures"]["acquisitions_per_second"].clone()),
    ] {
        assert_eq!(value, &expected, "{record:#}");
    }
    assert!(record["figures"]["user_space_ns"].as_u64() > Some(0), "{}", record["figures"]);
    assert!(inside["figures"]["acquisitions"].as_u64() > Some(0), "{}", inside["figures"]);
    // It was that kernel, and not the one of this host.
    let here = read("/proc/sys/kernel/osrelease");
    assert!(inside["host"]["kernel"].is_string() && inside["host"]["kernel"] != here.trim(), "{inside}");
    Ok(())
}

#[apply(trial)]
fn what_cannot_run_inside_is_refused_in_one_line() {
    let kernel = pretended_kernel(&scratch("inside-refused"), 4 << 20, &[]);
    let ticket = "--workload-inside 'run --lock ticket'";
    for (more, expected) in [
        ("--workload-inside 'run --lock tickt'", "did you mean 'ticket'"),
        ("--workload-inside 'run --cpus 5' --vcpus 2", "--workload-inside: --cpus"),
        (&format!("{ticket} --lock ticket"), "put it into --workload-inside"),
        (&format!("{ticket} --engine threads"), "--engine is for our own guest"),
        (&format!("{ticket} --engine qemu --sched vmm"), "use --sched host"),
        (&format!("{ticket} --initrd x"), "cannot be used with '--initrd"),
        ("--engine qemu", "use --workload-inside, or --engine kvm"),
    ] {
        refuses(&format!("run --kernel {kernel} {more}"), expected);
    }
    refuses(&format!("run {ticket}"), "--kernel <FILE>");
}

/// A run whose QEMU does what `script` says.
fn pretended(name: &str, script: &str) -> Ended {
    let kernel = pretended_kernel(&scratch(&format!("{name}-kernel")), 4 << 20, &[]);
    let run = format!("run --kernel {kernel} --engine qemu --vcpus 1 --duration 10s --format json");
    let mut run = command(&format!("{run} --workload-inside 'run --lock ticket'"));
    end_of(run.env("HALTKICK_QEMU", pretended_qemu(name, script)))
}

#[apply(trial)]
fn a_console_that_lies_ends_the_run_without_a_record() {
    let flood = "echo 'haltkick-inside: the record begins'; \
         yes 'haltkick-inside| xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' | head -c 40000000; \
         echo 'haltkick-inside: exit code 0'";
    // Other reasons are those of `measure::inside`.
    for (name, script, reason) in [
        ("inside-silent", "true", "it did not say how it ended"),
        ("inside-huge", flood, "the record has more than 8 MiB"),
        ("inside-failed", "echo 'haltkick-inside: exit code 2'", "it ended with exit code 2"),
    ] {
        let ended = pretended(name, script).with(&[5]);
        let ended = ended.says(&[&format!("the workload inside failed: {reason}")]);
        assert!(ended.err.len() < 10_000, "{name}: {} bytes", ended.err.len());
        assert_eq!(ended.err.matches("the workload inside failed").count(), 1, "{ended}");
        let record = ended.json();
        assert!(record["trusted"] == false && record["failure"].as_str().unwrap().contains(reason), "{name}");
        assert!(record["inside"].is_null() && record["why"]["inside"].as_str().unwrap().contains(reason));
    }
    let panics = "echo 'Kernel panic - not syncing: so it goes'; exec sleep 1000";
    for (name, script, code, reason) in [
        ("inside-dead", "echo 'its reason' >&2; exit 3", 4, "its reason"),
        ("inside-panic", panics, 5, "kernel panicked"),
        ("inside-stuck", "exec sleep 1000", 6, "had not powered off"),
    ] {
        pretended(name, script).with(&[code]).says(&[reason]);
    }
}

#[apply(trial)]
fn a_qemu_that_leaves_a_child_ends_the_run_and_the_child() {
    let noted = format!("{}/child", scratch("inside-child"));
    // It keeps the console open.
    let left = pretended("inside-left", &format!("sleep 1000 & echo $! > {noted}"));
    left.with(&[5]).says(&["it did not say how it ended"]);
    let child = read(noted);
    let state = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.trim())).ok()?;
        stat.rsplit(") ").next()?.chars().next().filter(|state| *state != 'Z')
    };
    let asked = Instant::now();
    while state().is_some() && asked.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(state(), None, "the child {child} is still there");
}

/// The console of a workload whose record is `record`, with as many sections in a second.
fn console(record: &Value, sections: u64) -> String {
    let mut record = record.clone();
    record["figures"]["acquisitions_per_second"] = (sections as f64).into();
    let record = record.to_string();
    let mut text = "haltkick-inside: the record begins\n".to_owned();
    for part in record.as_bytes().chunks(1000) {
        _ = writeln!(text, "haltkick-inside| {}", std::str::from_utf8(part).expect("a record in ASCII"));
    }
    _ = writeln!(text, "haltkick-inside: the record ends after {} bytes", record.len());
    text + "haltkick-inside: exit code 0\n"
}

/// The second kernel does as many sections as the first one, or a quarter; both vary by a factor of two.
#[apply(trial)]
fn noise_between_two_kernels_is_never_a_bad_commit() {
    const RUNS: u64 = 64;
    let sim = "run --engine sim --machine nehalem-2s --cpus 0 --vcpus 2 --duration 5ms";
    let mut record = finished(&format!("{sim} --no-ideal --format json")).json();
    record["warnings"] = Value::Array(vec![]);
    let directory = scratch("inside-bisect");
    for (name, slowdown) in [("alike", 1), ("alike-too", 1), ("slower", 4)] {
        let place = format!("{directory}/{name}");
        for kernel in ["old", "later"] {
            let of_kernel = format!("{place}/{kernel}");
            std::fs::create_dir_all(&of_kernel).unwrap();
            pretended_kernel(&of_kernel, 4 << 20, &[]);
            // Each run of a kernel takes the next of these, whose order looks random and is the same each time.
            for run in 0..RUNS {
                let seed = run + RUNS * (kernel.len() + name.len()) as u64;
                let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
                let less = if kernel == "later" { slowdown } else { 1 };
                let sections = (1000 + random % 1000) / less;
                written(format!("{of_kernel}/{run}"), console(&record, sections));
            }
        }
        let script = format!(
            "case \"$*\" in *old/vmlinux*) k=old ;; *) k=later ;; esac\n\
             cd {place}/$k; n=$(cat n 2>/dev/null || echo 0); echo $(((n + 1) % {RUNS})) > n; cat $n"
        );
        let mut bisect = command(&format!(
            "bisect kernel={place}/old/vmlinux,{place}/later/vmlinux --engine qemu-kvm --vcpus 1 --cpus {} \
             --workload-inside 'run --lock ticket' --blocks 8 --of throughput",
            an_allowed_cpu()
        ));
        bisect.env("HALTKICK_QEMU", pretended_qemu(&format!("inside-bisect-{name}"), &script));
        let ended = end_of(bisect.current_dir(&directory));
        // On a busy host no run is valid, and then nothing can be told.
        let is_unknown = ended.code == 125 && ended.out.starts_with("cannot tell");
        assert!(is_unknown || ended.code == i32::from(slowdown > 1), "{ended}");
        eprintln!("{name}: {}: {}", ended.code, ended.out.lines().next().unwrap_or_default());
    }
}
