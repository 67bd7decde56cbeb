//! The scheduler of a host's kernel, as a pure state machine: a run queue for each CPU, and the laws by which tasks get there, run
//! and leave.
//!
//! It starts nothing and knows no clock. A driver tells it what happens (a wake-up, a tick, a halt, a yield), and asks it who runs next
//! and when to look again. Its laws are written from documentation, papers and descriptions of behaviour; host files say which of them a
//! kernel has, with a source for each constant ([`presets`]).
//!
//! The laws. `w` is a task's weight, `v` its virtual time, `V` the mean of all `v` of a queue by weight, `d` a deadline, `r` a slice.
//!
//! | law | of | states | file |
//! | --- | --- | --- | --- |
//! | 1 | virtual time | `v` grows by run time / `w`, the host kernel's time included | `queue` |
//! | 2 | eligibility | a task is eligible with `v <= V`; its lag `V - v` is bounded | `queue` |
//! | 3 | deadlines | `d = v + r / w`, renewed when `v` has come to it | `queue` |
//! | 4 | the pick | an eligible target of a yield, the protected current task, the earliest `d` among the eligible | `queue` |
//! | 5 | protection | nothing but a yield takes the CPU from the current task within its slice | `queue` |
//! | 6 | sleep and wake-up | the lag is kept; a sleeper with negative lag stays queued until it is picked | `queue` |
//! | 7 | slice ends | at a tick, or exactly by a timer; lazy requests wait for the next exit or tick | `queue`, `scheduler` |
//! | 8 | wake-up placement | the last CPU, the waker's, an idle core, an idle CPU of the cache; else by load | `placing` |
//! | 9 | pulls | a CPU that becomes idle pulls one waiting task that is not hot, near first, by chance of success | `placing` |
//! | 10 | balance | busy CPUs pull at intervals, half of the difference, or one after some patience | `placing` |
//! | 11 | ticks | each is an exit, aligned on all CPUs | `policy` |
//! | 12 | pause-loop exits | a loop of PAUSEs exits that outlasts a window: of time (Intel), of their number (AMD) | `waiting` |
//! | 13 | spinners' choice | the next ready vCPU of the guest that does not just spin | `waiting` |
//! | 14 | yields | the target is picked next in its queue; the yielder forfeits the rest of its slice | `queue`, `scheduler` |
//! | 15 | halt polling | polls grow while they would have met the wake-up, and shrink; a runnable task cuts them | `waiting` |
//! | 16 | kicks | an exit and a wake-up; the kicker may yield to the vCPU that it wakes | `policy` |
//! | 17 | entries | a barrier against branch prediction of another vCPU, at each change of vCPUs | `policy` |
//! | 18 | the preempted flag | set where a runnable vCPU is switched out, cleared when it runs | the driver |
//! | 19 | groups | a guest weighs as one thread, as its vCPUs, or as they fit the CPUs | `scheduler` |
//! | 20 | invalidations | a vCPU without a pCPU acknowledges them when it runs, or at once | `policy` |

mod placing;
mod policy;
mod queue;
mod scheduler;
mod waiting;

pub use policy::{
    Balance, Cfs, Eevdf, Fair, Groups, Host, HostCosts, HostPreset, Invalidations, Pause, PauseCounter, Poll,
    Target, presets, scale,
};
pub use scheduler::{Picked, Scheduler, Ticked, Woken, Yielded};
pub use waiting::{Boosts, Candidate, Spun};
