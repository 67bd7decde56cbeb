//! Guests to start, and readings of their outcomes.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use haltkick_vmm::{
    ByActivity, Ended, Image, Instruments, Outcome, Readings, RunConfig, RunError, run, run_guests,
    run_with_readings,
};
use libtest_mimic::Failed;

/// How long a slow host may take over what a test waits for and then ends at once.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The result of a test.
pub type Check = Result<(), Failed>;

/// Runs a guest of the embedded image until its end.
pub fn start(config: &RunConfig) -> Result<Outcome, RunError> {
    start_with(config, &Image::embedded())
}

/// Runs a guest of `image` until its end.
pub fn start_with(config: &RunConfig, image: &Image) -> Result<Outcome, RunError> {
    run(config, image, &AtomicBool::new(false))
}

/// Runs a guest under `instruments`, whose readings are there however it ends.
pub fn with_readings(config: &RunConfig, instruments: &Instruments) -> (Result<Outcome, RunError>, Readings) {
    let (image, stop, mut readings) = (Image::embedded(), AtomicBool::new(false), Readings::default());
    let result = run_with_readings(config, &image, &stop, instruments, &mut readings);
    (result, readings)
}

/// Runs a guest and those beside it until their end.
pub fn start_guests(config: &RunConfig) -> Result<Vec<Ended>, RunError> {
    run_guests(config, &Image::embedded(), &AtomicBool::new(false), &Instruments::default())
}

/// Runs until something was `seen`. A window may pass without the vCPU that is looked at, whose turn is for the scheduler and
/// the host to say: what does not happen in one window proves nothing, what happens in none of so many does. The last outcome.
pub fn start_until(config: &RunConfig, seen: impl Fn(&Outcome) -> bool) -> Result<Outcome, RunError> {
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
#[must_use]
pub fn waits(outcome: &Outcome) -> u64 {
    outcome.wait.buckets.iter().sum()
}

/// Passes if it `holds`.
pub fn check(holds: bool, otherwise: impl FnOnce() -> String) -> Check {
    if holds { Ok(()) } else { Err(otherwise().into()) }
}

/// Fails a test whose run should have ended differently.
pub fn unexpected(result: Result<Outcome, RunError>) -> Check {
    match result {
        Ok(_) => Err("the run came to its end".into()),
        Err(error) => Err(error.into()),
    }
}

/// How often the locks counted an event.
#[must_use]
pub fn event(outcome: &Outcome, name: &str) -> u64 {
    outcome.lock_events.iter().find(|(event, _)| event == name).map_or(0, |(_, count)| *count)
}

/// How often the guest left for a reason.
#[must_use]
pub fn exits(outcome: &Outcome, name: &str) -> u64 {
    outcome.vm_exits.iter().find(|(exit, _)| *exit == name).map_or(0, |(_, count)| *count)
}

/// The sum over all activities of vCPUs that want to run.
#[must_use]
pub fn sum(by: &ByActivity<u64>) -> u64 {
    by.holder + by.head + by.waiter + by.other
}
