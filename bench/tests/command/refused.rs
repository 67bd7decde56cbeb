//! Runs that cannot be: one line, exit code 2, nothing done.

use std::collections::BTreeSet;

use crate::kernels::{pretended_qemu, with_qemu};
use crate::support::{apply, command, end_of, finished, haltkick, refusal, refuses, scratch, trial, written};

/// Other settings are refused in vmm/tests/refusals.rs.
#[apply(trial)]
fn impossible_runs_are_refused_in_one_line_that_says_what_to_do() {
    for (line, expected) in [
        ("--vcpus 0", "--vcpus: 0 is out of range: 1 to 1024"),
        ("--workload tasks --vcpus 2 --tasks 0", "--tasks: 0 is out of range: 1 to 1024"),
        ("--lock tikcet", "--lock: unknown lock 'tikcet': did you mean 'ticket'?"),
        ("--workload critical", "--workload: unknown workload 'critical': did you mean 'critical-section'?"),
        ("--slice 10us", "--slice: 10us is out of range: 50us to 100ms"),
        ("--hold 2s", "--hold: 2s is out of range: 1s at most"),
        ("--vm name=a --vm name=a", "two guests are called `a`: give each a name of its own"),
        ("--work 1s", "--work: workload 'critical-section' has no such thing: use workload mixed"),
        (
            "--workload mixed --nested-one-in 2",
            "--nested-one-in: nested sections need a second lock: use locks 2 or more",
        ),
        (
            "--workload selftest-lost-kick --lock qspinlock",
            "--pv: workload 'selftest-lost-kick' needs vCPUs that sleep, and none sleeps without it: use pv on",
        ),
        ("--watchdog 0s", "--watchdog: 0s is out of range: 10ms to 86400s"),
        ("--work-rate 500000", "`--work-rate` is gone: the host's rate is measured at each start"),
        ("--grace 2ms", "--grace: 2ms is out of range: a slice, 1ms, at most"),
        ("--grace 50us --sched host", "--grace: only the VMM's own scheduler can grant it: use --sched vmm"),
        (
            "--ple window=4096",
            "--ple: only a model of a host takes them: use engine sim. KVM has one gap and one window for all guests, \
             parameters ple_gap and ple_window of kvm_intel; pause-exits off ends the exits of one run",
        ),
        ("--deschedule random,for=1m", "--deschedule: for=60s is out of range: 1us to 10s"),
        (
            "--lock mutex --layout flat",
            "--layout: lock 'mutex' has no layout 'flat': it has packed, split, cached, prev-cpu",
        ),
        (
            "--lock tas --layout packed",
            "--layout: lock 'tas' has no layouts to choose from: leave it out, or take another lock",
        ),
        ("--lock tsa --layout packed", "--lock: unknown lock 'tsa': did you mean 'tas'?"),
        ("--profile=1us", "--profile: a period of 1us is out of range: 100us to 100ms"),
    ] {
        assert_eq!(refusal(&format!("run {line}")), format!("haltkick: {expected}\n"));
    }
}

#[apply(trial)]
fn what_is_gone_is_refused_with_the_new_way() {
    refuses("report results --export latex=table.tex", "`--export latex` is gone");
    let with_slice = |line: &str, slice: &str| end_of(command(line).env("HALTKICK_SLICE", slice));
    for (line, code) in [("list locks", 2), ("bisect lock=a,b", 129)] {
        with_slice(line, "2ms").with(&[code]).says(&["haltkick: HALTKICK_SLICE is gone"]);
    }
    with_slice("list locks", "").with(&[0]);
}

#[apply(trial)]
fn values_that_cannot_be_read_are_refused_with_a_hint() {
    for (line, hint) in [
        ("run --hold 5", "'5' has no unit: write 5ns, 5us, 5ms or 5s"),
        ("run --hold '5 lightyears'", "unknown unit 'lightyears'"),
        ("run --cpus 1000", "CPU 1000 does not exist or is not allowed here: this process may use "),
        ("run --pv maybe", "invalid value 'maybe'"),
        ("run --lock tas --pv on", "has no paravirtual form: use pv off, or one of ticket, qspinlock, "),
        ("run --lock qspinlock-v16 --pv off", "no native form: use pv on, or one of none, tas, "),
        ("run --perf-map", "only --engine threads"),
        ("run --trace run.json", "no JSON: write --trace run.pftrace"),
        ("run --trace /nonexistent/run.pftrace", "--trace: /nonexistent/run.pftrace: "),
        ("run --engine sim --machine skylake-8s --profile=1ms", "counts all time instead of samples"),
        ("run --vcpus 4 --ratio 2", "cannot be used with"),
        ("bench overcommit --set hold", "write KEY=VALUE"),
        ("bench overcomit", "unknown experiment 'overcomit': did you mean 'overcommit'?"),
        ("bench overcommit --ratios 1,4096", "ratio: 4096 is out of range"),
        // In other letters, which would be farther off than a typing error.
        ("report results --export MARKDOWN", "did you mean 'markdown'? There is markdown, csv"),
        ("report results --export csv=", "csv= names no file"),
    ] {
        refuses(line, hint);
    }
}

#[apply(trial)]
fn code_of_a_file_runs_in_this_process_only_if_trusted() {
    let image = haltkick_vmm::Image::embedded_elf();
    let image = written(format!("{}/image", scratch("trusted-guest")), image);
    let run = format!("run --engine threads --no-ideal --duration 20ms --guest {image}");
    for line in [&run, &format!("bench overcommit --quick --set engine=threads --guest {image}")] {
        let said = refusal(line);
        assert!(said.contains("with all your rights") && said.contains("--trust-image"), "{said}");
    }
    finished(&format!("{run} --trust-image"));
}

#[apply(trial)]
fn descheduling_in_a_lock_without_one_is_refused_with_other_workloads() {
    let message = refusal("run --workload hand-off --pv on --deschedule holder");
    let start = "haltkick: --deschedule: no vCPU holds or awaits a lock in workload 'hand-off': deschedule random vCPUs, \
                 or use one of ";
    let named = message.strip_prefix(start).unwrap_or_else(|| panic!("{message}"));
    let named: BTreeSet<&str> = named.trim_end_matches('\n').split(", ").collect();
    let all = haltkick("list workloads").out;
    let all: BTreeSet<&str> = all.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(named.is_subset(&all) && named.contains("critical-section"), "{named:?} of {all:?}");
    for without in ["hand-off", "compute", "none"] {
        assert!(!named.contains(without), "{message}");
    }
}

#[apply(trial)]
fn a_refusal_comes_before_any_guest_even_that_of_calibration() {
    let begun = format!("{}/begun", scratch("refused-before"));
    let has_begun = || std::fs::exists(&begun).unwrap();
    let program = pretended_qemu("refused-qemu", &format!("touch {begun}\nexit 1"));
    let run = |line: &str| end_of(&mut with_qemu(&program, line));
    for line in [
        "--trace /nonexistent/run.pftrace",
        "--profile=1us",
        "--perf-map",
        "--vm name=a --vm name=a",
        "--vm name=a --vm name=b",
    ] {
        run(line).with(&[2]);
        assert!(!has_begun(), "{line}");
    }
    run("--watchdog 200ms");
    assert!(has_begun(), "one that is not refused does start");
}
