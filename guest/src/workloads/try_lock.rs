//! Lock, work, unlock, work, and every second time only if the lock is free.

use core::sync::atomic::Ordering;

use haltkick_hypercalls::{WINDOW_CLOSED, WINDOW_OPEN, WorkloadFlags};

use crate::cpu::percpu::control;
use crate::cpu::time::work;
use crate::lock::measure::{self, Sections};
use crate::lock::object;
use crate::lock::registry::workload;
use crate::work::choice::Choices;

workload! {
    "015" "try-lock", "critical-section, every second time only if the lock is free (hk_try_lock of a lock object)",
    WorkloadFlags::TRIES.with(WorkloadFlags::NOTES_WAITS), ["wait", "hold", "unlock", "try"] => run
}

/// The workload on one vCPU.
fn run() {
    let sections = Sections::of_this_vcpu();
    let mut choices = Choices::of_this_vcpu();
    let take = object::try_lock();
    let window = &control().window;
    choices.begin();
    loop {
        let (index, hold) = (choices.lock(), choices.hold());
        let tried = sections.if_free(index, take, || work(hold));
        let waited = sections.exclusive(index, || work(hold));
        // Relaxed: a vCPU that sees the window change one round late counts one round more or less.
        match window.load(Ordering::Relaxed) {
            WINDOW_OPEN => {
                tried.iter().for_each(measure::count_tried);
                measure::count(&waited);
            }
            WINDOW_CLOSED => return,
            _ => {}
        }
        choices.think();
    }
}
