//! The threads that play CPUs, and what depends on whose they are: how they yield, how they sleep, how time passes, and
//! whether the host's answers are drawn.

#[cfg(not(any(loom, shuttle)))]
mod host;
#[cfg(loom)]
mod modelled;
#[cfg(shuttle)]
mod scheduled;

#[cfg(not(any(loom, shuttle)))]
pub(crate) use host::*;
#[cfg(loom)]
pub(crate) use modelled::*;
#[cfg(shuttle)]
pub use scheduled::try_schedules;
#[cfg(shuttle)]
pub(crate) use scheduled::{Clock, Latch, become_cpu, cpu, draw, yield_now};
