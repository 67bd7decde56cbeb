//! The CPU of a simulated machine, and machines of many.
//!
//! Its rooms, from the ground up: `cpu` interprets instructions; `sourced` reads files whose values name their sources; `machine` says where CPUs are and what everything costs;
//! `hosts` are the schedulers of hosts' kernels; `schedule` reads what one of them did; `lines` are the cache lines that move between them; `board` has CPUs that share memory, in virtual time.
#![warn(missing_docs)]

pub mod board;
mod cpu;
pub mod hosts;
mod lines;
pub mod machine;
pub mod schedule;
mod sourced;

pub use cpu::bus::{Access, Bus, Event, Fault, Granted, LINE, Partition, Refused};
pub use cpu::code::Code;
pub use cpu::decode::covers;
pub use cpu::state::{CS, Cpu, General, Registers, SS, System, Table};
pub use sourced::FileError;
