//! Quotas that the host's kernel keeps: those of the control group in which the command is started.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

use crate::support::{
    Check, Failed, apply, assert_valid, code, command, nulls_without_reason, refusal, skip, stderr, stdout,
    trial,
};

/// A control group of the test's own, which ends with it.
struct Group {
    folder: PathBuf,
    is_one: bool,
}

impl Group {
    /// A group whose files `controller` has, in the hierarchy of version 1 or 2.
    fn new(controller: &str) -> Result<Self, Failed> {
        let name = format!("haltkick-test-{controller}-{}", std::process::id());
        for (root, is_one) in
            [(format!("/sys/fs/cgroup/{controller}"), true), ("/sys/fs/cgroup".into(), false)]
        {
            let folder = PathBuf::from(root).join(&name);
            if fs::create_dir(&folder).is_err() {
                continue;
            }
            let group = Self { folder, is_one };
            let file = match (controller, is_one) {
                ("cpu", true) => "cpu.cfs_quota_us",
                ("cpu", false) => "cpu.max",
                (_, true) => "memory.limit_in_bytes",
                (_, false) => "memory.max",
            };
            if group.folder.join(file).exists() {
                return Ok(group);
            }
        }
        skip(format_args!("no control group for {controller} can be made here"))
    }

    fn write(&self, [one, two]: [&str; 2], [in_one, in_two]: [&str; 2]) {
        let (name, text) = if self.is_one { (one, in_one) } else { (two, in_two) };
        if !name.is_empty() {
            fs::write(self.folder.join(name), text).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }

    /// Runs the command in it.
    fn run(&self, command: &Command) -> Output {
        let mut within = Command::new("sh");
        within.args(["-c", "echo $$ >\"$0/cgroup.procs\"; exec \"$@\""]).arg(&self.folder);
        within.arg(command.get_program()).args(command.get_args()).output().expect("it can be started")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        _ = fs::remove_dir(&self.folder);
    }
}

/// Two vCPUs that would use two pCPUs.
fn two(more: &str) -> Command {
    let run =
        "run --sched host --engine threads --vcpus 2 --lock none --no-ideal --format json --quota inherited";
    command(&run.split(' ').chain(more.split(' ')).collect::<Vec<_>>())
}

#[apply(trial)]
fn the_quota_of_the_own_control_group_is_read_and_counted() -> Check {
    if haltkick_vmm::allowed_cpus().len() < 2 {
        return skip("two vCPUs need two pCPUs to use up more than their quota");
    }
    let group = Group::new("cpu")?;
    group.write(["cpu.cfs_period_us", ""], ["40000", ""]);
    group.write(["cpu.cfs_quota_us", "cpu.max"], ["20000", "20000 40000"]);
    let doctor = group.run(&command(&["doctor"]));
    assert!(stdout(&doctor).contains("20000 40000"), "{}", stdout(&doctor));
    // A host that is busy may not give it its quota in a short window.
    for window in ["300ms", "1s", "3s", "10s"] {
        let output = group.run(&two(&format!("--duration {window}")));
        assert!([0, 7].contains(&code(&output)), "{}", stderr(&output));
        let record: Value = serde_json::from_str(&stdout(&output)).expect("a record");
        assert_valid("run", &record);
        assert_eq!(nulls_without_reason(&record), Vec::<String>::new());
        assert_eq!(record["settings"]["quota"], "inherited");
        let figures = &record["figures"];
        let count = |name: &str| figures[name].as_u64().unwrap_or_else(|| panic!("{name}: {figures}"));
        let throttled = count("throttled_periods");
        assert!(throttled <= count("throttled_of_periods"), "{figures}");
        if throttled > 0 && count("throttled_pcpu_ns") > 0 {
            return Ok(());
        }
    }
    skip("this host is too busy to let a guest use up its quota")
}

#[apply(trial)]
fn quotas_that_the_kernel_does_not_keep_are_refused_in_a_line() -> Check {
    for (more, says) in [
        (
            "--sched host --quota 20ms/10ms",
            "-p CPUQuota=200% -p CPUQuotaPeriodSec=10ms haltkick ...`, with --quota inherited",
        ),
        ("--sched vmm --quota inherited", "only under sched host: use that"),
        ("--sched host --quota 1ms/2ms --engine qemu", "--quota: QEMU's vCPUs have none: use engine kvm"),
        (
            "--sched host --quota inherited --engine sim --machine skylake-8s --host linux-6.12",
            "--quota: the model of a host has none: use sched vmm",
        ),
    ] {
        let said = refusal(&["run"].into_iter().chain(more.split(' ')).collect::<Vec<_>>());
        assert!(said.contains(says) && said.lines().count() == 1, "{said}");
    }
    // This test's own group may have one.
    if haltkick_vmm::inherited_quota().is_ok_and(|quota| quota.is_some()) {
        return skip("this test runs under a quota itself");
    }
    let output = two("--duration 10ms").output().expect("it can be started");
    let said = stderr(&output);
    assert_eq!(code(&output), 4, "{said}");
    assert!(said.starts_with("haltkick: quota inherited: ") && said.contains("systemd-run"), "{said}");
    Ok(())
}

/// Whether a run with too little memory said so: it ended with 0 or 7, or with 2 or 4 and a word of the limit.
fn assert_told(output: &Output, what: &str) -> bool {
    let said = stderr(output);
    let told =
        [2, 4].contains(&code(output)) && said.lines().last().is_some_and(|said| said.contains("memory.max"));
    assert!(told || [0, 7].contains(&code(output)), "{what}: {:?}: {said}", output.status);
    told
}

#[apply(trial)]
fn memory_that_a_control_group_does_not_allow_is_named() -> Check {
    let group = Group::new("memory")?;
    let mut told = 0;
    for (mib, vcpus, engine) in [
        (16, 64, "kvm"),
        (24, 64, "kvm"),
        (40, 64, "kvm"),
        (64, 1000, "kvm"),
        (24, 1000, "threads"),
        (24, 300, "sim"),
    ] {
        if engine == "kvm" && crate::support::kvm().is_err() {
            continue;
        }
        let bytes = (mib << 20).to_string();
        group.write(["memory.limit_in_bytes", "memory.max"], [&bytes, &bytes]);
        let machine = if engine == "sim" { " --machine skylake-8s" } else { "" };
        let run = format!(
            "run --engine {engine}{machine} --vcpus {vcpus} --cpus 0 --lock ticket --duration 50ms --no-ideal"
        );
        let output = group.run(&command(&run.split(' ').collect::<Vec<_>>()));
        told += u32::from(assert_told(&output, &format!("{mib} MiB, {vcpus} vCPUs, {engine}")));
    }
    assert!(told > 0);
    Ok(())
}

#[apply(trial)]
fn memory_that_the_address_space_does_not_allow_is_named() {
    let mut told = 0;
    for kib in [60_000, 80_000, 100_000, 120_000, 150_000] {
        for engine in ["sim --machine skylake-8s --cpus 0-63", "threads"] {
            let run = format!("run --engine {engine} --vcpus 64 --lock ticket --window 1ms --no-ideal");
            let mut command = Command::new("sh");
            let limited = format!("ulimit -v {kib} && exec {} {run}", env!("CARGO_BIN_EXE_haltkick"));
            let output = command.args(["-c", &limited]).output().expect("sh can be started");
            told += u32::from(assert_told(&output, &format!("{kib} KiB, {engine}")));
        }
    }
    assert!(told > 0);
}
