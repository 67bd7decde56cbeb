//! Costs of losing the CPU at single instructions of a lock, on a simulated machine.
//!
//! ```text
//!  survey ─> all instructions of the lock that a run comes to, and its curve of work ─┐
//!                                                                                     │ which of them to try
//!  branches: the same run again ── at each cut, a copy of the process goes on ────────┘
//!                │                 with one vCPU taken off ─> how much later it has done as much work
//!                └─> replay: one cut, without a copy, from the start
//! ```
//!
//! A simulated run is the same each time, so an instruction of it has a name: the vCPU and how many instructions that has completed.
//! A branch is a copy of this process (`host::branch`): all that the run consists of is in it, and nothing else is kept.
//! A cut says which vCPU, before which of its instructions, and what befalls it.

mod branches;
mod effect;
mod overtaking;
mod survey;

use std::time::Duration;

use crate::sched::simulated::absences::WITH_PCPU;

pub use branches::{Attempt, branches, replay};
pub use effect::{Broken, Effect, Sample};
pub use survey::{Baseline, Occurrence, Scope, survey, survey_after};

/// Event that befalls a vCPU at a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// No event: the branch goes on as the run does.
    Nothing,
    /// It leaves its guest and comes back at once.
    Exit,
    /// It is off its pCPU for this long at least.
    Off(Duration),
    /// Its pCPU is gone for this long, and it is off.
    Taken(Duration),
}

impl Kind {
    /// Time off; zero for an exit alone.
    #[must_use]
    pub fn length(self) -> Duration {
        match self {
            Self::Nothing | Self::Exit => Duration::ZERO,
            Self::Off(time) | Self::Taken(time) => time,
        }
    }

    /// The event in the scheduler's words.
    fn told(self) -> Option<u64> {
        match self {
            Self::Nothing => None,
            Self::Exit => Some(0),
            Self::Off(time) => Some(time.as_nanos() as u64),
            Self::Taken(time) => Some(time.as_nanos() as u64 | WITH_PCPU),
        }
    }
}

/// Place of a cut in a vCPU's instructions, and its event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The vCPU.
    pub vcpu: u32,
    /// Instructions that it has completed before.
    pub instructions: u64,
    /// How.
    pub kind: Kind,
    /// The window closes at the same time: the others leave while the vCPU is off, so none of them hides what it does to the lock later.
    pub closes: bool,
}

impl Cut {
    /// A cut after which the run goes on.
    #[must_use]
    pub fn new(vcpu: u32, instructions: u64, kind: Kind) -> Self {
        Self { vcpu, instructions, kind, closes: false }
    }
}
