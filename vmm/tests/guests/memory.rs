//! Page faults and memory management under every scheme; grant tables, and the reader-writer locks below them.

use std::time::Duration;

use haltkick_vmm::{Ring, Run, Sched};

use libtest_mimic::Trial;
use support::{Settings, apply, config, count, done, event, exits, ms, named, start_until, trial, us};

/// The guest checks itself: every wrong bit, lost store and unrefused access is a panic.
///
/// Every round of every vCPU waits for all others to acknowledge, at ratio 4: without an answer for those that are off
/// their pCPU it would take a round of slices, and a lost answer would end under the watchdog.
#[apply(trial)]
fn page_faults_are_served_refused_and_forgotten_by_all() {
    let one = |ring| config().ring(ring).vcpus(1);
    for run in [one(Ring::Ring0), one(Ring::Ring3), config().sched(Sched::Vmm), config().sched(Sched::Host)] {
        let outcome = done(&run.clone().workload("selftest-page-fault"));
        let (ring, sched, vcpus) = (run.ring, run.rules.sched, run.guests[0].vcpus);
        assert!(ring == Ring::Auto || ring == outcome.ring, "{:?}: {}", outcome.ring, outcome.ring_reason);
        assert!(outcome.acquisitions() > 0, "no round in {ring:?} under {sched:?}");
        assert!(vcpus == 1 || exits(&outcome, "invalidate") > 0, "no doorbell was rung");
    }
}

fn with_faults(workload: &str, lock: &str) -> Run {
    config().workload(workload).lock(lock).think(us(0))
}

/// A page and an area that are left are a panic, and so is a writable page that was protected.
#[apply(trial)]
fn few_writers_and_many_readers_are_served_with_little_memory_too() {
    for lock in ["mmap-sem", "speculative", "per-vma"] {
        let refused = |outcome: &_| event(outcome, "segmentation_fault") > 0;
        // The window doubles where an emulated machine stands still in it.
        let config = with_faults("fault-read-mostly", lock).min_sections(1);
        let outcome = start_until(&config, refused);
        let (faults, faulted_in) = (event(&outcome, "pgfault"), outcome.acquisitions());
        assert!(faulted_in > 0 && faulted_in <= faults, "{lock}: {faulted_in} of {faults}");
    }
    // Memory that is exhausted is counted by name, and the run continues.
    let outcome = done(&with_faults("fault-read-mostly", "speculative").memory_bytes(2 << 20));
    let [exhausted, faults] = ["mm_out_of_memory", "pgfault"].map(|name| event(&outcome, name));
    assert!(exhausted > 0 && faults > 0, "{exhausted} times in {faults} faults 2 MiB were not enough");
}

#[apply(trial)]
fn every_scheme_and_lock_lets_all_in() -> Vec<Trial> {
    let mut trials = vec![];
    let schemes = "single single-strict single-granter-lock single-mapper-lock split split-unpadded split-strict \
        split-bound split-granter-lock split-granter-lock-bound split-mapper-lock split-mapper-lock-bound brief \
        cleaned lists per-cpu fair";
    for scheme in schemes.split_whitespace() {
        let title = format!("grant_tables_under_{}_come_to_rest", scheme.replace('-', "_"));
        trials.push(named(title, move || grant_tables_come_to_rest(scheme)));
    }
    for scheme in ["single", "split", "brief", "per-cpu", "fair"] {
        let title = format!("a_table_grows_under_{}_while_others_map", scheme.replace('-', "_"));
        trials.push(named(title, move || writer_of_a_table_gets_in(scheme)));
    }
    for lock in ["unfair", "fair", "per-cpu", "per-cpu-fair"] {
        let title = format!("a_writer_gets_past_the_readers_of_the_{}_rwlock", lock.replace('-', "_"));
        trials.push(named(title, move || writer_gets_in(lock)));
    }
    trials
}

fn with_grants(workload: &str, lock: &str, pv: bool, lock_count: u32) -> Run {
    let config = config().workload(workload).form(lock, pv).lock_count(lock_count);
    config.hold(Duration::from_nanos(100)).think(us(0)).window(ms(50))
}

/// The guest itself looks whether every pin, handle and byte is where it belongs, and panics if not.
fn grant_tables_come_to_rest(scheme: &str) {
    for (lock, pv) in [("tas", false), ("qspinlock", true)] {
        let outcome = done(&with_grants(&format!("grant-{scheme}"), lock, pv, 24));
        let (maps, unmaps) = (event(&outcome, "grant_map"), event(&outcome, "grant_unmap"));
        assert!(maps > 0 && maps == unmaps, "{lock}: {maps} pages mapped, {unmaps} unmapped");
        // One for each request of 11 pages, and one for each probe of a single page.
        let invalidations = event(&outcome, "grant_invalidate");
        assert!(invalidations * 2 < unmaps, "{lock}: {invalidations} for {unmaps} pages");
    }
}

#[apply(trial)]
fn a_bound_vcpu_without_a_disk_is_no_trouble() {
    let outcome = done(
        &config()
            .workload("grant-split-bound")
            .form("tas", false)
            .lock_count(2)
            .vcpus(4)
            // A busy emulator took longer than 50 ms to bring all four to their first request.
            .window(ms(200)),
    );
    let served = outcome.vcpus.iter().map(|vcpu| vcpu.acquisitions > 0).collect::<Vec<_>>();
    assert_eq!(served, [true, true, false, false], "vCPUs that have served a disk: {served:?}");
}

/// The growths of one vCPU are waited for, and all others make mappings.
fn writer_of_a_table_gets_in(scheme: &str) {
    for (lock, pv) in [("tas", false), ("qspinlock", true)] {
        let config = with_grants(&format!("grant-writer-{scheme}"), lock, pv, 1);
        // The writer may be off its pCPU for a whole window.
        let outcome = start_until(&config, |outcome| count(&outcome.wait) > 0);
        let writes = count(&outcome.wait);
        let (grows, maps) = (event(&outcome, "grant_grow"), event(&outcome, "grant_map"));
        // Waits of the warm-up do not count.
        assert!(writes <= grows, "{lock}: {writes} waits of {grows} growths");
        assert!(maps > 0 && maps == event(&outcome, "grant_unmap"), "{lock}: {maps} pages mapped");
    }
}

fn writer_gets_in(lock: &str) {
    let config = config().workload(format!("rwlock-{lock}")).think(us(0)).window(ms(50));
    // Behind readers that never pause that may be after the window, when they have stopped. Or it was not there to ask.
    start_until(&config, |outcome| count(&outcome.wait) > 0);
}
