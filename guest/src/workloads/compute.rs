//! Work without a lock: what a change to a lock must leave as it is.

use crate::cpu::percpu::{add, boot, this};
use crate::cpu::time::{iterations, work};
use crate::lock::measure::end_round;
use crate::lock::registry::workload;

workload! {
    "070" "compute", "work for --hold and --think, and take no lock: a control, in which no lock may differ",
        [TAKES_NO_LOCK IDEAL_IS_LOCK_FREE], [] => run;
}

/// The workload on one vCPU. One round of hold and think is one operation.
fn run() {
    let round = iterations(boot().hold_ns + boot().think_ns).max(1);
    loop {
        work(round);
        if !end_round(|| add(&this().results.acquisitions, 1)) {
            return;
        }
    }
}
