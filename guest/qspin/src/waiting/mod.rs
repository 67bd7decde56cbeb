//! Waiting that several kinds of locks share: nodes that nest, how long to spin, how to sleep and be kicked.

pub mod nesting;
pub mod patience;
pub mod slice;
pub mod wake;
