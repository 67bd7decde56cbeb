//! Quotas that the host's kernel keeps: kept in the run, and gone with the process, however it ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use haltkick_vmm::Known;
use rustix::process::Signal;
use serde_json::Value;

use crate::interrupted::signal;
use crate::support::{
    Skipped, Tested, assert_valid, code, command, eventually, haltkick, kvm, nulls_without_reason, refusal,
    skip, stderr, stdout, trials,
};

trials![
    the_kernel_keeps_the_quota_of_threads_that_run_vcpus,
    the_kernel_keeps_the_quota_of_each_guest_on_kvm,
    a_group_goes_with_its_process_however_that_ends,
    quotas_that_the_kernel_cannot_keep_are_refused_in_a_line,
    a_host_that_gives_no_control_group_is_said_to_lack_it,
];

/// Two vCPUs that would use two pCPUs.
const TWO: [&str; 11] = [
    "run",
    "--sched",
    "host",
    "--vcpus",
    "2",
    "--lock",
    "none",
    "--quota",
    "20ms/40ms",
    "--no-ideal",
    "--format",
];

/// The directory of the own control group, in which those of guests are made. Found once, for that removes leftovers.
fn groups() -> Result<&'static Path, Skipped> {
    static FOLDER: LazyLock<Known<PathBuf>> = LazyLock::new(haltkick_vmm::control_groups);
    FOLDER.as_deref().or_else(|why| skip(format_args!("control groups: {why}")))
}

/// The groups of process `process`.
fn groups_of(process: u32) -> Result<usize, Skipped> {
    let prefix = format!("haltkick-{process}-");
    let entries = fs::read_dir(groups()?).expect("the own group can be listed").flatten();
    Ok(entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix)).count())
}

/// Runs the command, and looks whether it has left a group behind.
fn leaves_none(command: &mut Command) -> Result<Output, Skipped> {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it can be started");
    let process = child.id();
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(groups_of(process)?, 0, "{}", stderr(&output));
    Ok(output)
}

/// The share of the window that vCPUs ran for, in pCPUs.
fn share(record: &Value) -> f64 {
    let vcpus = record["per_vcpu"].as_array().expect("vCPUs");
    let ran: f64 = vcpus.iter().filter_map(|vcpu| vcpu["run_ns"].as_f64()).sum();
    ran / record["timing"]["window_ns"].as_f64().expect("a window")
}

/// Whether a guest of two vCPUs used up its quota of `run_ms` in each `period_ms`. If so, it must have had that time and no more.
fn used_up(record: &Value, run_ms: f64, period_ms: f64) -> bool {
    let throttled = &record["throttled"];
    let count = |name: &str| throttled[name].as_u64().unwrap_or_else(|| panic!("{name}: {throttled}"));
    assert!(throttled["times"].is_null() && throttled["holders"].is_null(), "{throttled}");
    assert!(count("throttled_periods") <= count("periods"), "{throttled}");
    let (share, quota) = (share(record), run_ms / period_ms);
    assert!(share < quota * 1.6, "{share} pCPUs: {throttled}");
    let window_ms = record["timing"]["window_ns"].as_f64().expect("a window") / 1e6;
    let at_least = count("throttled_periods") as f64 * run_ms / window_ms;
    assert!(count("throttled_periods") < 5 || share > at_least * 0.6, "{share} pCPUs: {throttled}");
    // A host that is too busy does not give it the quota; one that gives it all must count.
    assert!(share < quota * 0.95 || count("throttled_periods") > 0, "{share} pCPUs: {throttled}");
    share > quota * 0.6 && count("throttled_periods") > 0 && count("pcpu_ns") > 0
}

/// Runs in ever longer windows, until `is_enough`.
fn in_windows(mut is_enough: impl FnMut(&str) -> Result<bool, Skipped>) -> Tested {
    if haltkick_vmm::allowed_cpus().len() < 2 {
        return skip("two vCPUs need two pCPUs to use up more than their quota");
    }
    for window in ["300ms", "1s", "3s", "10s"] {
        if is_enough(window)? {
            return Ok(());
        }
    }
    skip("this host is too busy to let a guest use up its quota")
}

fn the_kernel_keeps_the_quota_of_threads_that_run_vcpus() -> Tested {
    groups()?;
    in_windows(|window| {
        let arguments = [&TWO[..], &["json", "--engine", "threads", "--duration", window]].concat();
        let output = leaves_none(&mut command(&arguments))?;
        assert!([0, 7].contains(&code(&output)), "{}", stderr(&output));
        let record: Value = serde_json::from_str(&stdout(&output)).expect("a record");
        assert_valid("run", &record);
        assert_eq!(nulls_without_reason(&record), Vec::<String>::new());
        Ok(used_up(&record, 20.0, 40.0))
    })
}

