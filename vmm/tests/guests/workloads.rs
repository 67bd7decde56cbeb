//! The workloads that lock people know: each does what it says under locks of several kinds, and reports it under its own names.

use std::time::Duration;

use haltkick_vmm::{Engine, Fold, Governor, HowOften, Outcome, Ring, Run, RunError, Sched, Shape, Target};
use support::{
    Check, Settings, apply, check, config, deschedule, event, start, start_longer_until, start_until, trial,
    unexpected, waits,
};

const LOCKS: [(&str, bool); 4] =
    [("qspinlock", true), ("tas", false), ("rwsem/packed", true), ("mutex/packed", true)];

fn reported(outcome: &Outcome, name: &str) -> u64 {
    outcome.time(name).map_or(0, |times| times.buckets.iter().sum())
}

/// Runs a workload of sections under several locks, some of its sections reading only.
fn under_locks(workload: &str, shape: Shape) -> Check {
    for (lock, pv) in LOCKS {
        let short = Duration::from_nanos(200);
        let outcome = start(
            &config()
                .workload(workload)
                .lock(lock)
                .pv(pv)
                .shape(shape)
                .lock_count(4)
                .hold(short)
                .think(short),
        )?;
        check(outcome.lost_updates == Some(0), || {
            format!("{lock}: lost updates: {:?}", outcome.lost_updates)
        })?;
        check(reported(&outcome, "read-wait") == outcome.reads, || {
            format!("{lock}: {} reads", outcome.reads)
        })?;
        let sections = waits(&outcome);
        check(sections + outcome.reads == outcome.acquisitions(), || format!("{lock}: {sections} sections"))?;
    }
    Ok(())
}

#[apply(trial)]
fn keys_of_a_hash_table_are_whole_under_every_kind_of_lock() -> Check {
    under_locks("hash-table", Shape { zipf_hundredths: 99, read_percent: 50, ..Shape::default() })?;
    under_locks("hash-table-global", Shape { read_percent: 50, ..Shape::default() })
}

/// No lock, no times: operations are all there is. A walk whose references do not add up fails in the guest.
#[apply(trial)]
fn references_and_shared_words_are_counted_on_every_vcpu() -> Check {
    for workload in ["line-add", "line-pair", "line-cas", "line-load-cas", "line-read-lock", "list-refcount"]
    {
        let config = config().workload(workload).lock("none").pv(false).think(Duration::ZERO);
        // A pCPU for each, so that a busy host keeps none of them out of the window.
        let vcpus = config.cpus.len() as u32;
        let config = config.vcpus(vcpus);
        let outcome = start(&config)?;
        for (vcpu, counted) in outcome.vcpus.iter().enumerate() {
            check(counted.acquisitions > 0, || format!("{workload}: vCPU {vcpu} did nothing"))?;
        }
        let each = outcome.window.as_secs_f64() * config.cpus.len() as f64 / outcome.acquisitions() as f64;
        // A list has 64 nodes, and an emulator takes its time.
        check((1e-9..1e-3).contains(&each), || format!("{workload}: {each} s for an operation"))?;
    }
    Ok(())
}

#[apply(trial)]
fn every_node_of_a_list_is_walked() -> Check {
    under_locks("list", Shape { footprint_lines: 40, dirty_lines: 4, read_percent: 50, ..Shape::default() })?;
    // As many nodes as there are without being asked.
    under_locks("list", Shape::default())
}

#[apply(trial)]
fn what_is_pushed_into_a_bounded_queue_is_popped() -> Check {
    for (lock, pv) in [("qspinlock", true), ("tas", false), ("none", false)] {
        for vcpus in [1, 2, 7] {
            let outcome = start(&config().workload("bounded-queue").lock(lock).pv(pv).vcpus(vcpus))?;
            let (moved, transits) = (outcome.acquisitions(), reported(&outcome, "transit"));
            check(moved > 0, || format!("{lock}, {vcpus} vCPUs: nothing moved"))?;
            let with_queue = lock != "none" && vcpus > 1;
            // Items pushed before the window were popped in it, or the reverse: a queue's length at most.
            let pops = moved / 2;
            check(!with_queue || transits.abs_diff(pops) <= 16 + u64::from(vcpus), || {
                format!("{lock}, {vcpus} vCPUs: {transits} items popped in {moved} operations")
            })?;
        }
    }
    Ok(())
}

#[apply(trial)]
fn tasks_of_a_folding_guest_exclude_and_end() -> Check {
    let governor = Governor { interval: Duration::from_millis(5), ..Governor::LINUX };
    for fold in [Fold::Off, Fold::Oracle, Fold::Governor(governor)] {
        for (lock, pv) in [("qspinlock", true), ("tas", false), ("mutex/packed", true), ("none", false)] {
            let outcome = start(&config().workload("tasks").fold(fold).lock(lock).pv(pv).drain(true))?;
            check(outcome.acquisitions() > 0, || format!("{lock}, {fold:?}: no section"))?;
            check(lock == "none" || outcome.lost_updates == Some(0), || {
                format!("{lock}, {fold:?}: lost updates: {:?}", outcome.lost_updates)
            })?;
        }
    }
    Ok(())
}

#[apply(trial)]
fn nobody_passes_a_barrier_before_all_have_come() -> Check {
    let outcome = start(&config().workload("barrier").lock("none").pv(false))?;
    let counts = outcome.vcpus.iter().map(|vcpu| vcpu.acquisitions);
    let (least, most) = (counts.clone().min().unwrap_or(0), counts.max().unwrap_or(0));
    // Each vCPU looks by itself whether the window is open: one round more or less at either end.
    check(most > 0 && most - least <= 2, || format!("between {least} and {most} rounds"))?;
    check(reported(&outcome, "barrier") == outcome.acquisitions(), || "a round without its time".into())
}

