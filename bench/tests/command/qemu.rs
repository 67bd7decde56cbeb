//! QEMU: absent, too old, silent, emulating.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Check, apply, assert_valid, code, eventually, scratch, skip, stderr, stdout, trial};

/// A program that says it is QEMU and then does what `script` says.
pub(crate) fn pretended_qemu(name: &str, script: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt as _;
    let program = scratch(name).join("qemu");
    std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).expect("a script");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("a program");
    program
}

/// `haltkick run --engine qemu` with that program.
pub(crate) fn with_qemu(program: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_haltkick"));
    command.args(["run", "--engine", "qemu-tcg", "--no-ideal"]).args(arguments);
    command.env("HALTKICK_QEMU", program);
    command
}

#[apply(trial)]
fn missing_or_too_old_qemu_ends_with_a_line_of_advice() {
    let old = pretended_qemu("old-qemu", "echo 'QEMU emulator version 4.2.1'");
    for (program, reason) in [(Path::new("/no/such/qemu"), "cannot be run"), (old.as_path(), "5.0 is needed")]
    {
        let output = with_qemu(program, &[]).output().unwrap();
        let message = stderr(&output);
        assert_eq!((code(&output), message.lines().count()), (4, 1), "{message}");
        assert!(message.contains(reason) && message.contains("apt install qemu-system-x86"), "{message}");
        assert_eq!(stdout(&output), "");
    }
}

#[apply(trial)]
fn a_qemu_that_prints_more_than_a_pipe_holds_does_not_stall() {
    let talkative = pretended_qemu(
        "talkative-qemu",
        "[ \"$1\" = --version ] && echo 'QEMU emulator version 7.2.0' && exit\n\
         printf 'its reason \\033[2J\\n' >&2; head -c 300000 /dev/zero | tr '\\0' x >&2; exit 3",
    );
    let output = with_qemu(&talkative, &["--watchdog", "20s", "--duration", "20ms"]).output().unwrap();
    let message = stderr(&output);
    assert_eq!(code(&output), 4, "{message}");
    assert!(message.contains("its reason") && !message.contains('\u{1b}'), "{message:?}");
}

#[apply(trial)]
fn a_silent_qemu_ends_with_its_time_limit_and_the_run() {
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
    let started =
        || eventually("QEMU is started", || Some(std::fs::read_to_string(&pid_file).ok()?.trim().to_owned()));
    // A killed process without a parent may still be on its way out.
    let ends = |pid: &str| {
        let state = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            stat.rsplit_once(") ")?.1.chars().next()
        };
        eventually("QEMU ends with the run", || state().is_none_or(|state| state == 'Z').then_some(()));
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

#[apply(trial)]
fn an_emulated_record_keeps_the_schema_and_says_it_is_incomparable() -> Check {
    let program = haltkick_vmm::find_qemu().or_else(skip)?;
    let program = Path::new(&program);
    let arguments = ["--vcpus", "4", "--lock", "qspinlock", "--pv", "on", "--duration", "50ms"];
    let output = with_qemu(program, &[&arguments[..], &["--format", "json"]].concat()).output().unwrap();
    assert_eq!(code(&output), 7, "{}", stderr(&output));
    let record: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_valid("run", &record);
    assert_eq!(record["settings"]["engine"], "qemu-tcg");
    assert_eq!(record["trusted"], false);
    assert!(record["warnings"].as_array().unwrap().iter().any(|warning| warning["code"] == "emulated"));
    let table = with_qemu(program, &arguments).output().unwrap();
    assert!(stdout(&table).contains("emulated, not comparable"), "{}", stdout(&table));
    Ok(())
}
