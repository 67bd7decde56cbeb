//! The command as its users meet it: exit codes, messages, files.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn haltkick(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_haltkick")).args(arguments).output().expect("haltkick can be started")
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("haltkick ends by itself")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("standard output is text")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("standard error is text")
}

/// A directory of this test's own, empty.
fn scratch(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("a scratch directory");
    path
}

/// The one line on stderr with which the command refuses `arguments`, exit code 2.
fn refusal(arguments: &[&str]) -> String {
    let output = haltkick(arguments);
    assert_eq!(code(&output), 2, "{arguments:?}: {}", stderr(&output));
    assert_eq!(stdout(&output), "", "{arguments:?} wrote data");
    stderr(&output)
}

#[test]
fn impossible_runs_are_refused_in_one_line_that_says_what_to_do() {
    for (arguments, expected) in [
        (&["--vcpus", "0"][..], "haltkick: --vcpus: 0 is out of range: 1 to 1024\n"),
        (&["--ratio", "0"], "haltkick: --ratio: 0 is out of range: 1 to 1024\n"),
        (&["--vcpus", "1025"], "haltkick: --vcpus: 1025 is out of range: 1 to 1024\n"),
        (&["--lock", "tikcet"], "haltkick: --lock: unknown lock 'tikcet': did you mean 'ticket'?\n"),
        (
            &["--workload", "critical"],
            "haltkick: --workload: unknown workload 'critical': did you mean 'critical-section'?\n",
        ),
        (&["--slice", "10us"], "haltkick: --slice: a slice of 10us is out of range: 50us to 100ms\n"),
        (&["--hold", "2s"], "haltkick: --hold: 2s is out of range: 1s at most\n"),
        (
            &["--vm", "name=a", "--vm", "name=a"],
            "haltkick: two guests are called `a`: give each a name of its own\n",
        ),
        (
            &["--vm", "vcpus=600", "--vm", "vcpus=600"],
            "haltkick: the guests have 1200 vCPUs together, and a run has 1024 at most: use fewer\n",
        ),
        (
            &["--work", "1s"],
            "haltkick: --work: workload 'critical-section' has no such thing: use workload mixed\n",
        ),
        (
            &["--workload", "mixed", "--nested-one-in", "2"],
            "haltkick: --nested-one-in: nested sections need a second lock: use locks 2 or more\n",
        ),
        (&["--locks", "0"], "haltkick: --locks: 0 is out of range: 1 to 256\n"),
        (
            &["--lock", "none", "--deschedule", "holder"],
            "haltkick: --deschedule: nobody holds or awaits lock 'none': deschedule random vCPUs, or take another lock\n",
        ),
        (
            &["--workload", "hand-off", "--pv", "on", "--deschedule", "holder"],
            "haltkick: --deschedule: nobody holds or awaits a lock in workload 'hand-off': deschedule random vCPUs, \
             or use one of critical-section, mixed, copy-256, copy-1024, copy-4096, grant-single, grant-split, \
             grant-cleaned, grant-lists, grant-per-cpu, grant-fair, rwlock-unfair, rwlock-fair, rwlock-per-cpu, \
             rwlock-per-cpu-fair, fault-map-touch, fault-many, fault-read-mostly, fault-private\n",
        ),
        (&["--grace", "2ms"], "haltkick: --grace: 2ms is out of range: a slice, 1ms, at most\n"),
        (
            &["--grace", "50us", "--sched", "host"],
            "haltkick: --grace: only the VMM's own scheduler can grant it: use --sched vmm\n",
        ),
        (&["--deschedule", "random,for=1m"], "haltkick: --deschedule: for=60s is out of range: 1us to 10s\n"),
        (
            &["--deschedule", "holder,at=handed-over"],
            "haltkick: --deschedule: lock 'qspinlock' has no points: use qspinlock-points, ticket-points, owner-yield-points\n",
        ),
        (
            &["--lock", "qspinlock-points", "--deschedule", "waiter,at=handed-over"],
            "haltkick: --deschedule: no waiter passes 'handed-over': use holder or random, or another point\n",
        ),
        (&["--lock", "mutx"], "haltkick: --lock: unknown lock 'mutx': did you mean 'mutex'?\n"),
        (
            &["--lock", "mutex", "--layout", "flat"],
            "haltkick: --layout: lock 'mutex' has no layout 'flat': it has packed, split, cached, prev-cpu\n",
        ),
        (
            &["--lock", "tas", "--layout", "packed"],
            "haltkick: --layout: lock 'tas' has no layouts to choose from: leave it out, or take another lock\n",
        ),
        (
            &["--lock", "tsa", "--layout", "packed"],
            "haltkick: --lock: unknown lock 'tsa': did you mean 'tas'?\n",
        ),
    ] {
        let mut all = vec!["run"];
        all.extend(arguments);
        assert_eq!(refusal(&all), expected);
    }
}

