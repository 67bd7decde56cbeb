//! Building blocks of locks: atomics (those of a model checker, where one runs the code) and cache lines.

mod padded;
pub(crate) mod sync;
#[cfg(liveness)]
#[doc(hidden)]
pub mod watched;

pub use padded::CachePadded;
