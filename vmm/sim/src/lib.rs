//! The CPU of a simulated machine.
#![warn(missing_docs)]

pub mod board;
mod bus;
mod code;
mod cpu;
mod decode;
mod faults;
mod flags;
pub mod lines;
pub mod machine;
mod memory;
mod op;
mod operations;
mod paging;
mod ram;
mod run;

pub use bus::{Access, Bus, Fence, LINE, Moment, Verdict};
pub use code::{Code, Event};
pub use cpu::{CS, Cpu, Fault, General, Registers, SS, System, Table};
pub use decode::covers;
pub use ram::Ram;
