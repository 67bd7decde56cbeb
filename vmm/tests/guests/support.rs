//! What the tests of guests share: a configuration to vary, a guest to start, and readings of its outcome.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use haltkick_vmm::{
    ByActivity, Deschedule, Ended, Engine, HowOften, Image, Instruments, Outcome, PvBackend, RunConfig,
    RunError, Target, run, run_guests,
};
use libtest_mimic::Failed;

use crate::base;

/// How long a slow host may take over what a test waits for and then ends at once.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) type Check = Result<(), Failed>;

pub(crate) fn config() -> RunConfig {
    RunConfig {
        // Not what works best here: the tests look at doorbells, and at vCPUs that the VMM put to sleep.
        pv_backend: PvBackend::Vmm,
        memory_bytes: 64 << 20,
        // An emulator does in so long what others do in a fifth of it.
        window: Duration::from_millis(if nested() { 500 } else { 100 }),
        ..base::config(Engine::Kvm)
    }
}

/// Whether this is an emulated machine, in which time is no measure of what gets done.
pub(crate) fn nested() -> bool {
    std::env::var_os("HALTKICK_NESTED").is_some()
}

pub(crate) fn start(config: &RunConfig) -> Result<Outcome, RunError> {
    run(config, &Image::embedded(), &AtomicBool::new(false))
}

/// Runs until something was `seen`. A window may pass without the vCPU that is looked at, whose turn is for the scheduler and
/// the host to say: what does not happen in one window proves nothing, what happens in none of so many does. The last outcome.
pub(crate) fn start_until(config: &RunConfig, seen: impl Fn(&Outcome) -> bool) -> Result<Outcome, RunError> {
    let mut outcome = start(config)?;
    for _ in 1..20 {
        if seen(&outcome) {
            break;
        }
        outcome = start(config)?;
    }
    Ok(outcome)
}

/// How many times of waiting a run has counted.
pub(crate) fn waits(outcome: &Outcome) -> u64 {
    outcome.wait.buckets.iter().sum()
}

pub(crate) fn check(holds: bool, otherwise: impl FnOnce() -> String) -> Check {
    if holds { Ok(()) } else { Err(otherwise().into()) }
}

pub(crate) fn unexpected(result: Result<Outcome, RunError>) -> Check {
    match result {
        Ok(_) => Err("the run came to its end".into()),
        Err(error) => Err(error.into()),
    }
}

pub(crate) fn acquisitions(outcome: &Outcome) -> u64 {
    outcome.vcpus.iter().map(|vcpu| vcpu.acquisitions).sum()
}

pub(crate) fn event(outcome: &Outcome, name: &str) -> u64 {
    outcome.lock_events.iter().find(|(event, _)| event == name).map_or(0, |(_, count)| *count)
}

pub(crate) fn exits(outcome: &Outcome, name: &str) -> u64 {
    outcome.vm_exits.iter().find(|(exit, _)| *exit == name).map_or(0, |(_, count)| *count)
}

pub(crate) fn named(name: &str, config: RunConfig) -> RunConfig {
    RunConfig { name: name.into(), ..config }
}

pub(crate) fn start_guests(config: &RunConfig) -> Result<Vec<Ended>, RunError> {
    run_guests(config, &Image::embedded(), &AtomicBool::new(false), &Instruments::default())
}

pub(crate) fn deschedule(
    target: Target,
    how_often: HowOften,
    length: Duration,
    at: Option<&str>,
) -> Option<Deschedule> {
    Some(Deschedule { target, how_often, length, at: at.map(String::from) })
}

pub(crate) fn sum(by: &ByActivity<u64>) -> u64 {
    by.holder + by.head + by.waiter + by.other
}

/// Long sections, so that a holder is found at the first look or the second.
pub(crate) fn mostly_holding() -> RunConfig {
    let (hold, think) = (Duration::from_micros(50), Duration::from_micros(1));
    RunConfig { lock: "tas".into(), pv: false, hold, think, ..config() }
}