#[test]
fn threads_need_no_kvm_and_the_record_names_the_engine() {
    let output =
        haltkick(&["run", "--engine", "threads", "--duration", "20ms", "--no-ideal", "--format", "json"]);
    assert!([0, 7].contains(&code(&output)), "{}", stderr(&output));
    let record: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(record["config"]["engine"], "threads");
    assert_eq!(record["config"]["ring"], 3);
    let message = refusal(&["run", "--perf-map"]);
    assert!(message.contains("only --engine threads"), "{message}");
}

/// An ELF file with one segment of `bytes` bytes at 16 MiB, which is where a kernel would be; nothing in it runs.
fn pretended_kernel(directory: &Path, bytes: u64) -> String {
    const LOADED_AT: u64 = 16 << 20;
    let header = |words: &[(usize, u64)]| {
        let mut header = vec![0_u8; 64 + 56];
        header[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        for (offset, word) in words {
            header[*offset..offset + 8].copy_from_slice(&word.to_le_bytes());
        }
        header
    };
    // Type and machine; version; entry; program headers at 64; one of 56 bytes. Segment: loadable, from 0, to there, this long.
    let at = [(16, 1 << 32 | 62 << 16 | 2), (24, LOADED_AT), (32, 64), (52, 1 << 32 | 56 << 16 | 64)];
    let segment = [(64, 7 << 32 | 1), (72, 0), (80, LOADED_AT), (88, LOADED_AT), (96, 120), (104, bytes)];
    let path = directory.join("vmlinux");
    std::fs::write(&path, header(&[&at[..], &segment].concat())).expect("a file");
    path.display().to_string()
}

#[test]
fn what_cannot_be_booted_as_linux_is_refused_in_one_line() {
    let directory = scratch("linux");
    let file = |name: &str, bytes: u64| {
        let path = directory.join(name);
        std::fs::File::create(&path).and_then(|file| file.set_len(bytes)).expect("a file");
        path.display().to_string()
    };
    let (text, huge) = (file("zeroes", 100_000), file("huge", 1 << 30));
    let kernel = pretended_kernel(&directory, 4 << 20);
    for (arguments, expected) in [
        (&["--kernel", "/no/such/kernel"][..], "/no/such/kernel: No such file"),
        (&["--kernel", "/"], "/: it is no file"),
        (&["--kernel", &text], "it is no Linux kernel: neither an ELF file (vmlinux) nor a bzImage"),
        (&["--kernel", &kernel, "--initrd", "/no/such/initrd"], "/no/such/initrd: No such file"),
        (
            &["--kernel", &kernel, "--initrd", &huge],
            "its 1024 MiB do not fit behind the kernel, which ends at 20 MiB of 256",
        ),
        (&["--kernel", &kernel, "--memory", "16MiB"], "cannot be loaded into 16 MiB"),
        (&["--kernel", &kernel, "--memory", "18MiB"], "unpacked it takes 20 MiB, and the guest has 18"),
        (
            &["--kernel", &kernel, "--memory", "1MiB"],
            "no Linux kernel runs in less than 16 MiB: use --memory",
        ),
        (&["--kernel", &kernel, "--memory", "4GiB"], "3072 MiB of memory at most, not 4096"),
        (&["--kernel", &kernel, "--vcpus", "255"], "254 at most"),
        (&["--kernel", &kernel, "--append", &"x".repeat(3000)], "--append: the command line has 3023 bytes"),
        (&["--kernel", &kernel, "--lock", "ticket"], "--lock is for our own guest"),
        (&["--kernel", &kernel, "--engine", "threads"], "--engine is for our own guest"),
        (&["--kernel", &kernel, "--trace", "x.pftrace"], "--trace is for our own guest"),
        (
            &["--kernel", &kernel, "--deschedule", "holder"],
            "nobody knows what a vCPU of a Linux guest is doing",
        ),
    ] {
        let mut all = vec!["run"];
        all.extend(arguments);
        let message = refusal(&all);
        assert!(message.contains(expected) && message.lines().count() == 1, "{arguments:?}: {message}");
    }
    for alone in ["--initrd", "--append", "--marker"] {
        let message = refusal(&["run", alone, "x"]);
        assert!(message.contains("--kernel <FILE>"), "{message}");
    }
}

/// A program that says it is QEMU and then does what `script` says.
fn pretended_qemu(name: &str, script: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt as _;
    let program = scratch(name).join("qemu");
    std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).expect("a script");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("a program");
    program
}

