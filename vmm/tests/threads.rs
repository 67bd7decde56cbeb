//! The image without `/dev/kvm`, on threads of this process. Tests here must do with two noisy pCPUs.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use haltkick_vmm::{Engine, PreemptedSource, Ring, Run, RunError, Sched};
use libtest_mimic::Arguments;
use support::{
    Check, PATIENCE, Settings, apply, dies_with_its_place, exits, forms, start, start_stoppable, trial,
};

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // The image's addresses are there once in a process.
    arguments.test_threads = Some(1);
    let conclusion = libtest_mimic::run(&arguments, support::trials(false));
    support::note("threads", &conclusion, None);
    conclusion.exit_code()
}

/// For what has to happen by itself, on a host that may be busy with something else.
const LONG: Duration = Duration::from_millis(500);

fn config() -> Run {
    let base = support::on(Engine::Threads);
    let vcpus = base.guests[0].vcpus * 2;
    base.vcpus(vcpus).window(Duration::from_millis(60))
}

#[apply(trial)]
fn every_form_of_every_lock_excludes_under_either_scheduler() -> Check {
    for ((lock, pv), sched) in forms().into_iter().zip([Sched::Vmm, Sched::Host].into_iter().cycle()) {
        let outcome = start(&config().lock(&*lock).pv(pv).sched(sched))
            .unwrap_or_else(|error| panic!("{lock} pv {pv} {sched:?}: {error}"));
        assert_eq!(outcome.lost_updates, (lock != "none").then_some(0), "{lock} pv {pv}");
        assert_eq!(outcome.ring, Ring::Ring3);
    }
    Ok(())
}

#[apply(trial)]
fn every_vcpu_adds_to_a_shared_word() -> Check {
    for workload in ["line-add", "list-refcount"] {
        let outcome =
            start(&config().workload(workload).lock("none").pv(false).think(Duration::ZERO).window(LONG))
                .unwrap();
        let least = outcome.vcpus.iter().map(|vcpu| vcpu.acquisitions).min();
        assert!(least > Some(0), "{workload}: a vCPU did nothing");
    }
    Ok(())
}

#[apply(trial)]
fn a_kick_before_the_wait_is_latched() -> Check {
    for sched in [Sched::Vmm, Sched::Host] {
        let outcome = start(&config().workload("selftest-latch").sched(sched)).unwrap();
        let rounds = outcome.acquisitions();
        assert!(rounds > 0, "no round was completed under {sched:?}");
        assert!(exits(&outcome, "pv_wait") >= rounds && exits(&outcome, "pv_kick") >= 2 * rounds);
    }
    Ok(())
}

#[apply(trial)]
fn slices_end_by_the_timer_and_mark_the_vcpu_as_preempted() -> Check {
    let outcome = start(&config().workload("selftest-preempted").window(LONG)).unwrap();
    assert_eq!(outcome.preempted_source, Ok(PreemptedSource::Vmm));
    assert!(outcome.vcpus.iter().any(|vcpu| vcpu.preemptions > 0), "nobody was preempted");
    assert!(outcome.vcpus.iter().any(|vcpu| vcpu.acquisitions > 0), "no vCPU was ever seen marked");
    let unavailable = start(&config().sched(Sched::Host)).unwrap().preempted_source;
    assert!(unavailable.is_err(), "{unavailable:?}");
    Ok(())
}

#[apply(trial)]
fn a_panic_and_an_exception_are_reported_with_their_place() -> Check {
    dies_with_its_place(&config().window(PATIENCE))
}

#[apply(trial)]
fn a_hang_ends_and_a_section_without_a_lock_is_found() -> Check {
    for sched in [Sched::Vmm, Sched::Host] {
        match start(
            &config()
                .workload("selftest-hang")
                .sched(sched)
                .watchdog(Duration::from_millis(300))
                .window(PATIENCE),
        ) {
            Err(RunError::NoProgress(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    match start(&config().workload("selftest-exclusion").window(LONG)) {
        Err(RunError::ExclusionViolated(_)) => {}
        other => panic!("{other:?}"),
    }
    Ok(())
}

#[apply(trial)]
fn a_guest_of_1024_vcpus_runs_every_one_of_them() -> Check {
    let config = config().vcpus(1024).lock("none").pv(false).watchdog(PATIENCE);
    assert_eq!(start(&config).unwrap().vcpus.len(), 1024);
    Ok(())
}

#[apply(trial)]
fn two_guests_at_once_ring_0_and_page_tables_are_refused() -> Check {
    match start(&config().ring(Ring::Ring0)) {
        Err(RunError::Usage(text)) => assert!(text.message.contains("ring 3"), "{text}"),
        other => panic!("{other:?}"),
    }
    match start(&config().workload("selftest-page-fault")) {
        Err(RunError::Usage(text)) => assert!(text.message.contains("page tables"), "{text}"),
        other => panic!("{other:?}"),
    }
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
    Ok(())
}
