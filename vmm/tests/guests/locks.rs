//! The locks in guests: exclusion under both schedulers, handoff, call sites, what pairs and instruments cost.

use haltkick_vmm::{MAX_LOCKS, Outcome, Sched};
use libtest_mimic::Trial;
use support::{Settings, apply, config, done, each, event, exits, forms, start_until, trial};

#[apply(trial)]
fn every_form_excludes_at_ratio_8() -> Vec<Trial> {
    let trials = |(lock, pv): (String, bool)| {
        let title = format!("{lock}_{}_excludes_at_ratio_8", if pv { "pv" } else { "native" });
        each(&title, move |sched| excludes_at_ratio_8(&lock, pv, sched))
    };
    forms().into_iter().flat_map(trials).collect()
}

fn excludes_at_ratio_8(lock: &str, pv: bool, sched: Sched) {
    let base = config();
    let vcpus = 8 * base.cpus.len() as u32;
    // No other bound on acquisitions in the window: a lock may rest for much of it while the next in its queue waits for a pCPU.
    let outcome = done(&base.form(lock, pv).sched(sched).vcpus(vcpus).min_sections(1));
    if lock == "none" {
        assert!(outcome.lost_updates.is_none(), "a lock-free run cannot speak of lost updates");
    }
    assert!(outcome.entered.iter().sum::<u64>() > 0, "no section was ever entered");
    assert_eq!(outcome.vcpus.len(), vcpus as usize);
    assert_eq!(exits(&outcome, "started"), u64::from(vcpus), "each says once that it has started");
    // Sum rules of the counters: what starts early is started, what is kicked awake was kicked. A vCPU is stopped
    // where it is, so that each may have counted the one and not yet the other.
    for (part, whole) in [
        ("pv_wait_early", "pv_wait_node"),
        ("pv_wait_again", "pv_wait_head"),
        ("pv_kick_wake", "pv_kick_unlock"),
    ] {
        let (part_count, whole_count) = (event(&outcome, part), event(&outcome, whole));
        assert!(part_count <= whole_count + u64::from(vcpus), "{part} {part_count} > {whole} {whole_count}");
    }
    assert!(pv || exits(&outcome, "pv_wait") + exits(&outcome, "pv_kick") == 0, "a native lock halted");
    let (counted, kicked) = (event(&outcome, "pv_kick_unlock"), exits(&outcome, "pv_kick"));
    let is_told = lock != "qspinlock" || counted.abs_diff(kicked) <= u64::from(vcpus);
    assert!(is_told, "the guest counted {counted} kicks, the VMM {kicked}");
}

#[apply(trial)]
fn it_is_counted_how_often_a_vcpu_is_overtaken() {
    let most = |outcome: &Outcome| event(outcome, "overtaken_most");
    let outcome = start_until(&config().workload("overtaking"), |outcome| most(outcome) > 0);
    let (all, most) = (event(&outcome, "overtaken"), most(&outcome));
    // A vCPU is stopped where it is, so that it may have counted the one and not yet the other.
    assert!(most <= all, "overtaken {all} times, {most} times in one wait");
}

#[apply(trial)]
fn several_locks_share_the_sections() {
    for lock_count in [3, MAX_LOCKS] {
        let are_used = |outcome: &Outcome| outcome.entered.iter().all(|entered| *entered > 0);
        let outcome = start_until(&config().lock_count(lock_count), are_used);
        assert_eq!(outcome.entered.len(), lock_count as usize);
    }
}

#[apply(trial)]
fn unpatched_sites_serve_every_form_as_patched_ones_do() {
    for (lock, pv) in [("none", false), ("qspinlock", false), ("qspinlock", true), ("mcs", false)] {
        for patch in [true, false] {
            let outcome = done(&config().form(lock, pv).patch(patch));
            assert_eq!((outcome.patched_sites > 0), patch, "{lock}: {} sites", outcome.patched_sites);
            assert_eq!(outcome.lost_updates.unwrap_or(0), 0, "{lock}: {:?}", outcome.lost_updates);
        }
    }
}

#[apply(trial)]
fn a_run_tells_what_pairs_of_every_form_and_instruments_cost() {
    let [patched, unpatched] =
        [true, false].map(|patch| done(&config().vcpus(1).form("qspinlock", false).patch(patch)));
    let (ticks, costs) = (patched.pair_ticks, patched.costs);
    let all = [ticks.compiled_in, ticks.through_table, ticks.patched];
    assert!(all.iter().all(Option::is_some), "{ticks:?}");
    let all = [costs.stamp, costs.ordered_stamp, costs.oracle, costs.section, costs.counting];
    assert!(all.iter().all(Option::is_some), "{costs:?}");
    let bytes = patched.calls.map(|calls| (calls.lock_bytes, calls.cpu_bytes));
    // One word; four nodes and a line of its own for each vCPU, and its part of the table of sleeping heads.
    assert_eq!(bytes, Some((4, 192)));
    let ticks = unpatched.pair_ticks;
    assert!(ticks.patched.is_none() && ticks.through_table.is_some(), "{ticks:?}");
}