/// `haltkick run --engine qemu` with that program.
fn with_qemu(program: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_haltkick"));
    command.args(["run", "--engine", "qemu", "--accel", "tcg", "--no-ideal"]).args(arguments);
    command.env("HALTKICK_QEMU", program);
    command
}

#[test]
fn without_qemu_or_with_one_that_is_too_old_a_line_says_how_to_get_it() {
    let old = pretended_qemu("old-qemu", "echo 'QEMU emulator version 4.2.1'");
    for (program, reason) in [(Path::new("/no/such/qemu"), "cannot be run"), (old.as_path(), "5.0 is needed")]
    {
        let output = with_qemu(program, &[]).output().unwrap();
        let message = stderr(&output);
        assert_eq!((code(&output), message.lines().count()), (4, 1), "{message}");
        assert!(message.contains(reason) && message.contains("apt install qemu-system-x86"), "{message}");
        assert_eq!(stdout(&output), "");
    }
    let message = refusal(&["run", "--accel", "tcg"]);
    assert!(message.contains("use engine qemu"), "{message}");
}

#[test]
fn a_qemu_that_says_nothing_ends_with_its_time_limit_and_with_the_run() {
    let directory = scratch("silent-qemu-pid");
    let pid_file = directory.join("pid");
    let silent = pretended_qemu(
        "silent-qemu",
        &format!(
            "[ \"$1\" = --version ] && echo 'QEMU emulator version 7.2.0' && exit\n\
             echo $$ > {0}.new && mv {0}.new {0}\nexec sleep 1000",
            pid_file.display()
        ),
    );
    let started = || loop {
        match std::fs::read_to_string(&pid_file) {
            Ok(pid) => break pid.trim().to_owned(),
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(5)),
        }
    };
    // A process that was killed and is nobody's child any more may still be on its way out.
    let ends = |pid: &str| {
        let state = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            stat.rsplit_once(") ")?.1.chars().next()
        };
        while state().is_some_and(|state| state != 'Z') {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    };

    let output = with_qemu(&silent, &["--watchdog", "200ms", "--duration", "20ms"]).output().unwrap();
    assert_eq!(code(&output), 6, "{}", stderr(&output));
    assert!(stderr(&output).contains("no progress: QEMU's guest has not ended"), "{}", stderr(&output));
    ends(&started());

    use rustix::process::Signal;
    for (signal, expected) in [(Signal::INT, Some(130)), (Signal::KILL, None)] {
        std::fs::remove_file(&pid_file).unwrap();
        let mut run = with_qemu(&silent, &[]).stderr(std::process::Stdio::null()).spawn().unwrap();
        let pid = started();
        rustix::process::kill_process(rustix::process::Pid::from_child(&run), signal).unwrap();
        assert_eq!(run.wait().unwrap().code(), expected);
        ends(&pid);
    }
}

