//! Guests to start, and figures of their outcomes; runs that must end by themselves, for tests of what ends them.

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use haltkick_vmm::{
    ARMS, ByActivity, Ended, Entry, Found, Image, Instruments, Outcome, Run, RunError, TicksHistogram, run,
};

use crate::config::Settings;

/// How long a slow host may take over what a test waits for and then ends at once.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Every form of every lock that guards sections, arms included; schemes of page faults guard none. With each whether it is paravirtual.
pub fn forms() -> Vec<(String, bool)> {
    let arms = ARMS.iter().map(|arm| arm.name);
    let image = Image::embedded().with_locks(arms).expect("arms are objects that can be linked");
    forms_of(image.locks.iter().filter(|lock| lock.is_lock_free() || !lock.serves_faults()))
}

/// Every form of these locks. With each whether it is paravirtual.
pub fn forms_of<'a>(locks: impl Iterator<Item = &'a Entry>) -> Vec<(String, bool)> {
    let forms = locks.flat_map(|lock| {
        let forms = [(lock.has_native(), false), (lock.has_paravirt(), true)];
        forms.into_iter().filter(|(has, _)| *has).map(|(_, pv)| (lock.name.clone(), pv))
    });
    forms.collect()
}

/// The embedded image with the arms and objects behind it that a run names.
fn image(config: &Run) -> Image {
    let ours = config.ours();
    Image::embedded().with_locks(ours.map(|asked| &*asked.ours.lock)).expect("what a run names can be linked")
}

/// Runs a guest of the embedded image until its end.
pub fn start(config: &Run) -> Result<Outcome, RunError> {
    start_with(config, &image(config))
}

/// Runs a guest of the embedded image, which comes to its end: a lost update, too, is an error of the run.
#[track_caller]
pub fn done(config: &Run) -> Outcome {
    start(config).unwrap_or_else(|error| {
        let ours = &config.our(0).ours;
        panic!("{} under {}, pv {}: {error}", ours.workload, ours.lock, config.guests[0].pv)
    })
}

/// Runs a guest of `image` until its end.
pub fn start_with(config: &Run, image: &Image) -> Result<Outcome, RunError> {
    run(config, image, &Instruments::default(), &AtomicBool::new(false))?.outcome()
}

/// Runs a guest of the embedded image until its end, or until `stop` is set.
pub fn start_stoppable(config: &Run, stop: &AtomicBool) -> Result<Outcome, RunError> {
    run(config, &image(config), &Instruments::default(), stop)?.outcome()
}

/// Runs a guest under `instruments`: how it ended, and what else the run found.
pub fn watched(config: &Run, instruments: &Instruments) -> Result<(Ended, Found), RunError> {
    let mut found = run(config, &image(config), instruments, &AtomicBool::new(false))?;
    let guest = found.guests.remove(0);
    Ok((guest, found))
}

/// Runs two guests until their end.
#[track_caller]
pub fn start_two(config: &Run) -> [Ended; 2] {
    found(config).guests.try_into().expect("two guests were asked for")
}

/// Runs guests, and says what the run found.
#[track_caller]
pub fn found(config: &Run) -> Found {
    run(config, &image(config), &Instruments::default(), &AtomicBool::new(false)).expect("a run")
}

/// Runs in windows of the asked length, of ten times it and of a hundred, until something was `seen`: in one window a vCPU may not come to
/// it, which depends on the scheduler and the host.
#[track_caller]
pub fn start_until(config: &Run, seen: impl Fn(&Outcome) -> bool) -> Outcome {
    let mut events = Vec::new();
    for factor in [1, 10, 100] {
        let outcome = done(&config.clone().window(config.window * factor));
        if seen(&outcome) {
            return outcome;
        }
        events = outcome.lock_events;
    }
    let ours = config.our(0).ours;
    panic!("{} under {}: not even in the longest window; {events:?}", ours.workload, ours.lock)
}

