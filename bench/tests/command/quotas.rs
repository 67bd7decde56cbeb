//! Quotas that the host's kernel keeps: those of the control group in which the command is started.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::support::{
    Check, Ended, FINISHED, Failed, HALTKICK, apply, assert_complete, end_of, ends, shell, skip, trial, words,
};

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
    skip("this host is too busy to let a guest use up its quota")
}

#[apply(trial)]
fn a_quota_that_no_group_has_ends_with_advice() -> Check {
    // This test's own group may have one.
    if haltkick_vmm::inherited_quota().is_ok_and(|quota| quota.is_some()) {
        return skip("this test runs under a quota itself");
    }
    ends(4, &format!("{TWO} --duration 10ms")).says(&["haltkick: quota inherited: ", "systemd-run"]);
    Ok(())
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
