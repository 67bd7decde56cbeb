//! The image without `/dev/kvm`, on threads of this process. Tests here must do with two noisy pCPUs.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use haltkick_vmm::{Engine, PreemptedSource, Ring, Run, RunError, Sched};
use support::{
    PATIENCE, Settings, apply, dies_with_its_place, done, forms, ms, start, start_stoppable, trial,
    violates_exclusion,
};

fn main() -> ExitCode {
    support::conclude(support::trials(false), "guests on threads", "threads", None).exit_code()
}

/// For what has to happen by itself, on a host that may be busy with something else.
const LONG: Duration = ms(500);

fn config() -> Run {
    let base = support::on(Engine::Threads);
    let vcpus = base.guests[0].vcpus * 2;
    base.vcpus(vcpus).window(ms(60))
}

#[apply(trial)]
fn every_form_of_every_lock_excludes_under_either_scheduler() {
    for ((lock, pv), sched) in forms().into_iter().zip([Sched::Vmm, Sched::Host].into_iter().cycle()) {
        let outcome = done(&config().form(&*lock, pv).sched(sched));
        assert_eq!(outcome.lost_updates, (lock != "none").then_some(0), "{lock} pv {pv}");
        assert_eq!(outcome.ring, Ring::Ring3);
    }
}

#[apply(trial)]
fn slices_end_by_the_timer_and_mark_the_vcpu_as_preempted() {
    let outcome = done(&config().workload("selftest-preempted").window(LONG));
    assert_eq!(outcome.preempted_source, Ok(PreemptedSource::Vmm));
    assert!(outcome.vcpus.iter().any(|vcpu| vcpu.preemptions > 0), "nobody was preempted");
    assert!(outcome.vcpus.iter().any(|vcpu| vcpu.acquisitions > 0), "no vCPU was ever seen marked");
    let unavailable = done(&config().sched(Sched::Host)).preempted_source;
    assert!(unavailable.is_err(), "{unavailable:?}");
}

#[apply(trial)]
fn a_guest_that_dies_hangs_or_does_not_exclude_is_found() {
    dies_with_its_place(&config().window(PATIENCE));
    for sched in [Sched::Vmm, Sched::Host] {
        let hang = config().workload("selftest-hang").sched(sched);
        let ended = start(&hang.watchdog(ms(300)).window(PATIENCE));
        assert!(matches!(ended, Err(RunError::NoProgress(_))), "{ended:?}");
    }
    violates_exclusion(&config().workload("selftest-exclusion").window(LONG));
}

#[apply(trial)]
fn a_guest_of_1024_vcpus_runs_every_one_of_them() {
    let config = config().vcpus(1024).workload("selftest-latch").watchdog(PATIENCE);
    assert_eq!(done(&config).vcpus.len(), 1024);
}

#[apply(trial)]
fn a_kick_before_the_wait_is_latched(sched: Sched) {
    let outcome = done(&config().workload("selftest-latch").sched(sched));
    assert!(outcome.acquisitions() > 0, "no round was completed under {sched:?}");
}

#[apply(trial)]
fn two_guests_at_once_are_refused() {
    // A run that lasts until it is told to stop, and another one next to it.
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| start_stoppable(&config().window(PATIENCE), &stop));
        let mapped = || {
            std::fs::read_to_string("/proc/self/maps")
                .unwrap()
                .lines()
                .any(|line| line.starts_with("00200000-"))
        };
        while !mapped() && !first.is_finished() {
            std::thread::yield_now();
        }
        let second = start(&config());
        stop.store(true, Ordering::Relaxed);
        match second {
            Err(RunError::HostLacks(text)) => assert!(text.contains("one guest at a time"), "{text}"),
            other => panic!("{other:?}"),
        }
        assert!(matches!(first.join().unwrap(), Err(RunError::Interrupted)));
    });
}
