//! Faults of the host: each system call that the command makes fails once, or again and again, as it may fail on a host that is
//! out of something.
//!
//! The command ends by itself with a documented exit code and one line that says what failed, or does without what it did not
//! get; no file is half written. With HALTKICK_FAULTS=first each kind of call fails at its first and at its last time, with the first of
//! its errors; HALTKICK_FAULTS=all tries all errors, and times between (`just faults`). Without it nothing is tried: a
//! busy host makes launches long, and some fail.

mod calls;
mod judge;
mod launcher;
mod table;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Completion, Failed, Trial};

use calls::{Call, watched};
use launcher::{Fault, Launched, Times, launch};
use table::Table;

/// An experiment of one arm on few vCPUs: each system call that it makes is made to fail in a launch of its own.
const TINY: &str = r#"
format = 1
name = "tiny"
title = "A tiny experiment"
blocks = 1
[settings]
vcpus = 3
window = "5ms"
warmup = "1ms"
watchdog = "10s"
[[arm]]
name = "tas"
lock = "tas"
[control]
arm = "tas"
"#;

/// A command to try.
#[derive(Clone, Copy)]
struct Tried {
    name: &'static str,
    arguments: &'static [&'static str],
    /// It writes into a directory.
    writes: bool,
}

const SHORT: [&str; 8] = ["run", "--no-ideal", "--vcpus", "3", "--duration", "20ms", "--format", "json"];

const TRIED: [Tried; 3] = [
    Tried { name: "a_run_under_sched_vmm", arguments: &["--sched", "vmm"], writes: false },
    Tried { name: "a_run_under_sched_host", arguments: &["--sched", "host"], writes: false },
    Tried { name: "an_experiment", arguments: &[], writes: true },
];

impl Tried {
    /// The command, in an empty directory of its own.
    fn command(self, directory: &Path) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_haltkick"));
        command.current_dir(directory).env("RUST_BACKTRACE", "0");
        if self.writes {
            fs::write(directory.join("tiny.toml"), TINY).expect("the scratch directory can be written");
            command.args(["bench", "tiny.toml", "--output", "results"]);
        } else {
            command.args(SHORT).args(self.arguments);
        }
        command
    }

    fn launch(self, fault: Option<Fault>) -> (Launched, PathBuf) {
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("faults").join(self.name);
        _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).expect("a scratch directory");
        (launch(self.command(&directory), &directory, fault), directory)
    }

    fn test(self) -> Result<(), Failed> {
        let (whole, directory) = self.launch(None);
        judge::undisturbed(&whole, &directory, self.writes)?;
        let (mut complaints, mut table) = (Vec::new(), Table::default());
        let (mut launched, mut had_an_effect) = (0_u32, 0_u32);
        let faults = faults(&whole.made);
        for fault in faults.iter().copied() {
            if launched % 50 == 0 {
                println!("{}: {launched} of {} launches", self.name, faults.len());
            }
            let (disturbed, directory) = self.launch(Some(fault));
            launched += 1;
            had_an_effect += u32::from(disturbed.code() != whole.code());
            table.note(fault, &disturbed);
            if let Err(complaint) = judge::disturbed(&disturbed, &directory, self.writes, fault) {
                println!("{fault}: {complaint}");
                complaints.push(format!("{fault}: {complaint}"));
            }
        }
        println!("{}: {launched} launches, {had_an_effect} ended otherwise\n{table}", self.name);
        if had_an_effect == 0 {
            complaints.push("no fault had an effect: nothing was tried".into());
        }
        if complaints.is_empty() { Ok(()) } else { Err(complaints.join("\n").into()) }
    }
}

/// Returns the faults to try of calls that were made this often.
fn faults(made: &BTreeMap<Call, u64>) -> Vec<Fault> {
    let all = std::env::var("HALTKICK_FAULTS").is_ok_and(|which| which == "all");
    let mut faults = Vec::new();
    for (&call, &count) in made {
        let errors = call.errors();
        let mut times = vec![1, count];
        if all {
            times.extend([2, 3, count / 4, count / 2, count.saturating_sub(1)]);
        }
        times.retain(|time| (1..=count).contains(time));
        times.sort_unstable();
        times.dedup();
        for error in errors.iter().take(if all { usize::MAX } else { 1 }) {
            faults.extend(times.iter().map(|&time| Fault { call, times: Times::Only(time), error: *error }));
        }
        // A storm: every other call, over and over.
        if errors.contains(&libc::EINTR) {
            faults.push(Fault { call, times: Times::EveryOther, error: libc::EINTR });
        }
    }
    faults
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Each counts the calls of a command, which shall not depend on what else runs more than it must.
    arguments.test_threads = Some(1);
    let missing = missing();
    let trials = TRIED.into_iter().map(|tried| {
        let missing = missing.clone();
        let title = format!("{}_survives_each_system_call_that_fails", tried.name);
        Trial::ignorable_test(title, move || match missing {
            Some(reason) => Ok(Completion::ignored_with(reason)),
            None => tried.test().map(|()| Completion::Completed),
        })
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

/// Returns the feature that this host lacks for these tests.
fn missing() -> Option<String> {
    if std::env::var_os("HALTKICK_FAULTS").is_none() {
        return Some("HALTKICK_FAULTS is not set; `just faults` sets it".into());
    }
    if let Err(error) = fs::OpenOptions::new().read(true).write(true).open("/dev/kvm") {
        return Some(format!("/dev/kvm: {error}"));
    }
    launcher::supported(&watched()).err().map(|error| format!("seccomp's notifications: {error}"))
}
