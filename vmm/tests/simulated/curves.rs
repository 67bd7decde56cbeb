//! Workloads whose curves others have measured: what an operation on a contended line takes, as one CPU sees it.

use haltkick_vmm::{Run, Shape, ShapeFlags};
use support::{Settings, done, simulated, us};

/// A run of `workload` by as many vCPUs as pCPUs, one section right after the other.
fn busy(cpus: u32, workload: &str, lock: &str) -> Run {
    let run = simulated("skylake-8s", cpus, 1).workload(workload).form(lock, false);
    run.hold(us(0)).think(us(0)).window(us(500))
}

/// Number of sections of a run in its window.
fn sections(run: &Run) -> f64 {
    done(run).acquisitions() as f64
}

/// Nanoseconds of one pCPU for each operation.
fn nanoseconds(workload: &str, cpus: u32) -> f64 {
    let outcome = done(&busy(cpus, workload, "none"));
    assert!(outcome.vcpus.iter().all(|vcpu| vcpu.acquisitions > 0), "{workload}: a vCPU did nothing");
    outcome.window.as_nanos() as f64 * f64::from(cpus) / outcome.acquisitions() as f64
}

#[test]
fn operations_on_a_line_cost_what_their_accesses_do() {
    // LOCK costs 4.8 ns on this machine, and a line from a core of the same socket 47.5.
    let alone = |workload| nanoseconds(workload, 1);
    let add = alone("line-add");
    assert!((4.8..8.0).contains(&add), "{add}");
    for (workload, least, most) in [
        ("line-pair", 1.7, 2.1),
        ("line-cas", 0.9, 1.8),
        ("line-load-cas", 1.0, 1.8),
        ("line-read-lock", 1.7, 2.4),
    ] {
        let over_add = alone(workload) / add;
        assert!((least..most).contains(&over_add), "{workload}: {over_add}");
    }
    let two = |workload| nanoseconds(workload, 2);
    let add = two("line-add");
    assert!((40.0..130.0).contains(&add), "{add}");
    // A load takes the line away from its writer, and the swap fetches it once more.
    let load_cas = two("line-load-cas");
    assert!(load_cas > 1.2 * add, "{load_cas} after a load, {add} without");
}

#[test]
fn a_walk_by_references_takes_longer_the_longer_the_list() {
    let walks = |lines| {
        let shape = Shape { footprint_lines: lines, ..Shape::default() };
        sections(&busy(4, "list-refcount", "none").shape(shape).window(us(2000)))
    };
    let (short, long) = (walks(8), walks(64));
    assert!((4.0..16.0).contains(&(short / long)), "{short} walks of 8 nodes, {long} of 64");
}

#[test]
fn one_lock_for_a_table_is_slower_than_many() {
    let [one, many] = [1, 64].map(|locks| sections(&busy(8, "hash-table-global", "mcs").lock_count(locks)));
    assert!(many > 2.0 * one, "{one} under one lock, {many} under 64");
}

/// Pollers take the line of the data away with that of the lock. Waiters of a queue lock poll elsewhere.
#[test]
fn data_beside_a_polled_lock_slow_its_holder_down() {
    let share = |lock, flags| {
        let shape = Shape { footprint_lines: 1, dirty_lines: 1, flags, ..Shape::default() };
        sections(&busy(16, "critical-section", lock).shape(shape).oracle(false))
    };
    let gain = |lock| share(lock, ShapeFlags::EMBED) / share(lock, ShapeFlags::NONE);
    let (polled, queued) = (gain("tas"), gain("mcs"));
    assert!(
        polled < 0.9 && polled < 0.85 * queued,
        "embedding: {polled} for a polled lock, {queued} for a queued one"
    );
}

#[test]
fn a_lock_that_fills_its_lines_has_no_room_for_data() {
    let shape = Shape { footprint_lines: 1, flags: ShapeFlags::EMBED, ..Shape::default() };
    let image = haltkick_vmm::Image::embedded();
    let fills = |(number, lock): &(usize, &haltkick_vmm::Entry)| {
        let calls = image.calls(*number, false).filter(|_| lock.has_native() && !lock.is_lock_free());
        calls.is_some_and(|it| it.lock_bytes % 64 == 0)
    };
    if let Some((_, full)) = image.locks.iter().enumerate().find(fills) {
        let full = super::small().form(full.name.clone(), false).shape(shape);
        let error = support::start(&full).unwrap_err().to_string();
        assert!(error.contains("no room for data"), "{error}");
    }
    done(&super::small().form("qspinlock", false).shape(shape));
}

/// Each layout of the mutex's queue has its own curve: what one CPU fetches for a turn of the queue.
#[test]
fn a_spin_queue_turns_as_fast_as_its_layout_lets_it() {
    let turns = |lock| sections(&busy(16, "spin-queue", lock).pv(lock != "none"));
    let all = ["mutex/split", "mutex/cached", "none"].map(turns);
    assert!(all.is_sorted_by(|slower, faster| slower < faster), "{all:?}");
}
