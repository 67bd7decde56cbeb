//! Waiting that several kinds of locks share: nodes that nest, how long to spin, how to sleep and be kicked.

mod heartbeat;
pub(crate) mod nesting;
pub(crate) mod patience;
mod sleepers;
pub(crate) mod wake;

pub use heartbeat::Heartbeat;
pub use nesting::LEVELS;
pub use sleepers::{SleeperDomain, Sleepers, Wake};
