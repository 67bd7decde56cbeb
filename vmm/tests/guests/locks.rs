//! The locks in guests: exclusion under both schedulers, nesting, handoff, call sites, what a pair costs.

use std::time::Duration;

use haltkick_vmm::{MAX_LOCKS, Outcome, RunError, Sched, Shape};
use libtest_mimic::Trial;
use support::{
    Check, PATIENCE, Settings, apply, check, config, event, exits, forms, named, start, start_longer_until,
    trial, unexpected,
};

#[apply(trial)]
fn every_form_excludes_at_ratio_8() -> Vec<Trial> {
    let mut trials = vec![];
    for (lock, pv) in forms() {
        for (sched, name) in [(Sched::Vmm, "vmm"), (Sched::Host, "host")] {
            let title =
                format!("{lock}_{}_excludes_at_ratio_8_under_sched_{name}", if pv { "pv" } else { "native" });
            let lock = lock.clone();
            trials.push(named(title, move || excludes_at_ratio_8(&lock, pv, sched)));
        }
    }
    trials
}

fn excludes_at_ratio_8(lock: &str, pv: bool, sched: Sched) -> Check {
    let base = config();
    let vcpus = 8 * base.cpus.len() as u32;
    // No other bound on acquisitions in the window: a lock may rest for much of it while the next in its queue waits for a pCPU.
    let outcome = start(&base.lock(lock).pv(pv).sched(sched).vcpus(vcpus).min_sections(1))?;
    if lock == "none" {
        check(outcome.lost_updates.is_none(), || "a lock-free run cannot speak of lost updates".into())?;
    } else {
        check(outcome.lost_updates == Some(0), || format!("lost updates: {:?}", outcome.lost_updates))?;
    }
    check(outcome.entered.iter().sum::<u64>() > 0, || "no section was ever entered".into())?;
    check(outcome.vcpus.len() == vcpus as usize, || format!("{} vCPUs", outcome.vcpus.len()))?;
    // Sum rules of the counters: what starts early is started, what is kicked awake was kicked. A vCPU is stopped
    // where it is, so that each may have counted the one and not yet the other.
    for (part, whole) in [
        ("pv_wait_early", "pv_wait_node"),
        ("pv_wait_again", "pv_wait_head"),
        ("pv_kick_wake", "pv_kick_unlock"),
    ] {
        let (part_count, whole_count) = (event(&outcome, part), event(&outcome, whole));
        check(part_count <= whole_count + u64::from(vcpus), || {
            format!("{part} {part_count} > {whole} {whole_count}")
        })?;
    }
    check(pv || exits(&outcome, "pv_wait") + exits(&outcome, "pv_kick") == 0, || {
        "a native lock halted".into()
    })
}

#[apply(trial)]
fn it_is_counted_how_often_a_vcpu_is_overtaken() -> Check {
    let is_seen = |outcome: &Outcome| event(outcome, "overtaken_most") > 0;
    let outcome = start_longer_until(&config().workload("overtaking"), is_seen)?;
    let (all, most) = (event(&outcome, "overtaken"), event(&outcome, "overtaken_most"));
    // A vCPU is stopped where it is, so that it may have counted the one and not yet the other.
    check(most > 0 && most <= all, || format!("overtaken {all} times, {most} times in one wait"))
}

#[apply(trial)]
fn several_locks_share_the_sections() -> Check {
    for lock_count in [3, MAX_LOCKS] {
        let unused = |outcome: &Outcome| outcome.entered.iter().filter(|entered| **entered == 0).count();
        let outcome = start_longer_until(&config().lock_count(lock_count), |outcome| unused(outcome) == 0)?;
        check(outcome.lost_updates == Some(0), || format!("{lock_count} locks: {:?}", outcome.lost_updates))?;
        check(outcome.entered.len() == lock_count as usize, || format!("{} locks", outcome.entered.len()))?;
        let unused = unused(&outcome);
        check(unused == 0, || format!("{unused} of {lock_count} locks were never taken"))?;
    }
    Ok(())
}

/// T9, with a real hypervisor below: a vCPU that is preempted with all five locks makes the others wait at all levels.
#[apply(trial)]
fn slow_paths_nest_and_the_fifth_level_falls_back_in_both_layouts() -> Check {
    let events = ["lock_slowpath", "lock_use_node2", "lock_use_node3", "lock_use_node4", "lock_no_node"];
    for workload in ["selftest-nesting", "selftest-nesting-whole"] {
        for pv in [false, true] {
            // How long it takes until five levels happen to meet contention at once depends on the host.
            let nesting = config().workload(workload).pv(pv).lock_count(5).window(Duration::from_millis(100));
            let missing = |outcome: &Outcome| -> Vec<&str> {
                events.into_iter().filter(|name| event(outcome, name) == 0).collect()
            };
            let outcome = start_longer_until(&nesting, |outcome| missing(outcome).is_empty())?;
            check(outcome.lost_updates == Some(0), || format!("{workload}: {:?}", outcome.lost_updates))?;
            let missing = missing(&outcome);
            check(missing.is_empty(), || format!("{workload}, pv {pv}: no {missing:?}"))?;
        }
    }
    match start(&config().workload("selftest-nesting").lock_count(4)) {
        Err(RunError::GuestPanic { message, .. }) => check(message.contains("--locks 5"), || message),
        other => unexpected(other),
    }
}

