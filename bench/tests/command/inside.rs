//! Workloads inside Linux guests: of a real kernel in QEMU's emulator, and of programs that say they are QEMU and lie.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::kernels::pretended_kernel;
use crate::qemu::pretended_qemu;
use crate::support::{
    Check, an_allowed_cpu, apply, assert_valid, code, command, finished, kvm, refusal, scratch, skip, stderr,
    stdout, trial,
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
    let kernel = a_kernel()?.display().to_string();
    let booted = || {
        command(&["run", "--kernel", &kernel, "--engine", "qemu-tcg", "--vcpus", "2"])
            .args(["--append", "quiet tsc=reliable no_timer_check mitigations=off", "--duration", "2m"])
            .args(["--workload-inside", "run --lock ticket --ratio 2 --duration 300ms --seed 7"])
            .args(["--format", "json"])
            .output()
            .expect("haltkick can be started")
    };
    // Ten seconds suffice. While compilers run, one kernel in thirty hangs in QEMU 7.2's emulator, before user space or with
    // an RCU stall, for want of a vCPU's timer. That is no fault of this program, and it does not come three times in a row.
    let hung = |output: &Output| stderr(output).contains("had not powered off");
    let output = (0..2).map(|_| booted()).find(|output| !hung(output)).unwrap_or_else(booted);
    assert_eq!(code(&output), 7, "an emulator's figures are not valid: {}", stderr(&output));
    let record: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_valid("run", &record);
    assert_valid("run", &record["inside"]);
    let inside = &record["inside"];
    assert_eq!((&record["settings"]["engine"], &record["end"]), (&"qemu-tcg".into(), &"power-off".into()));
    assert!(record["figures"]["user_space_ns"].as_u64() > Some(0), "{}", record["figures"]);
    let config = &inside["settings"];
    assert_eq!((&config["engine"], &config["sched"]), (&"threads".into(), &"host".into()));
    assert_eq!(
        (&config["lock"], &config["vcpus"], &config["seed"]),
        (&"ticket".into(), &4.into(), &7.into())
    );
    // It was that kernel, and not the one of this host.
    let here = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert!(inside["host"]["kernel"].is_string() && inside["host"]["kernel"] != here.trim(), "{inside}");
    assert!(inside["figures"]["acquisitions"].as_u64() > Some(0), "{}", inside["figures"]);
    assert!(
        record["figures"]["acquisitions_per_second"] == inside["figures"]["acquisitions_per_second"],
        "{}",
        record["figures"]
    );
    assert!(
        !stderr(&output).contains("haltkick-inside"),
        "its lines are not for people: {}",
        stderr(&output)
    );
    Ok(())
}

#[apply(trial)]
fn what_cannot_run_inside_is_refused_in_one_line() {
    let kernel = pretended_kernel(&scratch("inside-refused"), 4 << 20, &[]);
    let with = |more: &[&str]| refusal(&[&["run", "--kernel", &kernel], more].concat());
    let inside = "run --lock ticket";
    for (more, expected) in [
        (&["--workload-inside", ""][..], "--workload-inside: it begins with 'run'"),
        (&["--workload-inside", "bench overcommit"], "--workload-inside: it begins with 'run'"),
        (&["--workload-inside", "run --lock tickt"], "did you mean 'ticket'"),
        (&["--workload-inside", "run --cpus 5", "--vcpus", "2"], "--workload-inside: --cpus"),
        (&["--workload-inside", "run --trace x"], "unexpected argument '--trace'"),
        (&["--workload-inside", inside, "--lock", "ticket"], "put it into --workload-inside"),
        (&["--workload-inside", inside, "--engine", "threads"], "--engine is for our own guest"),
        (&["--workload-inside", inside, "--engine", "qemu", "--sched", "vmm"], "use --sched host"),
        (&["--engine", "qemu"], "use --workload-inside, or --engine kvm"),
    ] {
        let message = with(more);
        assert!(message.contains(expected) && message.lines().count() == 1, "{more:?}: {message}");
    }
    let message = with(&["--workload-inside", inside, "--initrd", "x"]);
    assert!(message.contains("cannot be used with '--initrd"), "{message}");
    let message = refusal(&["run", "--workload-inside", inside]);
    assert!(message.contains("--kernel <FILE>"), "{message}");
}

/// A run whose QEMU does what `script` says.
fn pretended(name: &str, script: &str) -> Output {
    let kernel = pretended_kernel(&scratch(&format!("{name}-kernel")), 4 << 20, &[]);
    let script = format!("[ \"$1\" = --version ] && echo 'QEMU emulator version 7.2.0' && exit\n{script}");
    command(&["run", "--kernel", &kernel, "--engine", "qemu", "--vcpus", "1", "--format", "json"])
        .args(["--workload-inside", "run --lock ticket", "--duration", "10s"])
        .env("HALTKICK_QEMU", pretended_qemu(name, &script))
        .output()
        .expect("haltkick can be started")
}

