//! vCPUs stopped at named points of the slow paths: exclusion and progress must survive each.

use std::time::Duration;

use haltkick_vmm::{HowOften, Image, Target};
use libtest_mimic::Trial;
use support::{Check, Settings, apply, check, config, deschedule, named, start, sum, trial};

#[apply(trial)]
fn every_instrumented_lock_is_stopped_at_its_points() -> Vec<Trial> {
    let mut trials = vec![];
    for (lock, pv, points) in INSTRUMENTED {
        for point in points.split(' ') {
            let form = if pv { "pv" } else { "native" };
            let title = format!("{lock}_{form}_excludes_when_stopped_at_{}", point.replace('-', "_"));
            trials.push(named(title, move || excludes_when_stopped(lock, pv, point)));
        }
    }
    trials
}

/// The points that each form of an instrumented lock passes.
const INSTRUMENTED: [(&str, bool, &str); 4] = [
    ("qspinlock-points", false, "node-claimed tail-published pending-set handed-over"),
    (
        "qspinlock-points",
        true,
        "node-claimed tail-published halted-published handed-over successor-hashed head-spinning head-hashed \
         slow-seen entry-removed slow-released before-sleep",
    ),
    ("ticket-points", true, "halted-published slow-released before-sleep"),
    ("owner-yield-points", true, "node-claimed tail-published handed-over"),
];

/// In this many runs most vCPUs may pass the point; in those after them none may.
const PATIENT: u64 = 3;

/// Steers the races of the literature: each vCPU that passes the point may lose its CPU there, for longer than a slice.
fn excludes_when_stopped(lock: &str, pv: bool, point: &str) -> Check {
    let stop = |chance| {
        let chance = HowOften::Probability(chance);
        deschedule(Target::Random, chance, Duration::from_micros(1500), Some(point))
    };
    // Only the first that finds the lock held passes here, so there must be times without other waiters.
    let vcpus = if point == "pending-set" { 2 } else { config().guests[0].vcpus };
    let mut seed = 0;
    // A point may be passed rarely: another seed and a longer window follow until a vCPU was stopped there, and after some runs every
    // vCPU that passes is stopped.
    let injected = loop {
        seed += 1;
        let outcome = start(
            &config()
                .vcpus(vcpus)
                .lock(lock)
                .pv(pv)
                .seed(seed)
                .deschedule(stop(if seed <= PATIENT { 0.2 } else { 1.0 }))
                .spin_threshold(Duration::from_micros(2))
                .window(Duration::from_millis(40) * seed.min(25) as u32),
        )?;
        check(outcome.lost_updates == Some(0), || format!("lost updates: {:?}", outcome.lost_updates))?;
        let injected = outcome.injected.ok_or("nothing is known of what was injected")?;
        if sum(&injected) > 0 || seed == 50 {
            break injected;
        }
    };
    let image = Image::embedded();
    let doing = image.points.iter().find(|entry| entry.name == point).ok_or("no such point")?;
    let doing = Target::of_point(doing);
    let as_told = match doing {
        Some(Target::Holder) => injected.holder,
        Some(Target::Head) => injected.head,
        Some(Target::Waiter) => injected.waiter,
        _ => sum(&injected),
    };
    check(as_told > 0 && as_told == sum(&injected), || format!("stopped at {point}: {injected:?}"))
}
