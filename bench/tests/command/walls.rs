//! The walls around processes and threads that run guests: no wider than they must be, and standing while guests run. Bounds on the
//! system calls of `--sched vmm`, so that no call comes back to a hot path unnoticed. strace sees both.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use haltkick_vmm::{Needed, Needs, SandboxRule, process_rules, runner_rules};
use serde_json::Value;

use crate::kernels::pretended_kernel;
use crate::support::*;

/// A system call: its number and its arguments.
type Call = (i64, Vec<u64>);

/// Calls in the sandbox of one process.
#[derive(Default)]
struct Calls {
    process: u32,
    /// Standard output of the command.
    stdout: String,
    /// By threads that run vCPUs.
    by_runners: Vec<Call>,
    /// By all others.
    by_others: Vec<Call>,
}

/// Follows every system call of a command.
fn traced(name: &str, line: &str) -> Result<Calls, Failed> {
    let file = format!("{}/calls", scratch(&format!("traced-{name}")));
    let mut strace = Command::new("strace");
    strace.args(["-f", "-n", "-qq", "-e", "raw=all", "-o", &file, HALTKICK]).args(words(line));
    let ended = end_if_there(&mut strace)?.with(&[0, 5, 6, 7]);
    assert!(!ended.err.contains("which the sandbox refuses"), "{ended}");
    Ok(Calls { stdout: ended.out, ..seen(&read(file)) })
}

/// Calls in the sandbox according to strace: lines `thread [ number] name(argument, argument...`.
fn seen(account: &str) -> Calls {
    const FILTERS_OF_PROCESS: usize = 2;
    let mut seen = Calls::default();
    let mut filters: BTreeMap<u32, usize> = BTreeMap::new();
    for line in account.lines() {
        let Some((thread, call)) = parse(line) else { continue };
        if seen.process == 0 {
            seen.process = thread;
        }
        // Threads are started behind the process's walls.
        let of_thread =
            filters.entry(thread).or_insert(if thread == seen.process { 0 } else { FILTERS_OF_PROCESS });
        if *of_thread > FILTERS_OF_PROCESS {
            seen.by_runners.push(call);
        } else {
            if *of_thread == FILTERS_OF_PROCESS {
                seen.by_others.push(call.clone());
            }
            // Its first argument is 1 when it sets a filter.
            *of_thread += usize::from(call.0 == libc::SYS_seccomp && call.1[0] == 1);
        }
    }
    seen
}

fn parse(line: &str) -> Option<(u32, Call)> {
    let (thread, rest) = line.split_once(" [")?;
    let (number, rest) = rest.split_once(']')?;
    let (_, arguments) = rest.split_once('(')?;
    let end = arguments.find([')', '<']).unwrap_or(arguments.len());
    let number_of = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    let arguments = arguments[..end].split(", ").map(str::trim).filter(|text| !text.is_empty());
    let arguments = arguments.map(number_of).collect::<Option<Vec<_>>>()?;
    Some((thread.trim().parse().ok()?, (number.trim().parse().ok()?, arguments)))
}

/// Takes those of `rules` out of `unused` that one of `calls` needs. What none of `rules` and `others` allows.
fn use_up(
    calls: &[Call],
    rules: &[SandboxRule],
    others: &[SandboxRule],
    unused: &mut BTreeMap<String, Needed>,
) -> Vec<Call> {
    let mut refused = Vec::new();
    for (call, arguments) in calls {
        let is_it = |rule: &&SandboxRule| rule.allows(*call, arguments);
        if others.iter().any(|rule| is_it(&rule)) {
            continue;
        }
        match rules.iter().find(is_it) {
            Some(rule) => _ = unused.remove(&name(rule)),
            None => refused.push((*call, arguments.clone())),
        }
    }
    refused
}

fn name(rule: &SandboxRule) -> String {
    format!("system call {}: {}", rule.call, rule.why)
}

