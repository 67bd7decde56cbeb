//! Building blocks of locks: atomics (those of a model checker, where one runs the code) and cache lines.

mod padded;
pub mod sync;
#[cfg(liveness)]
pub mod watched;

pub use padded::CachePadded;