#[apply(trial)]
fn a_console_that_lies_ends_the_run_without_a_record() {
    let (begins, exit) = ("echo 'haltkick-inside: the record begins'", "echo 'haltkick-inside: exit code 0'");
    let ends = |bytes: u32| format!("echo 'haltkick-inside: the record ends after {bytes} bytes'");
    let flood = "yes 'haltkick-inside| xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' | head -c 40000000";
    for (name, script, reason) in [
        ("inside-silent", "true".to_owned(), "it did not say how it ended"),
        ("inside-twice", format!("{begins}; {begins}; {exit}"), "the record began twice"),
        ("inside-none", exit.to_owned(), "it printed no record"),
        ("inside-torn", format!("{begins}; {}; {exit}", ends(7)), "the record is not whole: 0 bytes"),
        ("inside-empty", format!("{begins}; {}; {exit}", ends(0)), "its record cannot be read: no JSON"),
        ("inside-huge", format!("{begins}; {flood}; {exit}"), "the record has more than 8 MiB"),
        ("inside-failed", "echo 'haltkick-inside: exit code 2'".to_owned(), "it ended with exit code 2"),
    ] {
        let output = pretended(name, &script);
        let said = stderr(&output);
        assert_eq!(code(&output), 5, "{name}: {said}");
        assert!(said.contains(&format!("the workload inside failed: {reason}")), "{name}: {said}");
        assert!(said.len() < 10_000, "{name}: {} bytes", said.len());
        let record: Value = serde_json::from_str(&stdout(&output)).unwrap();
        assert!(record["trusted"] == false && record["failure"].as_str().unwrap().contains(reason), "{name}");
        assert_eq!(said.matches("the workload inside failed").count(), 1, "{said}");
        assert!(record["inside"].is_null() && record["why"]["inside"].as_str().unwrap().contains(reason));
    }
    let output = pretended("inside-dead", "echo 'its reason' >&2; exit 3");
    assert!(code(&output) == 4 && stderr(&output).contains("its reason"), "{}", stderr(&output));
    let output = pretended("inside-panic", "echo 'Kernel panic - not syncing: so it goes'; exec sleep 1000");
    assert!(code(&output) == 5 && stderr(&output).contains("kernel panicked"), "{}", stderr(&output));
    let output = pretended("inside-stuck", "exec sleep 1000");
    assert!(code(&output) == 6 && stderr(&output).contains("had not powered off"), "{}", stderr(&output));
}

#[apply(trial)]
fn a_qemu_that_leaves_a_child_ends_the_run_and_the_child() {
    let noted = scratch("inside-child").join("child");
    // It keeps the console open.
    let output = pretended("inside-left", &format!("sleep 1000 & echo $! > {}", noted.display()));
    assert!(
        code(&output) == 5 && stderr(&output).contains("it did not say how it ended"),
        "{}",
        stderr(&output)
    );
    let child = std::fs::read_to_string(noted).unwrap();
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

#[apply(trial)]
fn a_kernel_that_switches_off_without_a_record_has_failed() -> Check {
    kvm()?;
    let code_off = [
        0x66, 0xba, 0x00, 0x06, // mov dx, 0x600
        0xb0, 0x34, // mov al, 1 << 5 | 5 << 2
        0xee, // out dx, al
        0xeb, 0xfe, // jmp to itself
    ];
    let kernel = pretended_kernel(&scratch("inside-off"), 4 << 20, &code_off);
    let output = command(&["run", "--kernel", &kernel, "--vcpus", "1", "--duration", "20s"])
        .args(["--workload-inside", "run --lock ticket"])
        .output()
        .expect("haltkick can be started");
    let said = stderr(&output);
    assert!(code(&output) == 5 && said.contains("it did not say how it ended"), "{}: {said}", code(&output));
    Ok(())
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
    let sim = ["run", "--engine", "sim", "--machine", "nehalem-2s", "--cpus", "0", "--vcpus", "2"];
    let output = finished(&[&sim[..], &["--duration", "5ms", "--no-ideal", "--format", "json"]].concat());
    let mut record: Value = serde_json::from_str(&stdout(&output)).unwrap();
    record["warnings"] = Value::Array(vec![]);
    let directory = scratch("inside-bisect");
    for (name, slowdown) in [("alike", 1), ("alike-too", 1), ("slower", 4)] {
        let place = directory.join(name);
        std::fs::create_dir_all(&place).unwrap();
        for kernel in ["old", "later"] {
            std::fs::create_dir_all(place.join(kernel)).unwrap();
            pretended_kernel(&place.join(kernel), 4 << 20, &[]);
            // Each run of a kernel takes the next of these, whose order looks random and is the same each time.
            for run in 0..RUNS {
                let seed = run + RUNS * (kernel.len() + name.len()) as u64;
                let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
                let less = if kernel == "later" { slowdown } else { 1 };
                let sections = (1000 + random % 1000) / less;
                std::fs::write(place.join(kernel).join(run.to_string()), console(&record, sections)).unwrap();
            }
        }
        let script = format!(
            "[ \"$1\" = --version ] && echo 'QEMU emulator version 7.2.0' && exit\n\
             case \"$*\" in *old/vmlinux*) k=old ;; *) k=later ;; esac\n\
             cd {}/$k; n=$(cat n 2>/dev/null || echo 0); echo $(((n + 1) % {RUNS})) > n; cat $n",
            place.display()
        );
        let vary = format!("kernel={0}/old/vmlinux,{0}/later/vmlinux", place.display());
        let output = command(&["bisect", &vary, "--engine", "qemu-kvm", "--vcpus", "1"])
            .args(["--cpus", &an_allowed_cpu(), "--workload-inside", "run --lock ticket", "--blocks", "8"])
            .args(["--of", "throughput"])
            .env("HALTKICK_QEMU", pretended_qemu(&format!("inside-bisect-{name}"), &script))
            .current_dir(&directory)
            .output()
            .expect("haltkick can be started");
        let said = format!("{name}: {}: {}{}", code(&output), stdout(&output), stderr(&output));
        // On a busy host no run is valid, and then nothing can be told.
        let is_unknown = code(&output) == 125 && stdout(&output).starts_with("cannot tell");
        let is_known = if slowdown > 1 { code(&output) == 1 } else { code(&output) == 0 };
        assert!(is_known || is_unknown, "{said}");
        eprintln!("{}", said.lines().next().unwrap_or_default());
    }
}
