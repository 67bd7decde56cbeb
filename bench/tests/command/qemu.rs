//! QEMU: absent, too old, silent, emulating.

use std::process::Command;

use crate::support::{
    Check, HALTKICK, Signal, apply, assert_valid, end_of, eventually, is_warned, scratch, skip, started,
    trial, words, written,
};

/// A program that says it is a QEMU which is new enough, and then does what `script` says.
pub(crate) fn pretended_qemu(name: &str, script: &str) -> String {
    let says = "[ \"$1\" = --version ] && echo 'QEMU emulator version 7.2.0' && exit";
    program(name, &format!("{says}\n{script}"))
}

fn program(name: &str, script: &str) -> String {
    use std::os::unix::fs::PermissionsExt as _;
    let program = written(format!("{}/qemu", scratch(name)), format!("#!/bin/sh\n{script}\n"));
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("a program");
    program
}

/// `haltkick run --engine qemu` with that program.
pub(crate) fn with_qemu(program: &str, line: &str) -> Command {
    let mut command = Command::new(HALTKICK);
    command.args(words(&format!("run --engine qemu-tcg --no-ideal {line}"))).env("HALTKICK_QEMU", program);
    command
}

/// Waits for the end of a process. A killed one without a parent may still be on its way out.
pub(crate) fn wait_for_end(pid: &str) {
    let state = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.chars().next()
    };
    eventually("a process ends", || state().is_none_or(|state| state == 'Z').then_some(()));
}

#[apply(trial)]
fn missing_or_too_old_qemu_ends_with_a_line_of_advice() {
    let old = program("old-qemu", "echo 'QEMU emulator version 4.2.1'");
    for (program, reason) in [("/no/such/qemu", "cannot be run"), (&old, "5.0 is needed")] {
        let ended = end_of(&mut with_qemu(program, ""));
        let ended = ended.with(&[4]).says(&[reason, "apt install qemu-system-x86"]);
        assert!(ended.err.lines().count() == 1 && ended.out.is_empty(), "{ended}");
    }
}

#[apply(trial)]
fn a_qemu_that_prints_more_than_a_pipe_holds_does_not_stall() {
    let talks = "printf 'its reason \\033[2J\\n' >&2; head -c 300000 /dev/zero | tr '\\0' x >&2; exit 3";
    let talkative = pretended_qemu("talkative-qemu", talks);
    let ended = end_of(&mut with_qemu(&talkative, "--watchdog 20s --duration 20ms"));
    let ended = ended.with(&[4]).says(&["its reason"]);
    assert!(!ended.err.contains('\u{1b}'), "{:?}", ended.err);
}

#[apply(trial)]
fn a_silent_qemu_ends_with_its_time_limit_and_the_run() {
    let pid = format!("{}/pid", scratch("silent-qemu-pid"));
    let script = format!("echo $$ > {pid}.new && mv {pid}.new {pid}\nexec sleep 1000");
    let silent = pretended_qemu("silent-qemu", &script);
    let begun =
        || eventually("QEMU is started", || Some(std::fs::read_to_string(&pid).ok()?.trim().to_owned()));
    end_of(&mut with_qemu(&silent, "--watchdog 200ms --duration 20ms"))
        .with(&[6])
        .says(&["no progress: QEMU's guest has not ended"]);
    wait_for_end(&begun());
    for (signal, expected) in [(Signal::INT, Some(130)), (Signal::KILL, None)] {
        std::fs::remove_file(&pid).unwrap();
        let mut run = started(&mut with_qemu(&silent, ""));
        let qemu = begun();
        run.signal(signal);
        assert_eq!(run.child().wait().unwrap().code(), expected);
        wait_for_end(&qemu);
    }
}

#[apply(trial)]
fn an_emulated_record_keeps_the_schema_and_says_it_is_incomparable() -> Check {
    let program = haltkick_vmm::find_qemu().or_else(skip)?;
    let run = "--vcpus 4 --lock qspinlock --pv on --duration 50ms";
    let record = end_of(&mut with_qemu(&program, &format!("{run} --format json"))).with(&[7]).json();
    assert_valid("run", &record);
    assert_eq!(record["settings"]["engine"], "qemu-tcg");
    assert!(record["trusted"] == false && is_warned(&record, "emulated"), "{}", record["warnings"]);
    end_of(&mut with_qemu(&program, run)).prints(&["emulated, not comparable"]);
    Ok(())
}
