//! The CPU of a simulated machine.
#![warn(missing_docs)]

pub mod board;
mod bus;
mod code;
mod cpu;
mod decode;
mod event;
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
mod tlb;
mod work_loop;

pub use bus::{Access, Bus, Fence, LINE, Moment, Verdict};
pub use code::Code;
pub use cpu::{CS, Cpu, General, Registers, SS, System, Table};
pub use decode::covers;
pub use event::{Event, Fault};
pub use ram::Ram;
