//! Waiting that several kinds of locks share: nodes that nest or are kept until unlock, how long to spin, how to sleep and be kicked.

pub(crate) mod nesting;
pub(crate) mod patience;
pub(crate) mod slice;
pub(crate) mod slots;
pub(crate) mod wake;
