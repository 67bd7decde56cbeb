//! Grant tables and the reader-writer locks below them.

use std::time::Duration;

use libtest_mimic::Trial;
use support::{Check, Settings, apply, check, config, event, named, start, start_until, trial, waits};

#[apply(trial)]
fn every_scheme_and_lock_lets_all_in() -> Vec<Trial> {
    let mut trials = vec![];
    for scheme in [
        "single",
        "single-strict",
        "single-granter-lock",
        "single-mapper-lock",
        "split",
        "split-unpadded",
        "split-strict",
        "split-bound",
        "split-granter-lock",
        "split-granter-lock-bound",
        "split-mapper-lock",
        "split-mapper-lock-bound",
        "brief",
        "cleaned",
        "lists",
        "per-cpu",
        "fair",
    ] {
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

/// The guest itself looks whether every pin, handle and byte is where it belongs, and panics if not.
fn grant_tables_come_to_rest(scheme: &str) -> Check {
    let workload = format!("grant-{scheme}");
    for (lock, pv) in [("tas", false), ("qspinlock", true)] {
        let outcome = start(
            &config()
                .workload(workload.clone())
                .lock(lock)
                .pv(pv)
                .lock_count(24)
                .hold(Duration::from_nanos(100))
                .think(Duration::ZERO)
                .window(Duration::from_millis(50)),
        )?;
        let (maps, unmaps) = (event(&outcome, "grant_map"), event(&outcome, "grant_unmap"));
        check(maps > 0 && maps == unmaps, || format!("{lock}: {maps} pages mapped, {unmaps} unmapped"))?;
        // One for each request of 11 pages, and one for each probe of a single page.
        let invalidations = event(&outcome, "grant_invalidate");
        check(invalidations * 2 < unmaps, || format!("{lock}: {invalidations} for {unmaps} pages"))?;
    }
    Ok(())
}

#[apply(trial)]
fn a_bound_vcpu_without_a_disk_is_no_trouble() -> Check {
    let outcome = start(
        &config()
            .workload("grant-split-bound")
            .lock("tas")
            .pv(false)
            .lock_count(2)
            .vcpus(4)
            // A busy emulator took longer than 50 ms to bring all four to their first request.
            .window(Duration::from_millis(200)),
    )?;
    let served = outcome.vcpus.iter().map(|vcpu| vcpu.acquisitions > 0).collect::<Vec<_>>();
    check(served == [true, true, false, false], || format!("vCPUs that have served a disk: {served:?}"))
}

/// The growths of one vCPU are waited for, and all others make mappings.
fn writer_of_a_table_gets_in(scheme: &str) -> Check {
    for (lock, pv) in [("tas", false), ("qspinlock", true)] {
        let config = config()
            .workload(format!("grant-writer-{scheme}"))
            .lock(lock)
            .pv(pv)
            .lock_count(1)
            .hold(Duration::from_nanos(100))
            .think(Duration::ZERO)
            .window(Duration::from_millis(50));
        // The writer may be off its pCPU for a whole window.
        let outcome = start_until(&config, |outcome| waits(outcome) > 0)?;
        let writes = waits(&outcome);
        let (grows, maps) = (event(&outcome, "grant_grow"), event(&outcome, "grant_map"));
        // Waits of the warm-up do not count.
        check(writes > 0 && writes <= grows, || format!("{lock}: {writes} waits of {grows} growths"))?;
        check(maps > 0 && maps == event(&outcome, "grant_unmap"), || format!("{lock}: {maps} pages mapped"))?;
    }
    Ok(())
}

fn writer_gets_in(lock: &str) -> Check {
    let config =
        config().workload(format!("rwlock-{lock}")).think(Duration::ZERO).window(Duration::from_millis(50));
    // Behind readers that never pause that may be after the window, when they have stopped. Or it was not there to ask.
    let outcome = start_until(&config, |outcome| waits(outcome) > 0)?;
    check(waits(&outcome) > 0, || "the writer was never let in".into())?;
    check(outcome.lost_updates == Some(0), || format!("lost updates: {:?}", outcome.lost_updates))
}
