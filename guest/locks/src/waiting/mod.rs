//! Waiting that several kinds of locks share: nodes that nest or are kept until unlock, how long to spin, how to sleep and be kicked.
//! Also waiting for locks of other crates.

pub(crate) mod nesting;
pub(crate) mod patience;
mod sleepers;
pub(crate) mod slice;
pub(crate) mod slots;
pub(crate) mod wake;

pub use sleepers::{SleeperDomain, Sleepers, Wake};
