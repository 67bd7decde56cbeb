//! Lock, work, unlock, work: for as long as the VMM lets it.
//!
//! `--read-share` makes some of the sections read only, of another length (`--read-hold`). `--footprint` has each section walk
//! that many cache lines of its lock, and `--dirty` write some of them.

use core::sync::atomic::{AtomicU32, Ordering};

use haltkick_hypercalls::{WINDOW_CLOSED, WINDOW_OPEN, WorkloadFlags};

use crate::cpu::percpu::{boot, control};
use crate::cpu::time::{iterations, work};
use crate::lock::measure::{self, Sections, Times};
use crate::lock::registry::workload;
use crate::work::choice::Choices;
use crate::work::footprint::Footprint;

workload! {
    "010" "critical-section", "lock, work for --hold, unlock, work for --think",
    WorkloadFlags::NOTES_SECTIONS.with(WorkloadFlags::NOTES_WAITS).with(WorkloadFlags::IDEAL_IS_SERIAL)
        .with(WorkloadFlags::IS_SHAPED).with(WorkloadFlags::HAS_ARRIVALS).with(WorkloadFlags::CAN_EMBED),
    ["wait", "hold", "unlock", "read-wait", "read-hold"] => run
}

/// The workload on one vCPU.
#[inline(never)]
pub(crate) fn run() {
    let rounds = Rounds::of_this_vcpu();
    let mut choices = Choices::of_this_vcpu();
    choices.begin();
    while rounds.round(&mut choices) {}
}

/// All that a vCPU needs for sections of its own or of a task.
pub(crate) struct Rounds {
    sections: Sections,
    footprint: Footprint,
    read_percent: u32,
    read_hold: u64,
    window: &'static AtomicU32,
}

impl Rounds {
    pub(crate) fn of_this_vcpu() -> Self {
        Self {
            sections: Sections::of_this_vcpu(),
            footprint: Footprint::of_run(),
            read_percent: boot().shape.read_percent,
            read_hold: iterations(boot().shape.read_hold_ns),
            window: &control().window,
        }
    }

    /// A section and the work after it. Returns whether there is to be another.
    #[inline(always)]
    pub(crate) fn round(&self, choices: &mut Choices) -> bool {
        let intended = choices.arrive();
        let index = choices.lock();
        let reads = choices.random.percent(self.read_percent);
        let times = if reads {
            self.sections.shared(index, || {
                self.footprint.walk(index);
                work(self.read_hold);
                true
            })
        } else {
            let hold = choices.hold();
            self.sections.exclusive(index, || {
                self.footprint.walk_and_write(index);
                work(hold);
            })
        };
        let times = Times { asked: intended.unwrap_or(times.asked), ..times };
        // Relaxed: a vCPU that sees the window change one round late counts one round more or less.
        match self.window.load(Ordering::Relaxed) {
            WINDOW_OPEN if reads => measure::count_read(&times),
            WINDOW_OPEN => measure::count(&times),
            WINDOW_CLOSED => return false,
            _ => {}
        }
        choices.think();
        true
    }
}
