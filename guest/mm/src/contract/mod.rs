//! What the memory manager needs from the machine below it, and what it counts.

mod event;
pub(crate) mod machine;

pub use event::Event;
pub use machine::{Access, Cpus, Error, Exclusion, Machine, Sharing, Step};
