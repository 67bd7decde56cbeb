//! The instrument itself: its counts, the vCPUs it watches, and its return values.

use haltkick_hypercalls::ABI_FINGERPRINT;
use haltkick_vmm::{Ideal, Image, Outcome, Shape, ShapeFlags};
use support::{
    Settings, apply, config, count, done, ms, panics, reported, start_until, start_with, trial, us,
};

/// A vCPU sees the window change between any two of its steps.
fn about_equal(one: u64, other: u64, outcome: &Outcome) -> bool {
    one.abs_diff(other) <= outcome.vcpus.len() as u64
}

#[apply(trial)]
fn times_of_faults_are_those_of_the_window_alone() {
    for workload in ["fault-map-touch", "fault-private"] {
        let outcome = done(
            &config()
                .workload(workload)
                .lock("mmap-sem")
                // Most of the faults come before the window.
                .warmup(ms(400))
                // The window doubles where an emulated machine stands still in it.
                .min_sections(1),
        );
        let (sections, faults) = (outcome.acquisitions(), reported(&outcome, "fault"));
        let changes = reported(&outcome, "map-unmap");
        assert!(
            about_equal(faults, sections, &outcome) && about_equal(changes, sections, &outcome),
            "{workload}: {sections} sections, {faults} times of faults, {changes} of changes"
        );
        assert!(sections > 0, "{workload}: nothing was done");
    }
}

/// Evidence, not a rate: a slice must end within a section, which is a matter of chance.
#[apply(trial)]
fn every_workload_with_a_lock_gives_back_the_rest_of_its_grace() {
    let slice = us(500);
    for (workload, lock, pv) in [
        ("critical-section", "tas", false),
        ("mixed", "tas", false),
        ("copy-4096", "tas", false),
        ("rwlock-fair", "tas", false),
        ("grant-single", "tas", false),
        ("fault-map-touch", "mmap-sem", true),
    ] {
        let config = config().workload(workload).form(lock, pv).slice(slice).grace(slice).hold(us(20));
        start_until(&config.window(ms(400)), |outcome| {
            outcome.graces.is_some_and(|graces| graces.granted > graces.expired)
        });
    }
}

/// The image, whose code has another fingerprint than its note says.
#[apply(trial)]
fn a_guest_stops_where_the_vmm_speaks_another_state_of_the_abi() {
    let (mut elf, fingerprint) = (Image::embedded_elf().to_vec(), ABI_FINGERPRINT.to_le_bytes());
    let owner = elf.windows(9).position(|bytes| bytes == b"Haltkick\0").expect("no note");
    let note = owner + 12..owner + 12 + 24;
    for at in 0..elf.len() - 8 {
        if elf[at..at + 8] == fingerprint && !note.contains(&at) {
            elf[at] ^= 1;
        }
    }
    // Cargo has made this directory only on the machine that builds.
    let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    std::fs::create_dir_all(directory).unwrap();
    let path = directory.join("other-abi");
    std::fs::write(&path, elf).unwrap();
    panics(start_with(&config(), &Image::from_file(&path).unwrap()), "another ABI");
}

#[apply(trial)]
fn without_the_oracle_nobody_speaks_of_lost_updates_and_sections_still_count() {
    let outcome = done(&config().oracle(false));
    assert!(outcome.lost_updates.is_none(), "lost updates: {:?}", outcome.lost_updates);
    assert!(outcome.costs.oracle.is_none(), "the oracle costs something, and is off");
    assert!(outcome.acquisitions() > 0, "no section was completed");
    // Without the checker, the error that it is there to find goes unnoticed.
    done(&config().oracle(false).workload("selftest-exclusion"));
}

#[apply(trial)]
fn sections_have_wait_hold_and_unlock_times_with_either_kind_of_stamps() {
    for ordered_stamps in [true, false] {
        let outcome = done(&config().ordered_stamps(ordered_stamps));
        let sections = outcome.acquisitions();
        for (name, times) in [("wait", &outcome.wait), ("hold", &outcome.hold), ("unlock", &outcome.unlock)] {
            assert!(
                about_equal(count(times), sections, &outcome),
                "{} times of {name} in {sections} sections",
                count(times)
            );
        }
        assert_eq!(outcome.tsc_steps_back, 0);
    }
}

#[apply(trial)]
fn only_workloads_of_known_work_have_an_ideal() {
    let copies = || Shape { footprint_lines: 4, ..Shape::default() };
    for (workload, shape, expected) in [
        ("critical-section", Shape::default(), Ideal::Serial),
        ("critical-section", copies(), Ideal::LockFree),
        ("compute", Shape::default(), Ideal::LockFree),
        ("copy-256", Shape::default(), Ideal::Unknown),
        ("rwlock-fair", Shape::default(), Ideal::LockFree),
        ("hand-off", Shape::default(), Ideal::Unknown),
    ] {
        let outcome = done(&config().workload(workload).shape(shape));
        assert_eq!(outcome.ideal, expected, "{workload}");
        let events: u64 = outcome.lock_events.iter().map(|(_, count)| count).sum();
        assert!(workload != "compute" || events == 0 && outcome.acquisitions() > 0, "it takes no lock");
    }
}

#[apply(trial)]
fn sections_of_every_shape_exclude() {
    let plain = Shape::default;
    for shape in [
        Shape { flags: ShapeFlags::EXPONENTIAL_THINK, ..plain() },
        Shape { hold_jitter_percent: 50, ..plain() },
        Shape { zipf_hundredths: 120, ..plain() },
        Shape { footprint_lines: 64, dirty_lines: 8, ..plain() },
    ] {
        for (lock, pv) in [("qspinlock", true), ("none", false)] {
            let outcome = done(&config().shape(shape).form(lock, pv).lock_count(7));
            assert_eq!(outcome.lost_updates.unwrap_or(0), 0, "{lock}, {shape:?}");
            assert!(outcome.acquisitions() > 0, "{lock}, {shape:?}: no section");
        }
    }
}

/// Far more sections than there is time for: each waits from when it was to begin, so that the last ones have waited for
/// most of the run, where no section by itself takes a hundredth of it.
#[apply(trial)]
fn sections_by_the_clock_wait_from_when_they_were_to_begin() {
    let shape = Shape { arrivals_ns: 100, flags: ShapeFlags::EXPONENTIAL_THINK, ..Shape::default() };
    let outcome = done(&config().vcpus(1).shape(shape));
    let window_ticks = outcome.window.as_nanos() as u64 * outcome.tsc_khz / 1_000_000;
    assert!(
        outcome.wait.max > window_ticks / 2,
        "the longest wait of an overloaded vCPU was {} of {window_ticks} ticks",
        outcome.wait.max
    );
}
