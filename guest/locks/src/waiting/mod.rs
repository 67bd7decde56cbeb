//! Waiting for locks of other crates, hints that need no host, and nodes that are kept until unlock.

mod heartbeat;
mod sleepers;
pub(crate) mod slots;

pub use heartbeat::Heartbeat;
pub use sleepers::{SleeperDomain, Sleepers, Wake};
