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

mod branches;
mod curve;
mod cut;
mod effect;
mod overtaking;
mod survey;

pub use branches::{Attempt, branches, replay};
pub use curve::Sample;
pub use cut::{Cut, Kind};
pub use effect::{Broken, Effect};
pub use survey::{Baseline, Occurrence, Scope, survey, survey_after};