#[test]
fn the_record_of_an_emulated_run_has_the_same_schema_and_says_that_it_compares_with_nothing() {
    if haltkick_vmm::find_qemu().is_err() {
        eprintln!("skipped: there is no qemu-system-x86_64");
        return;
    }
    let program = Path::new("qemu-system-x86_64");
    let arguments = ["--vcpus", "4", "--lock", "qspinlock", "--pv", "on", "--duration", "50ms"];
    let output = with_qemu(program, &[&arguments[..], &["--format", "json"]].concat()).output().unwrap();
    assert_eq!(code(&output), 7, "{}", stderr(&output));
    let record: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    let schema: serde_json::Value =
        serde_json::from_str(&stdout(&haltkick(&["schema", "run"]))).expect("a schema");
    let problems: Vec<_> =
        jsonschema::validator_for(&schema).unwrap().iter_errors(&record).map(|e| e.to_string()).collect();
    assert_eq!(problems, Vec::<String>::new());
    assert_eq!(record["config"]["engine"], "qemu-tcg");
    assert_eq!(record["trusted"], false);
    assert!(record["warnings"].as_array().unwrap().iter().any(|warning| warning["code"] == "emulated"));
    let table = with_qemu(program, &arguments).output().unwrap();
    assert!(stdout(&table).contains("emulated, not comparable"), "{}", stdout(&table));
}

#[test]
fn a_window_lasts_as_many_turns_of_every_vcpu_as_it_is_told() {
    let cpu = an_allowed_cpu();
    let fixed =
        ["run", "--engine", "threads", "--vcpus", "4", "--cpus", &cpu, "--slice", "2ms", "--no-ideal"];
    let window_ns = |more: &[&str]| {
        let output = haltkick(&[&fixed, more, &["--format", "json"]].concat());
        let record: serde_json::Value = serde_json::from_str(&stdout(&output)).expect("a record");
        record["config"]["window_ns"].as_u64()
    };
    assert_eq!(window_ns(&["--duration", "10ms", "--min-turns", "5"]), Some(4 * 2 * 5 * 1_000_000));
    assert_eq!(window_ns(&["--duration", "50ms", "--min-turns", "5"]), Some(50_000_000));
}

#[test]
fn a_cpu_that_is_not_allowed_is_refused_with_the_list_of_those_that_are() {
    let message = refusal(&["run", "--cpus", "1000"]);
    assert!(
        message.contains("CPU 1000 does not exist or is not allowed here: this process may use "),
        "{message}"
    );
}

#[test]
fn values_that_cannot_be_read_are_refused_with_a_hint() {
    for (arguments, hint) in [
        (&["run", "--hold", "5"][..], "'5' has no unit: write 5ns, 5us, 5ms or 5s"),
        (&["run", "--hold", "5 lightyears"], "unknown unit 'lightyears'"),
        (&["run", "--cpus", "0-"], "'0-' is no CPU list: write it as 0,2-3"),
        (&["run", "--deschedule", "owner"], "unknown policy 'owner': there is holder, head, waiter, random"),
        (
            &["run", "--lock", "qspinlock-points", "--deschedule", "head,at=handed"],
            "unknown point 'handed': there is node-claimed, tail-published, pending-set, halted-published, handed-over,",
        ),
        (&["run", "--pv", "maybe"], "invalid value 'maybe'"),
        (&["run", "--vcpus", "4", "--ratio", "2"], "cannot be used with"),
        (&["bench", "overcommit", "--set", "hold"], "write KEY=VALUE"),
    ] {
        let message = refusal(arguments);
        assert!(message.contains(hint), "{arguments:?}: {message}");
    }
}