/// Checks that a guest which panics on its first vCPU says where, and one that takes an exception on its last vCPU, too.
#[track_caller]
pub fn dies_with_its_place(config: &Run) {
    match start(&config.clone().workload("selftest-panic")) {
        Err(RunError::GuestPanic { vcpu: 0, message, place }) => {
            assert_eq!(message, "this is what a panic looks like");
            assert!(place.contains("selftest.rs:") && !place.ends_with(":0"), "{place}");
        }
        other => panic!("{other:?}"),
    }
    match start(&config.clone().workload("selftest-exception")) {
        Err(RunError::GuestException { vcpu, name, place }) => {
            assert_eq!((vcpu + 1, name), (config.guests[0].vcpus, "#PF"));
            let is_told = |part: &str| place.contains(part);
            assert!(
                ["(vector 14,", "selftest::exception", ", address 0x10"].into_iter().all(is_told),
                "{place}"
            );
        }
        other => panic!("{other:?}"),
    }
}

/// How many times a histogram has.
pub fn count(times: &TicksHistogram) -> u64 {
    times.buckets.iter().sum()
}

/// How many times a run has reported under a workload's own name.
pub fn reported(outcome: &Outcome, name: &str) -> u64 {
    outcome.times.iter().find(|(known, _)| known == name).map_or(0, |(_, histogram)| count(histogram))
}

/// Checks that a run with wrong settings is refused in one line that says what is `expected`.
#[track_caller]
pub fn refused<T: Debug>(result: Result<T, RunError>, expected: &str) {
    match result {
        Err(error @ RunError::Usage(_)) => {
            let text = error.to_string();
            assert!(text.contains(expected) && !text.contains('\n'), "{text}: one line with `{expected}`");
        }
        other => panic!("{expected}: {other:?}"),
    }
}

/// Checks that a violation of mutual exclusion is found.
#[track_caller]
pub fn violates_exclusion(config: &Run) {
    let result = start(config);
    assert!(matches!(result, Err(RunError::ExclusionViolated(_))), "{result:?}");
}

/// Checks that a guest panics, and says what is `expected`.
#[track_caller]
pub fn panics<T: Debug>(result: Result<T, RunError>, expected: &str) {
    match result {
        Err(RunError::GuestPanic { message, .. }) => assert!(message.contains(expected), "{message}"),
        other => panic!("{expected}: {other:?}"),
    }
}

/// CPU time of all vCPUs in the window, as far as it is known.
pub fn run_ns(outcome: &Outcome) -> u64 {
    outcome.vcpus.iter().filter_map(|vcpu| vcpu.run_ns).sum()
}

/// How often the locks counted an event.
pub fn event(outcome: &Outcome, name: &str) -> u64 {
    outcome.lock_events.iter().find(|(event, _)| event == name).map_or(0, |(_, count)| *count)
}

/// How often the guest left for a reason.
pub fn exits(outcome: &Outcome, name: &str) -> u64 {
    outcome.vm_exits.iter().find(|(exit, _)| *exit == name).map_or(0, |(_, count)| *count)
}

/// The sum over all activities of vCPUs that want to run.
pub fn sum(by: &ByActivity) -> u64 {
    by.holder + by.head + by.waiter + by.other
}

/// Runs a guest until its end. Where nothing else ends it within `limit`, the test fails, instead of waiting forever.
#[track_caller]
pub fn within(limit: Duration, config: &Run) -> Result<Outcome, RunError> {
    let (begun, stop) = (Instant::now(), AtomicBool::new(false));
    let result = std::thread::scope(|scope| {
        let run = scope.spawn(|| start_stoppable(config, &stop));
        while !run.is_finished() {
            // Relaxed: the run polls it.
            stop.store(begun.elapsed() > limit, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(10));
        }
        run.join().expect("it does not panic")
    });
    assert!(!stop.into_inner(), "nothing but this test ended the run, after {limit:?}");
    result
}
