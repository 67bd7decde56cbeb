//! Services that the memory manager needs from the machine, and the events that it counts.

mod event;
pub(crate) mod machine;

pub use event::Event;
pub use machine::{Access, Cpus, Error, Exclusion, Machine, Sharing, Step};