#[apply(kvm_trial)]
fn every_rule_is_needed_and_nothing_else_is_asked_for() -> Check {
    let directory = scratch("walls-runs");
    let (experiment, results) = tiny("walls-bench");
    // UD2, which nothing handles: where the vCPU stands then is looked at.
    let fails = [WRITES_TO_ITS_SERIAL_PORT, &[0x0f, 0x0b]].concat();
    let kernel = pretended_kernel(&directory, 4 << 20, &fails);
    let run = "run --no-ideal --duration 30ms --watchdog 60s";
    let sleeps = "--lock qspinlock --pv on --ratio 4";
    let none = Needs::default;
    let switches = || Needs { switches: true, ..none() };
    let runs = [
        ("vmm", format!("{run} {sleeps} --deschedule holder,prob=0.1,for=1ms"), none()),
        ("instruments", format!("{run} {sleeps} --profile --trace {directory}/run.pftrace"), none()),
        ("counters", format!("{run} --pmu on"), Needs { counters: true, ..none() }),
        ("host", format!("{run} --sched host {sleeps}"), switches()),
        ("yields", format!("{run} --sched host --workload selftest-yield"), switches()),
        ("invalidations", format!("{run} --workload selftest-flood"), none()),
        ("threads", format!("{run} --engine threads --ratio 2"), Needs { foreign_code: true, ..none() }),
        // Its end comes with UD2, which a busy host may bring late.
        ("linux", format!("run --kernel {kernel} --duration 5s"), none()),
        ("bench", format!("bench {experiment} --output {results}"), none()),
    ];
    let can_report = haltkick_vmm::bpf_can_report_switches().is_ok();
    let all = Needs { foreign_code: true, switches: can_report, counters: true, ..none() };
    let table = |rules: Vec<SandboxRule>| {
        rules.iter().map(|rule| (name(rule), rule.needed)).collect::<BTreeMap<_, _>>()
    };
    let (mut of_runners, mut of_others) = (table(runner_rules(0, None)), table(process_rules(&all)));
    for (name, line, needs) in &runs {
        let seen = traced(name, line)?;
        assert!(!seen.by_others.is_empty(), "{name}: there are no walls");
        let runner = runner_rules(seen.process, None);
        let refused = use_up(&seen.by_runners, &runner, &[], &mut of_runners);
        assert!(refused.is_empty(), "{name}: {refused:x?}");
        let refused = use_up(&seen.by_others, &process_rules(needs), &runner, &mut of_others);
        assert!(refused.is_empty(), "{name}: {refused:x?}");
    }
    for (of, rules) in [("runners", of_runners), ("others", of_others)] {
        let redundant: Vec<_> = rules.iter().filter(|(_, needed)| **needed == Needed::InRuns).collect();
        assert!(redundant.is_empty(), "rules of {of} that nothing needs: {redundant:?}");
    }
}

/// 32-bit code, if it is run at all: `mov $0x3f8, %dx; out %al, (%dx); jmp back`.
const WRITES_TO_ITS_SERIAL_PORT: &[u8] = &[0x66, 0xba, 0xf8, 0x03, 0xee, 0xeb, 0xfd];

/// The field of each thread of `process`, by thread.
fn field_of_threads(process: u32, field: &str) -> Vec<(String, String)> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let name_and_value = |task: &Path| {
        let status = fs::read_to_string(task.join("status")).ok()?;
        let value =
            |name: &str| Some(status.lines().find_map(|line| line.strip_prefix(name))?.trim().to_owned());
        Some((value("Name:")?, value(field)?))
    };
    tasks.filter_map(|task| name_and_value(&task.path())).collect()
}

#[apply(trial)]
fn a_call_refused_to_preloaded_code_names_the_variable() -> Check {
    let directory = scratch("walls-preload");
    // An allocator that asks for its CPU, as some do, at each free().
    let text = "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <stdlib.h>\n#include <sys/syscall.h>\n#include <unistd.h>\n\
                void free(void *at) { unsigned cpu; syscall(SYS_getcpu, &cpu, 0, 0); \
                ((void (*)(void *))dlsym(RTLD_NEXT, \"free\"))(at); }\n";
    let source = written(format!("{directory}/getcpu.c"), text);
    let library = format!("{directory}/getcpu.so");
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o", &library, &source, "-ldl"]).status();
    if !compiled.is_ok_and(|status| status.success()) {
        return skip("cc makes no shared library here");
    }
    for engine in ["threads", "sim --machine skylake-8s --cpus 0"] {
        let run = format!("run --engine {engine} --vcpus 2 --lock ticket --window 1ms --no-ideal");
        let call = format!("made system call {}", libc::SYS_getcpu);
        end_of(command(&run).env("LD_PRELOAD", &library)).with(&[1]).says(&[&call, "LD_PRELOAD brings in"]);
    }
}

#[apply(kvm_trial)]
fn no_thread_has_a_privilege_in_force_while_a_guest_runs() {
    let cpu = an_allowed_cpu();
    let is_zero = |set: &str| set.bytes().all(|digit| digit == b'0');
    let runs_vcpus = |(name, _): &&(String, String)| name.starts_with("pcpu") || name.starts_with("vcpu");
    for (sched, expected) in [("vmm", 1), ("host", 2)] {
        let run = format!("run --no-ideal --duration 60s --cpus {cpu} --vcpus 2 --sched {sched}");
        let mut running = started(&mut command(&run));
        let process = running.child().id();
        eventually("a thread that runs vCPUs behind its walls", || {
            let threads = field_of_threads(process, "Seccomp_filters:");
            let walled = threads.iter().filter(runs_vcpus).filter(|(_, filters)| filters == "3");
            (walled.count() == expected).then_some(())
        });
        for set in ["CapEff:", "CapInh:", "CapAmb:"] {
            let of_threads = field_of_threads(process, set);
            assert!(of_threads.iter().all(|(_, set)| is_zero(set)), "{sched}: {set} {of_threads:?}");
        }
        let permitted = field_of_threads(process, "CapPrm:");
        let runners: Vec<_> = permitted.iter().filter(runs_vcpus).collect();
        assert!(!runners.is_empty() && runners.iter().all(|(_, set)| is_zero(set)), "{permitted:?}");
        let needs_none = sched == "host" || permitted.iter().all(|(_, set)| is_zero(set));
        assert!(needs_none, "no run under vmm needs any: {permitted:?}");
    }
}

