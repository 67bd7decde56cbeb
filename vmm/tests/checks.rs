//! Settings that cannot be are refused with one line, by every entrance of the library, before anything is created.

use std::time::Duration;

use haltkick_vmm::{
    Bandwidth, Engine, HowOften, Image, Instruments, Quota, Run, RunError, Sched, Target, check_guests,
};
use support::{Settings, deschedule, start_with, watched};

fn base() -> Run {
    support::on(Engine::Threads)
}

/// A quota of `run_us` microseconds in a millisecond, which the VMM can keep.
fn quota(run_us: u64) -> Quota {
    let [run, period] = [run_us, 1000].map(Duration::from_micros);
    Quota::Own(Bandwidth { run, period, burst: Duration::ZERO })
}

/// The one line of a refusal.
#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, RunError>) -> String {
    match result {
        Err(error @ RunError::Usage(_)) => {
            let text = error.to_string();
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
        (base().slice(Duration::ZERO), "slice"),
        (base().cpus(twice), "twice"),
        (base().cpus(vec![]), "pCPU"),
        (base().vcpus(0), "vCPU"),
        (base().lock_count(0), "locks"),
        (base().grace(Duration::from_secs(1)), "grace"),
        (base().sched(Sched::Host).kick_yields(true), "scheduler"),
        (base().sched(Sched::Host).quota(quota(500)), "quota"),
    ] {
        for text in [refused(config.check()), refused(start_with(&config, &image))] {
            assert!(text.contains(says), "{text}");
        }
    }
}

#[test]
fn a_profile_without_a_period_is_refused() {
    for period in [Duration::ZERO, Duration::from_nanos(1), Duration::from_secs(3600)] {
        let instruments = Instruments { profile: Some(period), ..Instruments::default() };
        assert!(refused(watched(&base(), &instruments)).contains("out of range"));
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
    let at = |index: usize| {
        let (often, length) = (HowOften::Probability(0.5), Duration::from_millis(1));
        let point = Some(image.points[index].name.as_str());
        base().lock(lock.clone()).deschedule(deschedule(Target::Random, often, length, point))
    };
    check_guests(&at(63), &image).expect("it has a bit");
    assert!(refused(check_guests(&at(64), &image)).contains("first 64"));
}
