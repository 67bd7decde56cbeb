//! Text of `perf script` and of `trace-cmd report`: one event a line.
//!
//! ```text
//! CPU 0/KVM  1234 [002] 12345.678901: sched:sched_switch: prev_comm=CPU 0/KVM prev_pid=1234 prev_prio=120 prev_state=R ==> next_comm=...
//! CPU 0/KVM-1234  [002] 12345.678901: sched_switch:       CPU 0/KVM:1234 [120] R ==> swapper/2:0 [120]
//! ```
//!
//! A vCPU's thread is known by its name: `CPU 0/KVM` in QEMU, `fc_vcpu 0` in Firecracker, `vcpu0` elsewhere. One that is switched out in
//! state R would rather run. One that slept, and of which `sched_wakeup` tells, is absent from then until it runs.

use std::collections::{BTreeMap, BTreeSet};

use super::Spells;

pub(super) fn read(text: &str) -> Result<Spells, String> {
    let mut spells = Spells::default();
    let mut threads = Threads::default();
    for (line, number) in text.lines().zip(1_usize..) {
        event(line, &mut spells, &mut threads).map_err(|message| format!("line {number}: {message}"))?;
    }
    if threads.pids.is_empty() {
        return Err("none of its threads is called as a vCPU's: CPU 0/KVM, fc_vcpu 0, vcpu0".into());
    }
    Ok(spells)
}

/// Threads of vCPUs.
#[derive(Default)]
struct Threads {
    /// By the vCPU's number.
    pids: BTreeMap<u32, u32>,
    /// Those that have been switched in, and not out again.
    running: BTreeSet<u32>,
}

/// A thread: its name and number.
type Thread<'a> = (&'a str, u32);

fn event(line: &str, spells: &mut Spells, threads: &mut Threads) -> Result<(), String> {
    if let Some((before, after)) = line.split_once("sched_switch:") {
        let at_ns = time(before)?;
        let (out, into) = after.split_once("==>").ok_or("a switch without ==>")?;
        let ((out, state), into) = (switched_out(out)?, thread(into, "next")?);
        spells.passes(at_ns);
        if let Some(vcpu) = vcpu_of(out, threads)? {
            threads.running.remove(&vcpu);
            spells.is_absent(vcpu, at_ns, state.starts_with('R'))?;
        }
        if let Some(vcpu) = vcpu_of(into, threads)? {
            threads.running.insert(vcpu);
            spells.is_absent(vcpu, at_ns, false)?;
        }
    } else if let Some((before, after)) = line.split_once("sched_wakeup:") {
        let at_ns = time(before)?;
        let woken = thread(after, "")?;
        spells.passes(at_ns);
        // A kick may come before the thread that wanted to sleep has left its CPU: then it stays.
        if let Some(vcpu) = vcpu_of(woken, threads)?.filter(|vcpu| !threads.running.contains(vcpu)) {
            spells.is_absent(vcpu, at_ns, true)?;
        }
    }
    Ok(())
}

/// Nanoseconds of the time that stands before an event's name: seconds with a fraction and a colon.
fn time(before: &str) -> Result<u64, String> {
    let wrong = || "no time before the event's name, such as 12345.678901:".to_owned();
    // `sched:` is a part of the name in perf's text.
    let is_time = |token: &&str| token.ends_with(':') && token.as_bytes()[0].is_ascii_digit();
    let token = before.split_whitespace().rev().find(is_time).ok_or_else(wrong)?.trim_end_matches(':');
    let (seconds, fraction) = token.split_once('.').unwrap_or((token, "0"));
    let digits = fraction.len();
    if digits > 9 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let seconds: u64 = seconds.parse().map_err(|_| wrong())?;
    let nanoseconds = fraction.parse::<u64>().map_err(|_| wrong())? * 10_u64.pow(9 - digits as u32);
    seconds.checked_mul(1_000_000_000).and_then(|ns| ns.checked_add(nanoseconds)).ok_or_else(wrong)
}

/// The thread that was switched out, and its state.
fn switched_out(text: &str) -> Result<(Thread<'_>, &str), String> {
    let out = thread(text, "prev")?;
    let state = match text.split_once("prev_state=") {
        Some((_, state)) => state.split_whitespace().next(),
        None => text.split_whitespace().last(),
    };
    Ok((out, state.ok_or("a switch without the state of the thread that is switched out")?))
}

/// A thread as `comm=NAME pid=NUMBER`, each word with a prefix, or as `NAME:NUMBER [PRIORITY]`.
fn thread<'a>(text: &'a str, prefix: &str) -> Result<Thread<'a>, String> {
    let wrong = || "no thread as comm=NAME pid=NUMBER, or as NAME:NUMBER".to_owned();
    let number = |text: &str| text.split_whitespace().next()?.parse().ok();
    if let Some((_, named)) = text.split_once("comm=") {
        let pid = if prefix.is_empty() { " pid=".to_owned() } else { format!(" {prefix}_pid=") };
        let (name, rest) = named.split_once(pid.as_str()).ok_or_else(wrong)?;
        return Ok((name, number(rest).ok_or_else(wrong)?));
    }
    let (named, _) = text.split_once('[').ok_or_else(wrong)?;
    let (name, pid) = named.trim().rsplit_once(':').ok_or_else(wrong)?;
    Ok((name, number(pid).ok_or_else(wrong)?))
}

/// The vCPU of a thread, if it is one's; each vCPU has one thread.
fn vcpu_of((name, pid): Thread<'_>, threads: &mut Threads) -> Result<Option<u32>, String> {
    let qemu = name.strip_prefix("CPU ").and_then(|rest| rest.strip_suffix("/KVM"));
    let others = ["fc_vcpu ", "vcpu-", "vcpu"].into_iter().find_map(|prefix| name.strip_prefix(prefix));
    let Some(vcpu) = qemu.or(others).and_then(|number| number.trim().parse().ok()) else { return Ok(None) };
    match *threads.pids.entry(vcpu).or_insert(pid) {
        known if known == pid => Ok(Some(vcpu)),
        known => Err(format!("threads {known} and {pid} are both called {name}: keep one guest's")),
    }
}
