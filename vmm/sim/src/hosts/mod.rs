//! The scheduler of a host's kernel, as a pure state machine: a run queue for each CPU, and the laws by which tasks get there, run
//! and leave.
//!
//! It starts nothing and knows no clock. A driver tells it what happens (a wake-up, a tick, a halt, a yield), and asks it who runs next
//! and when to look again. Its laws are written from documentation, papers and descriptions of behaviour; host files say which of them a
//! kernel has, with a source for each constant ([`presets`]).
//!
//! | file | laws |
//! | --- | --- |
//! | `queue` | 1 to 7, 14: virtual time, eligibility, deadlines, the pick, protection, sleep and wake-up, slice ends, yields; CFS |
//! | `scheduler` | 7, 14, 19: events, requests to reschedule, directed yields, weights of groups |
//! | `placing` | 8 to 10: where tasks wake up, and how they change CPUs |
//! | `pauses` | 12, 13: pause-loop exits and the vCPUs that they yield to |
//! | `polling` | 15: halt polling |

mod domains;
mod file;
mod pauses;
mod placing;
mod policy;
mod polling;
mod presets;
mod queue;
mod scheduler;

pub use file::HostError;
pub use pauses::{Boosts, Candidate, Spun, Window};
pub use policy::{
    Balance, Cfs, Eevdf, Fair, Groups, Host, HostCosts, Invalidations, Pause, PauseCounter, Poll, Target,
    scale,
};
pub use polling::Interval;
pub use presets::{HostPreset, presets};
pub use scheduler::{Picked, Scheduler, Ticked, Woken, Yielded};
