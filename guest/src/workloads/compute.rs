//! Work without a lock: what a change to a lock must leave as it is.

use core::sync::atomic::Ordering;

use haltkick_hypercalls::{WINDOW_CLOSED, WINDOW_OPEN, WorkloadFlags};

use crate::cpu::percpu::{add, boot, control, this};
use crate::cpu::time::{iterations, work};
use crate::lock::registry::workload;

workload! {
    "070" "compute", "work for --hold and --think, and take no lock: a control, in which no lock may differ",
    WorkloadFlags::TAKES_NO_LOCK.with(WorkloadFlags::IDEAL_IS_LOCK_FREE), [] => run
}

/// The workload on one vCPU. One round of hold and think is one operation.
fn run() {
    let round = iterations(boot().hold_ns + boot().think_ns).max(1);
    loop {
        work(round);
        // Relaxed: a vCPU that sees the window change one round late counts one round more or less.
        match control().window.load(Ordering::Relaxed) {
            WINDOW_OPEN => add(&this().results.acquisitions, 1),
            WINDOW_CLOSED => return,
            _ => {}
        }
    }
}