#[apply(trial)]
fn nested_and_long_sections_exclude_too() -> Check {
    let mix = Shape {
        work_sections: 3000,
        long_hold_ns: 20_000,
        long_one_in: 10,
        nested_one_in: 2,
        ..Shape::default()
    };
    for (lock, pv) in [("qspinlock", true), ("tas", false)] {
        let outcome =
            start(&config().shape(mix).lock(lock).pv(pv).lock_count(4).workload("mixed").window(PATIENCE))?;
        check(outcome.lost_updates == Some(0), || {
            format!("{lock}: {:?} updates lost", outcome.lost_updates)
        })?;
        check(outcome.acquisitions() == 3000, || format!("{lock}: {} sections", outcome.acquisitions()))?;
        // Every second section on average has another inside; a tenth is far below that.
        let entered: u64 = outcome.entered.iter().sum();
        check(entered * 10 > outcome.acquisitions() * 11, || {
            format!("{lock}: {entered} entered: none nested")
        })?;
    }
    Ok(())
}

#[apply(trial)]
fn a_token_goes_round_by_kick_and_wait() -> Check {
    for sched in [Sched::Vmm, Sched::Host] {
        let outcome = start(&config().workload("hand-off").lock("none").pv(false).sched(sched))?;
        let hops = outcome.acquisitions();
        check(hops > 0, || format!("{sched:?}: the token did not move"))?;
        // It visits everybody in turn.
        let counts = outcome.vcpus.iter().map(|vcpu| vcpu.acquisitions);
        let (least, most) = (counts.clone().min().unwrap_or(0), counts.max().unwrap_or(0));
        check(most - least <= 1, || format!("{sched:?}: between {least} and {most} visits"))?;
    }
    Ok(())
}

#[apply(trial)]
fn unpatched_sites_serve_every_form_as_patched_ones_do() -> Check {
    for (lock, pv) in [("none", false), ("qspinlock", false), ("qspinlock", true), ("mcs", false)] {
        for patch in [true, false] {
            let outcome = start(&config().lock(lock).pv(pv).patch(patch))?;
            check((outcome.patched_sites > 0) == patch, || {
                format!("{lock}: {} sites", outcome.patched_sites)
            })?;
            check(outcome.lost_updates.unwrap_or(0) == 0, || format!("{lock}: {:?}", outcome.lost_updates))?;
        }
    }
    Ok(())
}

#[apply(trial)]
fn a_run_tells_what_an_uncontended_pair_costs_in_every_form() -> Check {
    let costs = |lock: &str, patch| {
        let config = config().vcpus(1).lock(lock).pv(false).patch(patch);
        start(&config).map(|outcome| (outcome.pair_ticks, outcome.calls))
    };
    let (ticks, calls) = costs("qspinlock", true)?;
    let all = [ticks.compiled_in, ticks.through_table, ticks.patched];
    check(all.iter().all(Option::is_some), || format!("{ticks:?}"))?;
    let bytes = calls.map(|calls| (calls.lock_bytes, calls.cpu_bytes));
    // One word; four nodes and a line of its own for each vCPU, and its part of the table of sleeping heads.
    check(bytes == Some((4, 192)), || format!("{bytes:?} bytes"))?;
    let (ticks, _) = costs("qspinlock", false)?;
    check(ticks.patched.is_none() && ticks.through_table.is_some(), || format!("{ticks:?}"))
}

#[apply(trial)]
fn copied_blocks_are_whole_under_locks_with_and_without_readers() -> Check {
    for (lock, workload) in
        [("rwsem/packed", "copy-256"), ("rwsem/prev-cpu", "copy-4096"), ("mutex/split", "copy-1024")]
    {
        let short = Duration::from_nanos(200);
        // The window doubles where an emulated machine stands still in it.
        let base = config().min_sections(1);
        let outcome = start(&base.lock(lock).workload(workload).lock_count(2).hold(short).think(short))?;
        // Torn blocks count as violations of exclusion, which `start` reports.
        check(outcome.lost_updates == Some(0), || format!("lost updates: {:?}", outcome.lost_updates))?;
        check(outcome.acquisitions() > 0, || "no block was copied".into())?;
    }
    Ok(())
}

#[apply(trial)]
fn the_compute_control_takes_no_lock() -> Check {
    let outcome = start(&config().lock("mutex/packed").workload("compute"))?;
    check(outcome.acquisitions() > 0, || "no round was completed".into())?;
    let events: u64 = outcome.lock_events.iter().map(|(_, count)| count).sum();
    check(events == 0, || format!("{:?}", outcome.lock_events))
}

#[apply(trial)]
fn a_section_without_a_lock_violates_exclusion() -> Check {
    match start(&config().workload("selftest-exclusion")) {
        Err(RunError::ExclusionViolated(_)) => Ok(()),
        other => unexpected(other),
    }
}
