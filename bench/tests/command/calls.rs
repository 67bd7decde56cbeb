//! Bounds on the system calls of `--sched vmm`, counted by strace, so that no call comes back to a hot path unnoticed.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::support::{Check, Failed, an_allowed_cpu, apply, kvm, kvm_trial, skip, trial};
use crate::walls::{Call, traced};

const IOCTL: i64 = 16;
const KVM_RUN: u64 = 0xae80;
/// System calls of a full slice: KVM_RUN, and one that takes the timer's signal.
const SLICE_CALLS: usize = 2;
/// Most other calls, by which vCPUs and threads start and end.
const START_CALLS: usize = 100;
const TIMER_SETTIME: i64 = 223;
const KVM_CREATE_VCPU: u64 = 0xae41;
const KVM_SET_REGS: u64 = 0x4090_ae82;
/// System calls by which a vCPU is made and set to its first instruction.
const SET_UP_CALLS: usize = 9;
/// Most calls like these that trials of KVM make.
const SET_UP_ONCE: usize = 50;

/// SIGUSR1's way back: rt_sigtimedwait, or rt_sigreturn from its handler.
const TAKES_A_KICK: [i64; 2] = [128, 15];

fn slices(calls: &[Call]) -> usize {
    calls.iter().filter(|(number, _)| TAKES_A_KICK.contains(number)).count()
}

fn timers(calls: &[Call]) -> usize {
    calls.iter().filter(|(number, _)| *number == TIMER_SETTIME).count()
}

/// Calls by number, and an ioctl's by its request, too.
fn by_kind(calls: &[Call]) -> BTreeMap<(i64, u64), usize> {
    let mut found = BTreeMap::new();
    for (number, arguments) in calls {
        let request = if *number == IOCTL { arguments[1] } else { 0 };
        *found.entry((*number, request)).or_default() += 1;
    }
    found
}

fn is_request((number, arguments): &Call, request: u64) -> bool {
    *number == IOCTL && arguments[1] == request
}

fn is_run(call: &Call) -> bool {
    is_request(call, KVM_RUN)
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
    let (slices, timers) = (slices(&calls), timers(&calls));
    let others = calls.len() - timers;
    println!("{others} system calls in {slices} slices, and the timer was set {timers} times");
    assert!(slices >= 50, "{:?}", by_kind(&calls));
    assert!(others <= slices * SLICE_CALLS + START_CALLS, "{slices} slices: {:?}", by_kind(&calls));
    // A slice that ends late, as on a busy host, makes the next one shorter.
    assert!(timers <= slices, "{slices} slices: {:?}", by_kind(&calls));
    Ok(())
}

#[apply(trial)]
fn a_wait_and_a_kick_make_few_system_calls() -> Check {
    // A strict queue whose waiters sleep at once: nearly every section is a wait and a kick.
    let (calls, record) =
        counted("waits", "--lock qspinlock-v16 --pv on --spin-threshold 1us --hold 200us --think 1us")?;
    let vcpus = record["per_vcpu"].as_array().expect("there are vCPUs");
    let [waits, kicks] = ["waits", "kicks"]
        .map(|field| vcpus.iter().map(|vcpu| vcpu[field].as_u64().expect("a count") as usize).sum::<usize>());
    let (slices, timers) = (slices(&calls), timers(&calls));
    let turns = waits + slices;
    let others = calls.iter().filter(|call| !is_run(call)).count() - slices - timers;
    println!(
        "{timers} times a timer was set and {others} other calls in {turns} turns, {waits} of them waits, {kicks} kicks"
    );
    assert!(waits >= 200, "{waits} waits: {:?}", by_kind(&calls));
    // Once a slice and not once a wait; each vCPU starts with a few short slices.
    let few = timers <= slices + START_CALLS && timers <= waits;
    assert!(few, "{timers} times a timer was set in {waits} waits: {:?}", by_kind(&calls));
    assert!(others <= START_CALLS, "{others} other calls: {:?}", by_kind(&calls));
    Ok(())
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
    let first = others.iter().position(|call| is_request(call, KVM_CREATE_VCPU)).expect("vCPUs are made");
    let last = others.iter().rposition(|call| is_request(call, KVM_SET_REGS)).expect("and set up");
    // A kind of call that is made less than once a vCPU belongs to threads that start, or that wait for each other.
    let set_up: usize = by_kind(&others[first..last]).into_values().filter(|&count| count >= VCPUS).sum();
    let (timers, slices) = (timers(&seen.by_runners), slices(&seen.by_runners));
    println!(
        "{set_up} system calls to set up {VCPUS} vCPUs; {timers} timers set in {slices} slices and {VCPUS} starts"
    );
    assert!(set_up <= VCPUS * SET_UP_CALLS + SET_UP_ONCE, "{set_up} calls");
    assert_eq!(record["vm_exits"]["started"], VCPUS, "{:#}", record["vm_exits"]);
    // No timer for each start: a vCPU that has started gives up its slice by itself.
    assert!(timers <= slices + VCPUS / 10, "{timers} timers set in {slices} slices");
    Ok(())
}
