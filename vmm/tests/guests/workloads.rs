//! The workloads that lock people know: each does what it says under locks of several kinds, and reports it under its own names.

use std::time::Duration;

use haltkick_vmm::{Fold, Governor, Outcome, Ring, Run, Sched, Shape};
use support::{Settings, apply, config, count, done, event, ms, reported, start_until, trial, us};

const LOCKS: [(&str, bool); 4] =
    [("qspinlock", true), ("tas", false), ("rwsem/packed", true), ("mutex/packed", true)];

/// A run whose vCPUs end their rounds: one that is stopped between two counts of a section has counted one of them only.
fn drained(workload: &str, lock: &str, pv: bool) -> Run {
    config().workload(workload).form(lock, pv).drain(true)
}

/// Runs a workload of sections under several locks, some of its sections reading only.
fn under_locks(workload: &str, shape: Shape) {
    for (lock, pv) in LOCKS {
        let short = Duration::from_nanos(200);
        let outcome = done(&drained(workload, lock, pv).shape(shape).lock_count(4).hold(short).think(short));
        assert_eq!(reported(&outcome, "read-wait"), outcome.reads, "{lock}");
        let sections = count(&outcome.wait);
        assert_eq!(sections + outcome.reads, outcome.acquisitions(), "{lock}: {sections} sections");
    }
}

#[apply(trial)]
fn keys_and_nodes_are_whole_under_every_kind_of_lock() {
    under_locks("hash-table", Shape { zipf_hundredths: 99, read_percent: 50, ..Shape::default() });
    under_locks("hash-table-global", Shape { read_percent: 50, ..Shape::default() });
    under_locks("list", Shape { footprint_lines: 40, dirty_lines: 4, read_percent: 50, ..Shape::default() });
    // As many nodes as there are without being asked.
    under_locks("list", Shape::default());
}

#[apply(trial)]
fn tasks_of_a_folding_guest_exclude_and_end() {
    let governor = Governor { interval: ms(5), ..Governor::LINUX };
    for fold in [Fold::Off, Fold::Oracle, Fold::Governor(governor)] {
        for (lock, pv) in [("qspinlock", true), ("tas", false), ("mutex/packed", true), ("none", false)] {
            let outcome = done(&drained("tasks", lock, pv).fold(fold));
            assert!(outcome.acquisitions() > 0, "{lock}, {fold:?}: no section");
            assert!(
                lock == "none" || outcome.lost_updates == Some(0),
                "{lock}, {fold:?}: lost updates: {:?}",
                outcome.lost_updates
            );
        }
    }
}

#[apply(trial)]
fn barriers_and_calls_to_all_wait_for_all() {
    let [barriers, calls] = [("barrier", "barrier"), ("call-all", "call")].map(|(workload, time)| {
        let outcome = done(&drained(workload, "none", false));
        assert_eq!(reported(&outcome, time), outcome.acquisitions(), "{workload}: a round without its time");
        outcome
    });
    let counts = barriers.vcpus.iter().map(|vcpu| vcpu.acquisitions);
    let (least, most) = (counts.clone().min().unwrap_or(0), counts.max().unwrap_or(0));
    // Each vCPU looks by itself whether the window is open: one round more or less at either end.
    assert!(most > 0 && most - least <= 2, "between {least} and {most} rounds");
    assert!(calls.acquisitions() > 0, "no call came to its end");
}

/// Evidence for each lock that a slow path was interrupted; whether one lock then excludes and all come out again, the guest
/// looks itself. The queue of the handlers' lock is entered at a second level only from within another slow path, which takes
/// many sections: a strict queue of spinning vCPUs has too few of them in a window.
#[apply(trial)]
fn slow_paths_are_interrupted_by_handlers_that_take_a_lock() {
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
        // Sections as long as a part of a turn, so that handlers are descheduled in theirs and meet at their lock.
        let config = drained("interrupted", lock, pv).lock_count(2).hold(us(200));
        let seen = |outcome: &Outcome| {
            let nested = event(outcome, "lock_use_node2") > 0;
            (nested || !pv || lock == "ticket") && event(outcome, "interrupt_of_waiter") > 0
        };
        let outcome = start_until(&config, seen);
        let met = ["waiter", "holder", "other"].map(|met| event(&outcome, &format!("interrupt_of_{met}")));
        for times in ["interrupt", "handler-wait"] {
            assert_eq!(
                reported(&outcome, times),
                met.iter().sum::<u64>(),
                "{lock}: {times} of {met:?} interrupts"
            );
        }
        assert_eq!(count(&outcome.wait), outcome.acquisitions(), "{lock}: a section without its wait");
    }
}

/// The guest checks itself.
#[apply(trial)]
fn an_interrupt_comes_at_once_but_not_between_look_and_sleep() {
    for (sched, ring) in [(Sched::Vmm, Ring::Ring0), (Sched::Vmm, Ring::Ring3), (Sched::Host, Ring::Auto)] {
        let outcome = done(&config().workload("selftest-interrupt").sched(sched).ring(ring).lock_count(2));
        assert!(outcome.acquisitions() > 0, "no round under {sched:?} in {ring:?}");
    }
}

#[apply(trial)]
fn a_page_that_was_protected_is_protected_on_every_vcpu() {
    let shootdown = config().workload("selftest-shootdown").form("none", false).window(ms(400));
    // Both ways in which a vCPU may learn of it: on its pCPU, by an NMI, and off it.
    for vcpus in [2, 8] {
        // Whether a vCPU writes while the page is protected is a matter of chance, and of how busy the host is.
        start_until(&shootdown.clone().vcpus(vcpus), |outcome| outcome.acquisitions() > 0);
    }
}
