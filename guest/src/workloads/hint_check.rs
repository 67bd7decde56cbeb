//! Is the `preempted` flag true? Every vCPU watches a neighbour.
//!
//! A vCPU that runs moves its heartbeat about once in a microsecond. A look is a flag that was the same before and after
//! four of them: a neighbour that is marked must not have moved meanwhile, and one that is not marked must have. The VMM
//! also gets the last look, to compare it with what it did to that vCPU.

use core::sync::atomic::Ordering;

use haltkick_hypercalls::{WINDOW_CLOSED, WINDOW_OPEN};

use crate::cpu::percpu::{FlagSnapshot, add, area, boot, control, cpu, this};
use crate::cpu::time::{iterations, now, work};
use crate::lock::registry::workload;

workload! {
    "300" "hint-check", "every vCPU compares a neighbour's preempted flag with whether that neighbour runs",
        [TAKES_NO_LOCK], [] => run;
}

/// The workload on one vCPU; one look counts as one operation.
fn run() {
    const BEATS: u32 = 4;
    let vcpus = boot().vcpus as usize;
    let (heartbeat, hint) = (&this().activity.since_tsc, &this().hint);
    let beat = iterations(1_000);
    for step in (1..vcpus.max(2)).cycle() {
        let window = control().window.load(Ordering::Relaxed);
        if window == WINDOW_CLOSED {
            return;
        }
        let target = (cpu() + step) % vcpus;
        let neighbour = area(target);
        let asked = now();
        let before = FlagSnapshot::of(target);
        let seen = neighbour.activity.since_tsc.load(Ordering::Acquire);
        for _ in 0..BEATS {
            work(beat);
            heartbeat.store(now(), Ordering::Release);
        }
        let moved = neighbour.activity.since_tsc.load(Ordering::Acquire) != seen;
        // Release: in this order, whatever the compiler thinks of it; the VMM may stop this vCPU between any two.
        hint.last_tsc.store(0, Ordering::Release);
        hint.last_vcpu.store(target as u32, Ordering::Release);
        hint.last_marked.store(u32::from(before.is_set), Ordering::Release);
        hint.last_tsc.store(asked, Ordering::Release);
        add(&this().results.acquisitions, 1);
        // A vCPU that has not had its first turn is neither marked nor moves, so only the window counts.
        if target == cpu() || window != WINDOW_OPEN || !before.still_holds(target) {
            continue;
        }
        add(&hint.samples, 1);
        match (before.is_set, moved) {
            (true, true) => add(&hint.moved_while_marked, 1),
            (false, false) => add(&hint.still_while_unmarked, 1),
            _ => {}
        }
    }
}