/// Readers that are taken off while they read are what stalls the writer, and what a grace period that does not wait for
/// them would betray.
#[apply(trial)]
fn no_reader_sees_a_version_after_its_grace_period() -> Check {
    let (often, length) = (HowOften::PerSecond(200.0), Duration::from_millis(2));
    let readers_off = deschedule(Target::Holder, often, length, None);
    for off in [None, Some(readers_off)] {
        let config = config()
            .workload("grace-period")
            // The lock is never taken; without a lock there is no question which one is held.
            .lock("tas")
            .pv(false)
            .deschedule(off)
            .window(Duration::from_millis(400));
        let outcome = start_until(&config, |outcome| {
            reported(outcome, "grace-period") > 0 && outcome.acquisitions() > 0
        })?;
        check(reported(&outcome, "grace-period") > 0, || "no grace period came to its end".into())?;
        check(outcome.acquisitions() > 0, || "nobody read".into())?;
    }
    Ok(())
}

#[apply(trial)]
fn a_call_to_all_waits_for_all() -> Check {
    let outcome = start(&config().workload("call-all").lock("none").pv(false))?;
    check(reported(&outcome, "call") == outcome.acquisitions(), || "a call without its time".into())?;
    check(outcome.acquisitions() > 0, || "no call came to its end".into())
}

/// Evidence for each lock that a slow path was interrupted; whether one lock then excludes and all come out again, the guest
/// looks itself. The queue of the handlers' lock is entered at a second level only from within another slow path, which takes
/// many sections: a strict queue of spinning vCPUs has too few of them in a window.
#[apply(trial)]
fn slow_paths_are_interrupted_by_handlers_that_take_a_lock() -> Check {
    for (lock, pv) in [
        ("tas", false),
        ("virt-tas", false),
        ("mcs", false),
        ("ticket", true),
        ("qspinlock-v16", true),
        ("qspinlock", false),
        ("qspinlock", true),
        ("qspinlock-whole", true),
    ] {
        let config = with_interrupts(lock, pv);
        let seen = |outcome: &Outcome| {
            let nested = event(outcome, "lock_use_node2") > 0;
            (nested || !pv || lock == "ticket") && event(outcome, "interrupt_of_waiter") > 0
        };
        let outcome = start_until(&config, seen)?;
        check(seen(&outcome), || format!("{lock}: no slow path was interrupted: {:?}", outcome.lock_events))?;
        check(outcome.lost_updates == Some(0), || {
            format!("{lock}: lost updates: {:?}", outcome.lost_updates)
        })?;
        let met = ["waiter", "holder", "other"].map(|met| event(&outcome, &format!("interrupt_of_{met}")));
        for times in ["interrupt", "handler-wait"] {
            check(reported(&outcome, times) == met.iter().sum::<u64>(), || {
                format!("{lock}: {} times of {met:?} interrupts: {times}", reported(&outcome, times))
            })?;
        }
        check(waits(&outcome) == outcome.acquisitions(), || format!("{lock}: a section without its wait"))?;
    }
    Ok(())
}

fn with_interrupts(lock: &str, pv: bool) -> Run {
    // Sections as long as a part of a turn, so that handlers are descheduled in theirs and meet at their lock.
    let hold = Duration::from_micros(200);
    config().workload("interrupted").lock(lock).pv(pv).lock_count(2).hold(hold)
}

/// The guest checks itself.
#[apply(trial)]
fn an_interrupt_comes_at_once_but_not_between_look_and_sleep() -> Check {
    for (sched, ring) in [(Sched::Vmm, Ring::Ring0), (Sched::Vmm, Ring::Ring3), (Sched::Host, Ring::Auto)] {
        let outcome = start(&config().workload("selftest-interrupt").sched(sched).ring(ring).lock_count(2))?;
        check(outcome.acquisitions() > 0, || format!("no round under {sched:?} in {ring:?}"))?;
    }
    Ok(())
}

#[apply(trial)]
fn a_lock_that_may_not_be_interrupted_is_not() -> Check {
    let qspinlock = with_interrupts("qspinlock", true);
    for (config, why) in [
        (with_interrupts("unfair-ticket", false), "these go with it"),
        (qspinlock.clone().lock_count(1), "--locks 2"),
        (qspinlock.engine(Engine::Threads), "use --engine kvm"),
    ] {
        match start(&config) {
            Err(RunError::Usage(refused)) => check(refused.message.contains(why), || refused.message)?,
            other => unexpected(other)?,
        }
    }
    Ok(())
}

#[apply(trial)]
fn a_page_that_was_protected_is_protected_on_every_vcpu() -> Check {
    let shootdown =
        config().workload("selftest-shootdown").lock("none").pv(false).window(Duration::from_millis(400));
    // Both ways in which a vCPU may learn of it: on its pCPU, by an NMI, and off it.
    for vcpus in [2, 8] {
        // Whether a vCPU writes while the page is protected is a matter of chance, and of how busy the host is.
        let is_refused = |outcome: &Outcome| outcome.acquisitions() > 0;
        let outcome = start_longer_until(&shootdown.clone().vcpus(vcpus), is_refused)?;
        check(is_refused(&outcome), || format!("{vcpus} vCPUs: nobody was refused"))?;
    }
    Ok(())
}