fn the_kernel_keeps_the_quota_of_each_guest_on_kvm() -> Tested {
    kvm()?;
    groups()?;
    in_windows(|window| {
        let run = ["run", "--sched", "host", "--lock", "none", "--no-ideal", "--duration", window];
        let vms = ["--vm", "vcpus=2,quota=4ms/20ms", "--vm", "vcpus=1", "--format", "json"];
        let output = leaves_none(&mut command(&[&run[..], &vms].concat()))?;
        assert!([0, 7].contains(&code(&output)), "{}", stderr(&output));
        let text = stdout(&output);
        let records = serde_json::Deserializer::from_str(&text).into_iter();
        let records: Vec<Value> = records.map(|record| record.expect("records")).collect();
        let [limited, free] = &records[..] else { panic!("{text}") };
        assert_eq!(free["why"]["throttled"], "the guest had no quota");
        // More than the other guest's quota, from the same process.
        Ok(used_up(limited, 4.0, 20.0) && share(free) > 0.35)
    })
}

fn a_group_goes_with_its_process_however_that_ends() -> Tested {
    groups()?;
    let run = |more: &[&str]| command(&[&TWO[..], &["json", "--engine", "threads"], more].concat());
    // The guest fails.
    let output = leaves_none(&mut run(&["--workload", "selftest-panic", "--duration", "50ms"]))?;
    assert_eq!(code(&output), 5, "{}", stderr(&output));
    // The run is refused.
    let output = leaves_none(&mut run(&["--workload", "none-of-this-name"]))?;
    assert_eq!(code(&output), 2, "{}", stderr(&output));
    let in_the_midst = |ends_with| -> Result<(u32, Option<i32>), Skipped> {
        let folder = groups()?;
        let mut child = run(&["--duration", "60s"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("haltkick can be started");
        let process = child.id();
        eventually("a thread under its quota", || {
            let tasks = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
            let prefix = format!("haltkick-{process}-");
            let mut own = tasks.filter(|path| path.to_string_lossy().contains(&prefix));
            let threads = own.find_map(|path| {
                ["tasks", "cgroup.threads"].iter().find_map(|name| fs::read_to_string(path.join(name)).ok())
            });
            threads
                .filter(|threads| !threads.is_empty() && !threads.lines().any(|of| of == process.to_string()))
        });
        // Late enough for the handler of signals.
        std::thread::sleep(Duration::from_millis(300));
        signal(&child, ends_with);
        Ok((process, child.wait().expect("it ends").code()))
    };
    let (process, code) = in_the_midst(Signal::INT)?;
    assert_eq!((code, groups_of(process)?), (Some(130), 0), "Ctrl-C");
    let (process, code) = in_the_midst(Signal::KILL)?;
    assert_eq!((code, groups_of(process)?), (None, 1), "a killed process removes nothing");
    // The next run does; the kernel may still be at the threads.
    eventually("no group of a killed process", || {
        let next = run(&["--duration", "10ms"]).output().expect("haltkick can be started");
        assert!([0, 7].contains(&self::code(&next)), "{}", stderr(&next));
        (groups_of(process).ok()? == 0).then_some(())
    });
    Ok(())
}

fn quotas_that_the_kernel_cannot_keep_are_refused_in_a_line() {
    let host = ["run", "--sched", "host", "--engine", "threads", "--quota"];
    for (more, says) in [
        (&["500us/1ms"][..], "--quota: under sched host the kernel takes 1ms at least"),
        (&["1ms/900us"], "--quota: under sched host the kernel takes 1ms at least"),
        (&["1000.5us/2ms"], "--quota: under sched host the kernel counts in whole microseconds"),
        (&["1ms/2s"], "--quota: a period of 2s is out of range"),
        (&["1ms/2ms", "--engine", "qemu"], "--quota: QEMU's vCPUs have none: use engine kvm"),
        (
            &["1ms/2ms", "--engine", "sim", "--machine", "skylake-8s", "--host", "linux-6.12"],
            "--quota: the model of a host has none: use sched vmm",
        ),
    ] {
        let arguments = match more {
            [_, _, ..] => [&["run", "--sched", "host", "--quota"], more].concat(),
            _ => [&host[..], more].concat(),
        };
        let said = refusal(&arguments);
        assert!(said.contains(says) && said.lines().count() == 1, "{said}");
    }
}

fn a_host_that_gives_no_control_group_is_said_to_lack_it() -> Tested {
    groups()?;
    let run = [&TWO[..], &["json", "--engine", "threads"]].concat();
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=mkdir,mkdirat", "-e"]);
    command.args(["inject=mkdir,mkdirat:error=EACCES", env!("CARGO_BIN_EXE_haltkick")]);
    let output = match command.args(run).output() {
        Ok(output) => output,
        Err(error) => return skip(format_args!("strace: {error}")),
    };
    let said = stderr(&output);
    assert_eq!(code(&output), 4, "{said}");
    assert!(
        said.starts_with("haltkick: quota: sched host needs a control group of its own: mkdir "),
        "{said}"
    );
    assert!(
        said.contains("Permission denied (os error 13); run as root") && said.lines().count() == 1,
        "{said}"
    );
    // Under the VMM's scheduler none is needed.
    let own = ["run", "--sched", "vmm", "--engine", "threads", "--quota", "1ms/2ms", "--duration", "10ms"];
    let output = haltkick(&[&own[..], &["--no-ideal"]].concat());
    assert!([0, 7].contains(&code(&output)), "{}", stderr(&output));
    Ok(())
}
