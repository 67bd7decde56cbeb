//! Settings that cannot be are refused with one line, by every entrance of the library, before anything is created.

mod base;

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use haltkick_vmm::{
    Deschedule, Engine, HowOften, Image, Instruments, Readings, RunConfig, RunError, Sched, Target,
    check_guests, run, run_with_readings,
};

fn base() -> RunConfig {
    base::config(Engine::Threads)
}

/// The one line of a refusal.
#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, RunError>) -> String {
    match result {
        Err(RunError::Usage(text)) => {
            assert!(!text.contains('\n'), "{text}");
            text
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn settings_that_cannot_be_are_refused_before_anything_runs() {
    let image = Image::embedded();
    check_guests(&base(), &image).expect("the base can be run");
    let twice = [base().cpus[0]; 2].to_vec();
    for (config, says) in [
        (RunConfig { slice: Duration::ZERO, ..base() }, "slice"),
        (RunConfig { cpus: twice, ..base() }, "twice"),
        (RunConfig { cpus: vec![], ..base() }, "pCPU"),
        (RunConfig { vcpus: 0, ..base() }, "vCPU"),
        (RunConfig { lock_count: 0, ..base() }, "locks"),
        (RunConfig { grace: Duration::from_secs(1), ..base() }, "grace"),
        (RunConfig { sched: Sched::Host, kick_yields: true, ..base() }, "scheduler"),
    ] {
        for text in [refused(config.check()), refused(run(&config, &image, &AtomicBool::new(false)))] {
            assert!(text.contains(says), "{text}");
        }
    }
}

#[test]
fn a_profile_without_a_period_is_refused() {
    for period in [Duration::ZERO, Duration::from_nanos(1), Duration::from_secs(3600)] {
        let instruments = Instruments { profile: Some(period), trace: false, ..Instruments::default() };
        let (stop, mut readings) = (AtomicBool::new(false), Readings::default());
        let result = run_with_readings(&base(), &Image::embedded(), &stop, &instruments, &mut readings);
        assert!(refused(result).contains("apart"));
    }
}

#[test]
fn a_point_beyond_the_64th_is_refused() {
    let mut image = Image::embedded();
    let point = image.points[0].clone();
    let lock = image.locks.iter().find(|lock| lock.has_points() && lock.has_paravirt()).unwrap().name.clone();
    while image.points.len() < 65 {
        let mut another = point.clone();
        another.name = format!("point{}", image.points.len());
        image.points.push(another);
    }
    let at = |index: usize| RunConfig {
        lock: lock.clone(),
        deschedule: Some(Deschedule {
            target: Target::Random,
            how_often: HowOften::Probability(0.5),
            length: Duration::from_millis(1),
            at: Some(image.points[index].name.clone()),
        }),
        ..base()
    };
    check_guests(&at(63), &image).expect("it has a bit");
    assert!(refused(check_guests(&at(64), &image)).contains("first 64"));
}
