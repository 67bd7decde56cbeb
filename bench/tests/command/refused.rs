//! Runs that cannot be: one line, exit code 2, nothing done.

use std::collections::BTreeSet;

use crate::qemu::{pretended_qemu, with_qemu};
use crate::support::{apply, code, command, haltkick, refusal, scratch, stderr, stdout, trial};

/// Long: it is one table.
#[apply(trial)]
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
        (&["--slice", "10us"], "haltkick: --slice: 10us is out of range: 50us to 100ms\n"),
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
        (
            &["--workload", "selftest-lost-kick", "--lock", "qspinlock"],
            "haltkick: --pv: workload 'selftest-lost-kick' needs vCPUs that sleep, and none sleeps without it: use pv on\n",
        ),
        (&["--watchdog", "0s"], "haltkick: --watchdog: 0s is out of range: 10ms to 86400s\n"),
        (
            &["--work-rate", "500000"],
            "haltkick: `--work-rate` is gone: the host's rate is measured at each start\n",
        ),
        (
            &["--workload", "spin-queue", "--lock", "tas"],
            "haltkick: workload `spin-queue` cannot be run with lock `tas`; these go with it: none, mutex/packed, mutex/split, \
             mutex/cached, mutex/prev-cpu\n",
        ),
        (&["--locks", "0"], "haltkick: --locks: 0 is out of range: 1 to 256\n"),
        (
            &["--lock", "none", "--deschedule", "holder"],
            "haltkick: --deschedule: no vCPU holds or awaits lock 'none': deschedule random vCPUs, or take another lock\n",
        ),
        (&["--grace", "2ms"], "haltkick: --grace: 2ms is out of range: a slice, 1ms, at most\n"),
        (
            &["--grace", "50us", "--sched", "host"],
            "haltkick: --grace: only the VMM's own scheduler can grant it: use --sched vmm\n",
        ),
        (
            &["--ple", "window=4096"],
            "haltkick: --ple: only a model of a host takes them: use engine sim. KVM has one gap and one window for all guests, \
             parameters ple_gap and ple_window of kvm_intel; pause-exits off ends the exits of one run\n",
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

#[apply(trial)]
fn what_is_gone_is_refused_with_the_new_way() {
    let said = refusal(&["report", "results", "--export", "latex=table.tex"]);
    assert!(said.contains("`--export latex` is gone") && said.lines().count() == 1, "{said}");
    for (arguments, code_of_refusal) in [(&["list", "locks"][..], 2), (&["bisect", "lock=a,b"], 129)] {
        let refused = command(arguments).env("HALTKICK_SLICE", "2ms").output().expect("it can be started");
        assert_eq!(code(&refused), code_of_refusal, "{arguments:?}");
        assert!(stderr(&refused).starts_with("haltkick: HALTKICK_SLICE is gone"), "{}", stderr(&refused));
    }
    let empty = command(&["list", "locks"]).env("HALTKICK_SLICE", "").output().expect("it can be started");
    assert_eq!(code(&empty), 0, "{}", stderr(&empty));
}

#[apply(trial)]
fn a_forbidden_cpu_is_refused_with_the_list_of_allowed_ones() {
    let message = refusal(&["run", "--cpus", "1000"]);
    assert!(
        message.contains("CPU 1000 does not exist or is not allowed here: this process may use "),
        "{message}"
    );
}

#[apply(trial)]
fn values_that_cannot_be_read_are_refused_with_a_hint() {
    for (arguments, hint) in [
        (&["run", "--hold", "5"][..], "'5' has no unit: write 5ns, 5us, 5ms or 5s"),
        (&["run", "--hold", "5 lightyears"], "unknown unit 'lightyears'"),
        (&["run", "--cpus", "0-"], "'0-' is no CPU list: write it as 0,2-3"),
        (&["run", "--cpus", "socket:0"], "'socket:0' names no CPUs: write all, cores, no-smt, node:N"),
        (&["run", "--cpus", "node:900"], "'node:900': this host has no such node with CPUs; it has "),
        (&["run", "--deschedule", "owner"], "unknown policy 'owner': there is holder, head, waiter, random"),
        (
            &["run", "--lock", "qspinlock-points", "--deschedule", "head,at=handed"],
            "unknown point 'handed': there is node-claimed, tail-published, pending-set, halted-published, handed-over,",
        ),
        (&["run", "--pv", "maybe"], "invalid value 'maybe'"),
        (&["compare", "a", "b", "--threshold", "150%"], "'150%' is not below 100%"),
        (&["run", "--vcpus", "4", "--ratio", "2"], "cannot be used with"),
        (&["bench", "overcommit", "--set", "hold"], "write KEY=VALUE"),
    ] {
        let message = refusal(arguments);
        assert!(message.contains(hint), "{arguments:?}: {message}");
    }
}

#[apply(trial)]
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

#[apply(trial)]
fn code_of_a_file_runs_in_this_process_only_if_trusted() {
    let path = scratch("trusted-guest").join("image");
    std::fs::write(&path, haltkick_vmm::Image::embedded_elf()).unwrap();
    let guest = ["--guest", path.to_str().unwrap()];
    let run = ["run", "--engine", "threads", "--no-ideal", "--duration", "20ms"];
    for command in [&run[..], &["bench", "overcommit", "--quick", "--set", "engine=threads"]] {
        let message = refusal(&[command, &guest].concat());
        assert!(message.contains("with all your rights") && message.contains("--trust-image"), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
    let trusted = haltkick(&[&run[..], &guest, &["--trust-image"]].concat());
    assert!([0, 7].contains(&code(&trusted)), "{}", crate::support::stderr(&trusted));
}

#[apply(trial)]
fn a_missing_form_is_refused_and_locks_with_it_are_named() {
    let message = refusal(&["run", "--lock", "tas", "--pv", "on"]);
    let start =
        "haltkick: --pv: lock 'tas' has no paravirtual form: use pv off, or one of ticket, qspinlock, ";
    assert!(message.starts_with(start) && message.lines().count() == 1, "{message}");
    let message = refusal(&["run", "--lock", "qspinlock-v16", "--pv", "off"]);
    assert!(message.contains("no native form: use pv on, or one of none, tas, "), "{message}");
}

#[apply(trial)]
fn descheduling_in_a_lock_without_one_is_refused_with_other_workloads() {
    let message = refusal(&["run", "--workload", "hand-off", "--pv", "on", "--deschedule", "holder"]);
    let start = "haltkick: --deschedule: no vCPU holds or awaits a lock in workload 'hand-off': deschedule random vCPUs, \
                 or use one of ";
    let named = message.strip_prefix(start).unwrap_or_else(|| panic!("{message}"));
    let named: BTreeSet<&str> = named.trim_end_matches('\n').split(", ").collect();
    let all = stdout(&haltkick(&["list", "workloads"]));
    let all: BTreeSet<&str> = all.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(named.is_subset(&all) && named.contains("critical-section"), "{named:?} of {all:?}");
    for without in ["hand-off", "compute", "none"] {
        assert!(!named.contains(without), "{message}");
    }
}

#[apply(trial)]
fn a_refusal_comes_before_any_guest_even_that_of_calibration() {
    let directory = scratch("refused-before");
    let started = directory.join("started");
    let says = "[ \"$1\" = --version ] && echo 'QEMU emulator version 7.2.0' && exit";
    let program = pretended_qemu("refused-qemu", &format!("{says}\ntouch {}\nexit 1", started.display()));
    let run =
        |arguments: &[&str]| code(&with_qemu(&program, arguments).output().expect("haltkick can be started"));
    for arguments in [
        &["--trace", "/nonexistent/run.pftrace"][..],
        &["--profile=1us"],
        &["--perf-map"],
        &["--vm", "name=a", "--vm", "name=a"],
        &["--vm", "name=a", "--vm", "name=b"],
    ] {
        assert_eq!((run(arguments), started.exists()), (2, false), "{arguments:?}");
    }
    run(&["--watchdog", "200ms"]);
    assert!(started.exists(), "one that is not refused does start");
}

#[apply(trial)]
fn unwritable_trace_files_and_senseless_periods_are_refused_before_the_guest_starts() {
    let output = haltkick(&["run", "--trace", "/nonexistent/run.pftrace"]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(
        message.contains("--trace: /nonexistent/run.pftrace: ") && message.lines().count() == 1,
        "{message}"
    );
    let message = refusal(&["run", "--trace", "run.json"]);
    assert!(message.contains("no JSON: write --trace run.pftrace"), "{message}");
    let output = haltkick(&["run", "--profile=1us"]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert_eq!(message, "haltkick: --profile: a period of 1us is out of range: 100us to 100ms\n");
    let output = haltkick(&["run", "--engine", "sim", "--machine", "skylake-8s", "--profile=1ms"]);
    assert_eq!(code(&output), 2);
    let message = String::from_utf8(output.stderr).expect("text");
    assert!(message.contains("counts all time instead of samples"), "{message}");
}