#[test]
fn an_unreadable_or_foreign_guest_is_refused() {
    let directory = scratch("foreign-guest");
    let foreign = directory.join("foreign");
    std::fs::write(&foreign, "no ELF at all").unwrap();
    for path in [foreign.to_str().unwrap(), "/does/not/exist"] {
        let message = refusal(&["run", "--guest", path]);
        assert!(message.starts_with(&format!("haltkick: guest image {path}: ")), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
}

#[test]
fn an_unknown_experiment_is_refused_with_the_nearest_name() {
    let message = refusal(&["bench", "overcomit"]);
    assert!(message.contains("unknown experiment 'overcomit': did you mean 'overcommit'?"), "{message}");
}

#[test]
fn a_bad_experiment_file_ends_with_3_and_names_line_and_column() {
    let path = scratch("bad-experiment").join("mine.toml");
    for (rest, complaint) in [
        (
            "[[arm]]\nname = \"a\"\nlock = \"tikcet\"\n",
            "6:1: arm 'a': lock: unknown lock 'tikcet': did you mean 'ticket'?",
        ),
        (
            "[settings]\ndeschedule = \"waiter\"\n[[arm]]\nname = \"a\"\nworkload = \"compute\"\n",
            "5:1: arm 'a': deschedule: nobody holds or awaits a lock in workload 'compute': deschedule random vCPUs, \
             or use one of critical-section",
        ),
    ] {
        std::fs::write(&path, format!("format = 1\nname = \"x\"\ntitle = \"X\"\n{rest}")).unwrap();
        let output = haltkick(&["bench", path.to_str().unwrap()]);
        assert_eq!(code(&output), 3);
        let expected = format!("haltkick: {}:{complaint}", path.display());
        let stderr = stderr(&output);
        assert!(stderr.starts_with(&expected) && stderr.lines().count() == 1, "{stderr}");
    }
}

#[test]
fn an_override_that_makes_cells_impossible_is_a_usage_error() {
    let message = refusal(&["bench", "overcommit", "--ratios", "1,4096"]);
    assert!(message.contains("ratio: 4096 is out of range"), "{message}");
    let message = refusal(&["bench", "overcommit", "--set", "hodl=1us"]);
    assert!(message.contains("unknown setting 'hodl': did you mean 'hold'?"), "{message}");
}

#[test]
fn a_printed_experiment_can_be_run_from_the_copy() {
    let printed = haltkick(&["bench", "overcommit", "--print"]);
    assert_eq!(code(&printed), 0);
    let copy = scratch("print").join("copy.toml");
    std::fs::write(&copy, stdout(&printed)).unwrap();
    let again = haltkick(&["bench", copy.to_str().unwrap(), "--print"]);
    assert_eq!(stdout(&again), stdout(&printed));
    assert!(stdout(&printed).contains("[[arm]]"));
}

#[test]
fn an_output_directory_that_cannot_be_written_is_refused_before_any_run() {
    let file = scratch("in-the-way").join("file");
    std::fs::write(&file, "").unwrap();
    for path in [file.to_str().unwrap(), "/proc/haltkick"] {
        let message = refusal(&["bench", "overcommit", "--output", path]);
        assert!(message.contains(&format!("output directory {path}: ")), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
    assert_eq!(std::fs::read(&file).unwrap(), b"");
}

#[test]
fn a_directory_that_holds_an_experiment_is_not_overwritten() {
    let directory = scratch("taken");
    std::fs::write(directory.join("manifest.json"), "precious").unwrap();
    let message = refusal(&["bench", "overcommit", "--output", directory.to_str().unwrap()]);
    assert!(message.contains("already holds an experiment"), "{message}");
    assert_eq!(std::fs::read_to_string(directory.join("manifest.json")).unwrap(), "precious");
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1);
}

#[test]
fn a_lock_without_a_form_is_refused_and_those_that_have_it_are_named() {
    let message = refusal(&["run", "--lock", "tas", "--pv", "on"]);
    let start =
        "haltkick: --pv: lock 'tas' has no paravirtual form: use pv off, or one of ticket, qspinlock, ";
    assert!(message.starts_with(start) && message.lines().count() == 1, "{message}");
    let message = refusal(&["run", "--lock", "qspinlock-v16", "--pv", "off"]);
    assert!(message.contains("no native form: use pv on, or one of none, tas, "), "{message}");
}

#[test]
fn a_site_is_shown_before_and_after_it_is_patched() {
    let native = stdout(&haltkick(&["disasm", "qspinlock"]));
    for part in [
        "pv off: ",
        "unlock site at critical_section::run",
        "as built",
        "call qword ptr",
        "mov byte ptr [rdi], 0x0",
    ] {
        assert!(native.contains(part), "{part}: {native}");
    }
    let paravirt = stdout(&haltkick(&["disasm", "qspinlock", "--pv", "on"]));
    assert!(paravirt.contains("call calls::unlock::<QspinlockParavirt>"), "{paravirt}");
    let sites = |arguments: &[&str]| stdout(&haltkick(arguments)).matches(" site at ").count();
    assert!(sites(&["disasm", "mcs", "--all"]) > sites(&["disasm", "mcs"]));
    let closure = stdout(&haltkick(&["disasm", "mcslock"]));
    assert!(closure.contains("no call site"), "{closure}");
    assert!(refusal(&["disasm", "qspinlok"]).contains("did you mean 'qspinlock'"));
    assert!(refusal(&["disasm", "tas", "--pv", "on"]).contains("no paravirtual form"));
    let foreign = scratch("disasm").join("foreign");
    std::fs::write(&foreign, "no image").expect("a file");
    let foreign = foreign.to_str().expect("a path in UTF-8");
    assert!(refusal(&["disasm", "tas", "--guest", foreign]).contains("not an ELF file"));
}

#[test]
fn lists_name_what_there_is() {
    let locks = stdout(&haltkick(&["list", "locks"]));
    for lock in ["none", "tas", "ticket", "mcs", "qspinlock"] {
        assert!(locks.lines().any(|line| line.starts_with(lock)), "{lock} is not in:\n{locks}");
    }
    let layouts: Vec<_> = locks.lines().filter(|line| line.starts_with("mutex")).collect();
    assert_eq!(layouts.len(), 1, "a lock in several layouts is listed once:\n{locks}");
    assert!(layouts[0].ends_with("--layout packed, split, cached, prev-cpu"), "{layouts:?}");
    assert!(stdout(&haltkick(&["list", "workloads"])).contains("critical-section"));
    assert!(stdout(&haltkick(&["list", "experiments"])).starts_with("overcommit"));
}

#[test]
fn help_documents_every_exit_code() {
    let help = stdout(&haltkick(&["--help"]));
    for code in [
        "0  done",
        "2  usage",
        "3  bad experiment",
        "4  the host",
        "5  the guest",
        "6  no progress",
        "7  finished",
        "8  compare",
        "130  interrupted",
    ] {
        assert!(help.contains(code), "{code} is not in:\n{help}");
    }
}

#[test]
fn every_line_of_help_fits_100_columns() {
    for arguments in [
        &["--help"][..],
        &["run", "--help"],
        &["bench", "--help"],
        &["doctor", "--help"],
        &["list", "--help"],
    ] {
        let help = stdout(&haltkick(arguments));
        let long = help.lines().find(|line| line.chars().count() > 100);
        assert_eq!(long, None, "in the help of {arguments:?}");
    }
}

#[test]
fn completions_and_man_pages_come_from_the_same_definitions() {
    for shell in ["bash", "zsh", "fish"] {
        assert!(stdout(&haltkick(&["completions", shell])).contains("preempted-hint"), "{shell}");
    }
    let directory = scratch("man");
    assert_eq!(code(&haltkick(&["man", "--dir", directory.to_str().unwrap()])), 0);
    let page = std::fs::read_to_string(directory.join("haltkick-run.1")).unwrap();
    assert!(page.contains("spin\\-threshold"), "{page}");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let shell =
        format!("{} completions bash | head -1; exit ${{PIPESTATUS[0]}}", env!("CARGO_BIN_EXE_haltkick"));
    let output = Command::new("bash").args(["-c", &shell]).output().expect("bash can be started");
    assert_eq!(code(&output), 0, "{}", stderr(&output));
}

fn an_allowed_cpu() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    list.trim().split([',', '-']).next().unwrap().to_owned()
}

#[test]
fn the_tutorials_experiment_can_be_run_as_it_stands() {
    let tutorial = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/tutorial.md");
    let text = std::fs::read_to_string(tutorial).unwrap();
    let experiment = text.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let path = scratch("tutorial").join("slice.toml");
    std::fs::write(&path, experiment).unwrap();
    let output = haltkick(&["bench", path.to_str().unwrap(), "--cpus", &an_allowed_cpu(), "--list-cells"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    // Seven blocks of ten settings with two arms and a lock-free cell each, and the A/A pair.
    assert_eq!(stdout(&output).lines().count(), 7 * (10 * 3 + 1));
}