/// A run that takes little of the host.
const LITTLE: &str =
    "run --engine sim --machine skylake-8s --cpus 0 --vcpus 1 --duration 1ms --no-ideal --format json";

#[apply(trial)]
fn records_say_which_walls_kept_the_process_and_on_which_host() {
    let (walled, open) = (ends(0, LITTLE).json(), ends(0, &format!("{LITTLE} --no-sandbox")).json());
    assert_eq!((&walled["sandbox"], &open["sandbox"]), (&true.into(), &false.into()));
    match haltkick_vmm::landlock_abi() {
        Ok(abi) => assert_eq!(walled["landlock_abi"], abi),
        Err(why) => assert_eq!(walled["why"]["landlock_abi"], why.to_string()),
    }
    assert!(open["landlock_abi"].is_null());
    assert_eq!(open["why"]["landlock_abi"], "--no-sandbox");
    // A comparison of two directories must be able to tell whether they are of one host.
    let is_known = fs::read_to_string("/etc/machine-id").is_ok();
    assert_eq!(walled["host"]["host_id"].is_string(), is_known, "{:#}", walled["why"]);
}

#[apply(trial)]
fn what_this_kernel_lacks_for_walls_is_said_and_recorded() -> Check {
    for (call, of_calls, of_files) in [("seccomp", true, false), ("landlock_create_ruleset", false, true)] {
        let (trace, inject) = (format!("trace={call}"), format!("inject={call}:error=ENOSYS"));
        let mut strace = Command::new("strace");
        strace.args(["-f", "-qq", "-o", "/dev/null", "-e", &trace, "-e", &inject, HALTKICK]);
        let ended = end_if_there(strace.args(words(LITTLE)))?;
        let record = ended.json();
        let says = |words: &str| ended.err.contains(words);
        assert_eq!(says("haltkick: no filter of system calls: seccomp: "), of_calls, "{ended}");
        assert_eq!(says("haltkick: no wall around files: this kernel has no"), of_files, "{ended}");
        assert_eq!(record["sandbox"], !of_calls);
        assert_eq!(record["why"]["sandbox"].is_string(), of_calls, "{:#}", record["why"]);
        assert_eq!(record["landlock_abi"].is_null(), of_files);
    }
}

/// A system call's number, and the request of an ioctl.
type Kind = (i64, u64);

const KVM_RUN: Kind = (libc::SYS_ioctl, 0xae80);
const KVM_CREATE_VCPU: Kind = (libc::SYS_ioctl, 0xae41);
const KVM_SET_REGS: Kind = (libc::SYS_ioctl, 0x4090_ae82);
const TIMER_SETTIME: Kind = (libc::SYS_timer_settime, 0);
/// SIGUSR1's way back at the end of a slice: the wait for it, or from its handler.
const TAKES_A_KICK: [Kind; 2] = [(libc::SYS_rt_sigtimedwait, 0), (libc::SYS_rt_sigreturn, 0)];
/// System calls of a full slice: KVM_RUN, and one that takes the timer's signal.
const SLICE_CALLS: usize = 2;
/// Most other calls, by which vCPUs and threads start and end.
const START_CALLS: usize = 100;
/// System calls by which a vCPU is made and set to its first instruction.
const SET_UP_CALLS: usize = 9;
/// Most calls like these that trials of KVM make.
const SET_UP_ONCE: usize = 50;

fn kind((number, arguments): &Call) -> Kind {
    (*number, if *number == libc::SYS_ioctl { arguments[1] } else { 0 })
}

fn count(calls: &[Call], kinds: &[Kind]) -> usize {
    calls.iter().filter(|call| kinds.contains(&kind(call))).count()
}

fn by_kind(calls: &[Call]) -> BTreeMap<Kind, usize> {
    let mut found = BTreeMap::new();
    calls.iter().for_each(|call| *found.entry(kind(call)).or_default() += 1);
    found
}

