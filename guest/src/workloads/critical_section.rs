//! Lock, work, unlock, work: for as long as the VMM lets it.
//!
//! `--read-share` makes some of the sections read only, of another length (`--read-hold`). `--footprint` has each section walk
//! that many cache lines of its lock, and `--dirty` write some of them.

use core::sync::atomic::Ordering;

use haltkick_hypercalls::{WINDOW_CLOSED, WINDOW_OPEN, WorkloadFlags};

use crate::cpu::percpu::{boot, control};
use crate::cpu::time::{iterations, work};
use crate::lock::measure::{self, Sections, Times};
use crate::lock::registry::workload;
use crate::work::choice::Choices;
use crate::work::footprint::Footprint;

workload! {
    "010" "critical-section", "lock, work for --hold, unlock, work for --think",
    WorkloadFlags::NOTES_SECTIONS.with(WorkloadFlags::NOTES_WAITS).with(WorkloadFlags::IDEAL_IS_SERIAL),
    ["wait", "hold", "unlock", "read-wait", "read-hold"] => run
}

/// The workload on one vCPU.
#[inline(never)]
pub(crate) fn run() {
    let sections = Sections::of_this_vcpu();
    let footprint = Footprint::of_run();
    let mut choices = Choices::of_this_vcpu();
    let (read_percent, read_hold) = (boot().read_percent, iterations(boot().read_hold_ns));
    let window = &control().window;
    choices.begin();
    loop {
        let intended = choices.arrive();
        let index = choices.lock();
        let reads = choices.random.percent(read_percent);
        let times = if reads {
            sections.shared(index, || {
                footprint.walk(index);
                work(read_hold);
                true
            })
        } else {
            let hold = choices.hold();
            sections.exclusive(index, || {
                footprint.walk_and_write(index);
                work(hold);
            })
        };
        let times = Times { asked: intended.unwrap_or(times.asked), ..times };
        // Relaxed: a vCPU that sees the window change one round late counts one round more or less.
        match window.load(Ordering::Relaxed) {
            WINDOW_OPEN if reads => measure::count_read(&times),
            WINDOW_OPEN => measure::count(&times),
            WINDOW_CLOSED => return,
            _ => {}
        }
        choices.think();
    }
}
