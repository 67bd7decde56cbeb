//! Work without a lock: what a change to a lock must leave as it is.

use core::sync::atomic::Ordering;

use haltkick_hypercalls::{WINDOW_CLOSED, WINDOW_OPEN};

use crate::locks::GuestLock;
use crate::percpu::{add, boot, control, this};
use crate::time::{iterations, work};

/// The workload on one vCPU. One round of hold and think is one operation.
pub(crate) fn run<L: GuestLock>() {
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
