//! Lock, work, unlock, work: for as long as the VMM lets it.
//!
//! `--read-share` makes some of the sections read only, of another length (`--read-hold`). `--footprint` has each section walk
//! that many cache lines of its lock, and `--dirty` write some of them.

use crate::cpu::time::work;
use crate::lock::registry::workload;
use crate::work::choice::{Choices, Shares};
use crate::work::footprint::Footprint;

workload! {
    "010" "critical-section", "lock, work for --hold, unlock, work for --think",
        [NOTES_SECTIONS NOTES_WAITS IDEAL_IS_SERIAL IS_SHAPED HAS_ARRIVALS CAN_EMBED],
        ["wait", "hold", "unlock", "read-wait", "read-hold"] => run;
}

#[inline(never)]
pub(crate) fn run() {
    let rounds = Rounds::of_this_vcpu();
    let mut choices = Choices::of_this_vcpu().begun();
    while rounds.round(&mut choices) {}
}

/// All that a vCPU needs for sections of its own or of a task.
pub(crate) struct Rounds {
    shares: Shares,
    footprint: Footprint,
}

impl Rounds {
    pub(crate) fn of_this_vcpu() -> Self {
        Self { shares: Shares::of_this_vcpu(), footprint: Footprint::of_run() }
    }

    /// A section and the work after it. Returns whether there is to be another.
    #[inline(always)]
    pub(crate) fn round(&self, choices: &mut Choices) -> bool {
        let intended = choices.arrive();
        let index = choices.lock();
        let read = |hold| {
            self.footprint.walk(index);
            work(hold);
            true
        };
        let write = |hold| {
            self.footprint.walk_and_write(index);
            work(hold);
        };
        let goes_on = self.shares.round(choices, index, intended, read, write);
        if goes_on {
            choices.think();
        }
        goes_on
    }
}
