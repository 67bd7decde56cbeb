//! The same image under QEMU's emulator, which is slow: few runs, and short ones. Skipped, with the reason, without QEMU.

use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use haltkick_vmm::{
    Accelerator, Deschedule, Engine, HowOften, Image, Instruments, Mix, Outcome, PreemptedBy,
    PreemptedSource, PvBackend, Readings, Ring, RunConfig, RunError, Sched, Share, Target, allowed_cpus,
    find_qemu, run, run_with_readings,
};
use libtest_mimic::{Arguments, Failed, Trial};

type Check = Result<(), Failed>;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(1);
    let lacking = find_qemu().err();
    if let Some(reason) = &lacking {
        eprintln!("guests under QEMU are skipped, not tested: {reason}");
    }
    let trials = [
        Trial::test("every_vcpu_is_there_and_the_lock_excludes_in_either_form", locks_exclude),
        Trial::test("a_kick_before_the_wait_is_latched", latch),
        Trial::test("a_panic_and_an_exception_are_reported_with_their_place", failures_are_reported),
        Trial::test("a_section_without_a_lock_violates_exclusion", exclusion_is_checked),
        Trial::test("a_request_to_stop_ends_the_run", stop_request),
    ];
    let mut trials: Vec<_> =
        trials.into_iter().map(|trial| trial.with_ignored_flag(lacking.is_some())).collect();
    trials.push(Trial::test("what_qemu_cannot_serve_is_refused_with_a_reason", refusals));
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn config() -> RunConfig {
    RunConfig {
        engine: Engine::Qemu(Accelerator::Tcg),
        vcpus: 4,
        cpus: allowed_cpus().into_iter().take(2).collect(),
        ring: Ring::Auto,
        sched: Sched::Host,
        slice: Duration::from_millis(1),
        grace: Duration::ZERO,
        slice_margin: Duration::from_micros(10),
        kick_yields: false,
        attribution: true,
        deschedule: None,
        lock: "qspinlock".into(),
        pv: true,
        patch: true,
        preempted_hint: true,
        preempted_by: PreemptedBy::Auto,
        pv_backend: PvBackend::Auto,
        halt_poll: None,
        pause_exits: true,
        hlt_exits: true,
        spin_threshold: Duration::from_micros(20),
        workload: "critical-section".into(),
        hold: Duration::from_micros(1),
        think: Duration::from_micros(2),
        lock_count: 1,
        mix: Mix::default(),
        memory_bytes: 0,
        work_rate: None,
        warmup: Duration::from_millis(10),
        window: Duration::from_millis(100),
        watchdog: None,
        seed: 1,
        name: "guest".into(),
        beside: vec![],
        share: Share::Vcpu,
    }
}

fn start(config: &RunConfig) -> Result<Outcome, RunError> {
    run(config, &Image::embedded(), &AtomicBool::new(false))
}

fn locks_exclude() -> Check {
    for (lock, pv) in [("qspinlock", true), ("mcs", false)] {
        let outcome = start(&RunConfig { lock: lock.into(), pv, ..config() })?;
        assert_eq!((outcome.vcpus.len(), outcome.lost_updates), (4, Some(0)), "{lock}");
        assert!(outcome.acquisitions() > 0, "{lock} was never taken");
        assert_eq!(outcome.hold.buckets.iter().sum::<u64>(), outcome.acquisitions(), "{lock}: one hold each");
        assert!(outcome.window >= config().window && outcome.work_rate > 0);
        assert_eq!((outcome.ring, outcome.pv_backend), (Ring::Ring0, PvBackend::Ipi));
        assert!(matches!(outcome.preempted_source, PreemptedSource::Unavailable(_)));
    }
    Ok(())
}

fn latch() -> Check {
    let outcome = start(&RunConfig { workload: "selftest-latch".into(), ..config() })?;
    assert!(outcome.acquisitions() > 0, "no round was completed");
    Ok(())
}

fn failures_are_reported() -> Check {
    match start(&RunConfig { workload: "selftest-panic".into(), ..config() }) {
        Err(RunError::GuestPanic { vcpu: 0, message, file, .. }) => {
            assert_eq!(message, "this is what a panic looks like");
            assert!(file.ends_with("selftest.rs"), "{file}");
        }
        other => panic!("{other:?}"),
    }
    match start(&RunConfig { workload: "selftest-exception".into(), ..config() }) {
        Err(RunError::GuestException { vector: 14, location, detail, .. }) => {
            assert!(location.contains("selftest::exception"), "{location}");
            assert!(detail.contains("0x10"), "{detail}");
        }
        other => panic!("{other:?}"),
    }
    Ok(())
}

fn exclusion_is_checked() -> Check {
    match start(&RunConfig { workload: "selftest-exclusion".into(), ..config() }) {
        Err(RunError::ExclusionViolated(_)) => Ok(()),
        other => panic!("{other:?}"),
    }
}

fn stop_request() -> Check {
    let window = Duration::from_secs(600);
    match run(&RunConfig { window, ..config() }, &Image::embedded(), &AtomicBool::new(true)) {
        Err(RunError::Interrupted) => Ok(()),
        other => panic!("{other:?}"),
    }
}

fn refusals() -> Check {
    let deschedule = Deschedule {
        target: Target::Random,
        how_often: HowOften::PerSecond(10.0),
        length: Duration::from_millis(1),
        at: None,
    };
    for (wrong, reason) in [
        (RunConfig { sched: Sched::Vmm, ..config() }, "--sched host"),
        (RunConfig { deschedule: Some(deschedule), ..config() }, "deschedules on purpose"),
        (RunConfig { ring: Ring::Ring3, ..config() }, "ring 0"),
        (RunConfig { pv_backend: PvBackend::Vmm, ..config() }, "no doorbells"),
        (RunConfig { halt_poll: Some(Duration::ZERO), ..config() }, "--halt-poll"),
        (RunConfig { mix: Mix { long_one_in: 8, ..Mix::default() }, ..config() }, "long or nested"),
        (RunConfig { workload: "selftest-page-fault".into(), ..config() }, "page tables"),
        (RunConfig { vcpus: 255, ..config() }, "254"),
    ] {
        match start(&wrong) {
            Err(RunError::Usage(text)) => assert!(text.contains(reason), "{text}"),
            other => panic!("{reason}: {other:?}"),
        }
    }
    let instruments = Instruments { trace: true, ..Instruments::default() };
    let stop = AtomicBool::new(false);
    match run_with_readings(&config(), &Image::embedded(), &stop, &instruments, &mut Readings::default()) {
        Err(RunError::Usage(text)) => assert!(text.contains("--trace"), "{text}"),
        other => panic!("{other:?}"),
    }
    Ok(())
}
