use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use haltkick_vmm::{OurGuest, VirtualTime, WorkSpeed};

use super::*;
use crate::analysis::consistency;
use crate::analysis::summary::Summary;
use crate::measure::synthetic::{Scratch, Shape, Sketch, World};
use crate::record::figures::{EFFICIENCY, LOCK_FREE, WORK_RATE, WORK_SPEED};

const ONCE: Rule = Rule { blocks: 4, target_precision: None, max_time: None, retries: 0, ends_in_vain: None };

/// All records of a session on `world`, those of runs that were made again too.
fn records(name: &str, world: &World, plan: &Plan, rule: Rule) -> Vec<Record> {
    resumed(name, world, plan, rule, &[])
}

/// These, and those of a session that goes on with them.
fn resumed(name: &str, world: &World, plan: &Plan, rule: Rule, earlier: &[Record]) -> Vec<Record> {
    let (engine, watcher, scratch) = (world.engine(), world.watcher(), Scratch::new(name));
    let mut session = world.session(plan, &engine, &watcher, &scratch);
    session.records = earlier.to_vec();
    session.run(rule).unwrap();
    session.records
}

/// End, records and failed runs of a session whose engine fails as `fails` says.
fn with_failures(
    name: &str,
    world: &World,
    plan: &Plan,
    rule: Rule,
    fails: impl Fn(OurGuest<'_>) -> Option<RunError>,
) -> (Result<()>, Vec<Record>, Vec<FailedRun>) {
    let (scratch, good, watcher) = (Scratch::new(name), world.engine(), world.watcher());
    let engine = |run: &Run| {
        let found = good(run)?;
        fails(run.our(0)).map_or(Ok(found), Err)
    };
    let mut session = world.session(plan, &good, &watcher, &scratch);
    session.engine = &engine;
    let ended = session.run(rule);
    (ended, session.records, session.failed)
}

fn stuck() -> Option<RunError> {
    Some(RunError::NoProgress("nothing moved".into()))
}

/// Every second run of one lock is disturbed, and every run of another.
fn disturbed_world() -> World {
    World::new(1)
        .disturbed(|asked, run| asked.ours.lock == "mcs" || (asked.ours.lock == "tas" && run % 2 == 0))
}

#[test]
fn disturbed_runs_are_made_again_and_the_last_attempt_counts() {
    let plan = Sketch::new().arm("a", "tas").arm("b", "mcs").compared().plan(4);
    let records = records("again", &disturbed_world(), &plan, Rule { retries: 2, ..ONCE });
    let last = consistency::last_attempts(&records);
    assert_eq!(last.len(), 4 * 3, "one of each cell and block counts");
    let runs = |lock: &str| {
        last.iter().filter(|record| record.settings.text("lock") == Some(lock)).collect::<Vec<_>>()
    };
    assert!(runs("tas").iter().all(|record| record.trusted), "the second attempt goes well");
    let given_up = runs("mcs");
    assert!(given_up.iter().all(|record| !record.trusted), "it is disturbed whenever it runs");
    assert!(given_up.iter().all(|record| record.placed().replaces.len() == 2));
    let summary = Summary::new(&plan.outline, &last);
    assert_eq!(summary.replaced, records.len() - last.len());
    let again = format!("12 runs in 4 blocks ({} more were disturbed and made again)", summary.replaced);
    assert_eq!(summary.extent(), again);
    let in_no_time = Rule { retries: 9, max_time: Some(Duration::ZERO), ..ONCE };
    for (name, rule, runs) in [("no-leave", ONCE, 4 * 3), ("no-time", in_no_time, 3)] {
        assert_eq!(self::records(name, &disturbed_world(), &plan, rule).len(), runs, "{name}");
    }
}

#[test]
fn a_block_is_given_the_clock_of_the_one_before() {
    let plan = Sketch::two().plan(4);
    // The clock falls by a tenth after the calibration, whose runs are given no rate.
    let world = World::new(1).adjust(|asked, outcome| {
        let Some(given) = asked.run.work_rate else { return };
        let over_promised = 0.9 * f64::from(1 << 20) / given as f64;
        outcome.work_rate = given;
        outcome.work.fill(Some(WorkSpeed { over_promised, pieces: 100 }));
    });
    for record in &records("clock", &world, &plan, ONCE) {
        let is_off = record.warnings.iter().any(|warning| warning.code == "work-off");
        assert_eq!(is_off, is_in(record, 0), "{:?}: {:?}", record.place, record.figure(WORK_SPEED));
    }
    // Pieces too short to be timed exactly change no rate.
    let plan = Sketch::new().arm_with("a", "lock = \"tas\"\nhold = \"200ns\"").plan(2);
    let speed = WorkSpeed { over_promised: 1.07, pieces: 100 };
    let world = World::new(1).adjust(move |_, outcome| outcome.work.fill(Some(speed)));
    let records = records("short-pieces", &world, &plan, Rule { blocks: 2, ..ONCE });
    let rates: Vec<Option<f64>> = records.iter().map(|record| record.figure(WORK_RATE)).collect();
    assert_eq!(rates.first(), rates.last(), "{rates:?}");
}

#[test]
fn attempts_end_on_a_disturbed_host_and_resume_when_it_is_quiet() {
    let plan = Sketch::new().arm("a", "tas").plan(40);
    let world = World::new(1).disturbed(|_, run| run < 60);
    let records = records("in-vain", &world, &plan, Rule { blocks: 40, retries: 2, ..ONCE });
    let again = records.len() - 40 * 2;
    assert_eq!(again, 10, "ten in vain, and then none");
    let world = World::new(1).disturbed(|_, run| run < 60 || run == 70);
    let records = self::records("taken-up", &world, &plan, Rule { blocks: 40, retries: 2, ..ONCE });
    assert_eq!(records.len() - 40 * 2, 11);
}

#[test]
fn an_experiment_whose_runs_are_all_spoilt_ends_after_two_blocks() {
    let ended = |name: &str, spoils: fn(u64) -> bool, rule: Rule| {
        let plan = Sketch::new().arm("a", "tas").plan(rule.blocks);
        let world = World::new(1).disturbed(move |_, run| spoils(run));
        let (ended, records, _) = with_failures(name, &world, &plan, rule, |_| None);
        (ended.map_err(|failure| (failure.exit, failure.message)), records.len())
    };
    let at_once = Rule { blocks: 8, ends_in_vain: Some(Duration::ZERO), ..ONCE };
    let (stopped, runs) = ended("all-spoilt", |_| true, at_once);
    let (exit, message) = stopped.unwrap_err();
    assert_eq!((exit, runs), (Exit::Untrusted, 4));
    let stop = "stopped after 2 blocks, since 4 of the last 4 runs are invalid (busy-neighbour): other processes use the pCPUs (";
    assert!(message.starts_with(stop) && message.ends_with(", --anyway goes on"), "{message}");
    for (name, spoils, rule, made) in [
        // Three runs calibrate, and three blocks are quiet.
        ("late", (|run| run >= 9) as fn(u64) -> bool, at_once, 10),
        // Six blocks are the fewest before precision is judged, and more would follow.
        ("last-planned", |run| run >= 11, Rule { blocks: 6, target_precision: Some(1e-9), ..at_once }, 12),
    ] {
        let (stopped, runs) = ended(name, spoils, rule);
        assert!(stopped.is_err() && runs == made, "{name}: {runs} runs");
    }
    for (name, spoils, rule) in [
        ("anyway", (|_| true) as fn(u64) -> bool, Rule { ends_in_vain: None, ..at_once }),
        ("soon-done", |_| true, Rule { ends_in_vain: Some(Duration::from_secs(10)), ..at_once }),
        ("one-in-four-is-valid", |run| run % 4 != 0, at_once),
    ] {
        assert_eq!(ended(name, spoils, rule), (Ok(()), 16), "{name}");
    }
}

#[test]
fn runs_made_ahead_are_all_wanted_and_recorded_in_turn() {
    let plan = Sketch::two().axis("ratio", &["1", "8"]).plan(8);
    for (name, rule) in [
        ("planned", Rule { blocks: 8, ..ONCE }),
        ("precise", Rule { blocks: 2, target_precision: Some(0.2), ..ONCE }),
        ("timed", Rule { blocks: 8, max_time: Some(Duration::from_secs(3600)), ..ONCE }),
    ] {
        // Figures follow from the settings.
        let world = World::new(1);
        let world = world.truth(|asked| 1e6 / (asked.guest.seed + asked.ours.lock.len() as u64) as f64);
        let (engine, watcher, scratch) = (world.engine(), world.watcher(), Scratch::new(name));
        let stop = AtomicBool::new(false);
        // Later runs are made faster, so that they are done first where they can.
        let simulate = |run: &Run, _: Arc<VirtualTime>| {
            std::thread::sleep(Duration::from_micros(3000 / (world.runs() + 1)));
            (engine(run).map(|seen| seen.found), String::new())
        };
        let ahead = Ahead::new(NonZeroUsize::new(4).unwrap(), &simulate, &stop);
        let mut session = world.session(&plan, &engine, &watcher, &scratch);
        session.simulators = Some(&ahead);
        let before = world.runs();
        session.run(rule).unwrap();
        let (records, runs) = (session.records, world.runs() - before);
        assert!(records.len() >= 6 * 6, "{name}: {} records", records.len());
        assert_eq!(runs as usize, records.len(), "{name}: every run is wanted");
        assert!(records.iter().map(|record| record.placed().order_index).is_sorted(), "{name}");
    }
}

#[test]
fn a_failed_run_ends_the_session_and_stops_runs_made_ahead() {
    let plan = Sketch::two().plan(8);
    let (world, scratch, stop) = (World::new(1), Scratch::new("fails-ahead"), AtomicBool::new(false));
    let (engine, watcher) = (world.engine(), world.watcher());
    let failing = plan.block(1)[1].id.clone();
    let seed = plan.seed + 1;
    let lock = plan.block(1)[1].run.our(0).ours.lock.clone();
    let simulate = |run: &Run, _: Arc<VirtualTime>| {
        if run.guests[0].seed == seed && run.our(0).ours.lock == lock {
            return (Err(RunError::NoProgress("on purpose".into())), "its story".into());
        }
        // Later blocks go on until they are stopped.
        while run.guests[0].seed > seed && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        (engine(run).map(|seen| seen.found), String::new())
    };
    let ahead = Ahead::new(NonZeroUsize::new(2).unwrap(), &simulate, &stop);
    let mut session = world.session(&plan, &engine, &watcher, &scratch);
    session.simulators = Some(&ahead);
    let failure = session.run(Rule { blocks: 8, ..ONCE }).unwrap_err();
    assert!(failure.message.contains(&format!("cell {failing} in block 1")), "{failure}");
    assert_eq!(session.records.len(), 3 + 1, "what comes before it is kept");
}

#[test]
fn a_session_cut_off_anywhere_counts_each_run_once() {
    let mixed = "workload = \"mixed\"\nwork = \"3ms\"\nvm = \"lock=tas; name=second,lock=ticket\"";
    let plan = Sketch::two().arm_with("both", mixed).plan(2);
    let (world, rule) = (World::new(1).shape(Shape::LogNormal(0.1)), Rule { blocks: 2, ..ONCE });
    let all = records("cut-off", &world, &plan, rule);
    let places = |records: &[Record]| -> BTreeSet<(u32, String)> {
        let places = records.iter().filter_map(|record| record.place.clone());
        places.map(|place| (place.block, place.cell_id)).collect()
    };
    for kept in 0..all.len() {
        let records = resumed(&format!("cut-off-{kept}"), &world, &plan, rule, &all[..kept]);
        // A run of two guests of which one has no record yet is made again.
        let is_cut = kept > 0 && all[kept - 1].run_id == all[kept].run_id;
        assert_eq!(records.len(), all.len() + usize::from(is_cut), "{kept} were kept");
        let counted = consistency::last_attempts(&records);
        assert_eq!((counted.len(), places(&counted)), (all.len(), places(&all)), "{kept} were kept");
        let ideal = |record: &Record| {
            let place = record.placed();
            (place.block, record.figure(LOCK_FREE).unwrap().to_bits())
        };
        let of_ideals = counted.iter().filter(|record| record.placed().role == Role::Ideal);
        let ideals: BTreeSet<_> = of_ideals.map(ideal).collect();
        assert!(counted.iter().all(|record| ideals.contains(&ideal(record))), "{kept} were kept");
    }
}

#[test]
fn a_run_without_progress_is_made_once_more_and_then_left_out() {
    let plan = Sketch::new().arm("a", "tas").arm("b", "mcs").compared().plan(4);
    // Some tries of one lock are stuck.
    let session = |name: &str, world: World, retries: u32, is_stuck: fn(u32) -> bool| {
        let tries = std::cell::Cell::new(0);
        let fails = |asked: OurGuest<'_>| {
            let is_it = asked.ours.lock == "mcs";
            tries.set(tries.get() + u32::from(is_it));
            stuck().filter(|_| is_it && is_stuck(tries.get()))
        };
        let ended = with_failures(name, &world, &plan, Rule { retries, ..ONCE }, fails);
        (ended, tries.get())
    };
    let ((ended, records, failed), _) = session("stuck-once", World::new(1), 0, |tries| tries <= 1);
    assert_eq!((ended, records.len(), failed.len()), (Ok(()), 4 * 3, 0), "a busy moment costs one run");
    let ((ended, records, failed), tries) = session("stuck-always", World::new(1), 0, |_| true);
    let failure = ended.unwrap_err();
    assert_eq!((failure.exit, records.len()), (Exit::NoProgress, 4 * 2), "all other cells have their runs");
    let left_out = "2 runs were left out, of cells that made no progress twice";
    assert!(failure.message.starts_with(left_out), "{failure}");
    let places: Vec<(&str, u32)> = failed.iter().map(|run| (run.cell_id.as_str(), run.block)).collect();
    // A cell that failed in two blocks is left out.
    assert_eq!((places, tries), (vec![("b", 0), ("b", 1)], 4));
    // A disturbed run counts if no further one makes progress: one is disturbed, two make none.
    let disturbed = World::new(1).disturbed(|asked, _| asked.ours.lock == "mcs");
    let ((ended, records, failed), tries) = session("then-stuck", disturbed, 5, |tries| tries % 3 != 1);
    assert_eq!((ended, failed.len(), records.len(), tries), (Ok(()), 0, 4 * 3, 4 * 3));
}