/// System calls of the runners of one command, from the first KVM_RUN to the last, and the run's record. One pCPU, 16 vCPUs, slices that
/// are long for strace, which takes its time for each call.
fn counted(name: &str, options: &str) -> Result<(Vec<Call>, Value), Failed> {
    kvm()?;
    let line = format!(
        "run --no-ideal --watchdog 60s --duration 800ms --cpus {} --vcpus 16 --slice 4ms --pv-backend vmm --format json {options}",
        an_allowed_cpu(),
    );
    let seen = traced(name, &line)?;
    let mut calls = seen.by_runners;
    let is_run = |call: &Call| kind(call) == KVM_RUN;
    let (Some(first), Some(last)) = (calls.iter().position(is_run), calls.iter().rposition(is_run)) else {
        return skip("no filters for system calls here, by which threads that run vCPUs are told apart");
    };
    calls.truncate(last);
    calls.drain(..first);
    Ok((calls, serde_json::from_str(&seen.stdout).expect("one record")))
}

#[apply(trial)]
fn a_full_slice_makes_few_system_calls() -> Check {
    let (calls, _) = counted("slices", "--lock none")?;
    let (slices, timers) = (count(&calls, &TAKES_A_KICK), count(&calls, &[TIMER_SETTIME]));
    let others = calls.len() - timers;
    println!("{others} system calls in {slices} slices, and the timer was set {timers} times");
    assert!(slices >= 50, "{:?}", by_kind(&calls));
    assert!(others <= slices * SLICE_CALLS + START_CALLS, "{slices} slices: {:?}", by_kind(&calls));
    // A slice that ends late, as on a busy host, makes the next one shorter.
    assert!(timers <= slices, "{slices} slices: {:?}", by_kind(&calls));
}

#[apply(trial)]
fn a_wait_and_a_kick_make_few_system_calls() -> Check {
    // A strict queue whose waiters sleep at once: nearly every section is a wait and a kick.
    let (calls, record) =
        counted("waits", "--lock qspinlock-v16 --pv on --spin-threshold 1us --hold 200us --think 1us")?;
    let vcpus = record["per_vcpu"].as_array().expect("there are vCPUs");
    let [waits, kicks] = ["waits", "kicks"]
        .map(|field| vcpus.iter().map(|vcpu| vcpu[field].as_u64().expect("a count") as usize).sum::<usize>());
    let (slices, timers) = (count(&calls, &TAKES_A_KICK), count(&calls, &[TIMER_SETTIME]));
    let turns = waits + slices;
    let others = calls.len() - count(&calls, &[KVM_RUN]) - slices - timers;
    println!(
        "{timers} times a timer was set and {others} other calls in {turns} turns, {waits} of them waits, {kicks} kicks"
    );
    assert!(waits >= 200, "{waits} waits: {:?}", by_kind(&calls));
    // Once a slice and not once a wait; each vCPU starts with a few short slices.
    let few = timers <= slices + START_CALLS && timers <= waits;
    assert!(few, "{timers} times a timer was set in {waits} waits: {:?}", by_kind(&calls));
    assert!(others <= START_CALLS, "{others} other calls: {:?}", by_kind(&calls));
}

#[apply(kvm_trial)]
fn a_vcpu_is_set_up_and_started_with_few_system_calls() -> Check {
    const VCPUS: usize = 200;
    let line = format!(
        "run --no-ideal --watchdog 60s --duration 100ms --warmup 1ms --cpus {} --vcpus {VCPUS} --slice 20ms --lock none \
         --pv-backend vmm --format json",
        an_allowed_cpu(),
    );
    let seen = traced("start", &line)?;
    let record: Value = serde_json::from_str(&seen.stdout).expect("one record");
    let others = &seen.by_others;
    let first = others.iter().position(|call| kind(call) == KVM_CREATE_VCPU).expect("vCPUs are made");
    let last = others.iter().rposition(|call| kind(call) == KVM_SET_REGS).expect("and set up");
    // A kind of call that is made less than once a vCPU belongs to threads that start, or that wait for each other.
    let set_up: usize = by_kind(&others[first..last]).into_values().filter(|&count| count >= VCPUS).sum();
    let [timers, slices] = [&[TIMER_SETTIME][..], &TAKES_A_KICK].map(|kinds| count(&seen.by_runners, kinds));
    println!(
        "{set_up} system calls to set up {VCPUS} vCPUs; {timers} timers set in {slices} slices and {VCPUS} starts"
    );
    assert!(set_up <= VCPUS * SET_UP_CALLS + SET_UP_ONCE, "{set_up} calls");
    assert_eq!(record["vm_exits"]["started"], VCPUS, "{:#}", record["vm_exits"]);
    // No timer for each start: a vCPU that has started gives up its slice by itself.
    assert!(timers <= slices + VCPUS / 10, "{timers} timers set in {slices} slices");
}