#[test]
fn precision_is_not_sought_where_an_arm_was_given_up() {
    let plan = Sketch::new().axis("ratio", &["1", "8"]).arm("a", "tas").arm("b", "mcs").compared().plan(4);
    let world = World::new(1).shape(Shape::LogNormal(0.001));
    // It is given up after two blocks, which give it a ratio and no narrow interval.
    let fails = |asked: OurGuest<'_>| {
        let is_late = asked.guest.vcpus > 2 && asked.guest.seed >= plan.seed + 2;
        stuck().filter(|_| asked.ours.lock == "mcs" && is_late)
    };
    let rule = Rule { target_precision: Some(0.01), ..ONCE };
    let (ended, records, failed) = with_failures("given-up", &world, &plan, rule, fails);
    assert_eq!((ended.unwrap_err().exit, failed.len()), (Exit::NoProgress, MOST_FAILED));
    let blocks = records.iter().map(|record| record.placed().block).max();
    assert_eq!(blocks, Some(JUDGED_FROM - 1), "the planned blocks are enough where precision can be had");
}

#[test]
fn efficiency_is_null_if_the_lock_free_run_was_on_another_host() {
    let plan = Sketch::new().arm("a", "tas").arm("b", "mcs").plan(1);
    let mut earlier = World::new(1).host_id(Some("host-b")).records(&plan);
    earlier.retain(|record| record.placed().role == Role::Ideal);
    let records = resumed("moved", &World::new(1), &plan, Rule { blocks: 1, ..ONCE }, &earlier);
    let here: Vec<&Record> = records.iter().filter(|it| it.placed().role != Role::Ideal).collect();
    assert_eq!(here.len(), 2);
    for record in here {
        assert_eq!((record.figure(LOCK_FREE), record.figure(EFFICIENCY)), (None, None));
    }
}

#[test]
fn a_guest_that_fails_ends_the_session_at_once() {
    let plan = Sketch::new().arm("a", "tas").arm("b", "mcs").plan(4);
    let violated = |asked: OurGuest<'_>| {
        (asked.ours.lock == "mcs").then(|| RunError::ExclusionViolated("on purpose".into()))
    };
    let (ended, records, failed) = with_failures("violated", &World::new(1), &plan, ONCE, violated);
    let [last] = &failed[..] else { panic!("{failed:?}") };
    assert_eq!((ended.unwrap_err().exit, last.ended_with), (Exit::GuestFailed, Some(5)), "it is noted");
    assert_eq!((last.cell_id.as_str(), last.block), ("b", 0));
    assert!(records.len() < 3 && last.message.contains("on purpose"), "{} records", records.len());
    // A host that lacks something says nothing of the lock.
    let lacks = |_: OurGuest<'_>| Some(RunError::HostLacks("no KVM".into()));
    let (ended, _, failed) = with_failures("lacking", &World::new(1), &plan, ONCE, lacks);
    assert_eq!((ended.unwrap_err().exit, failed.len()), (Exit::HostLacks, 0));
}
