//! What locks are made of: atomics, which are those of a model checker where one runs the code, and cache lines.

#[cfg(coherence)]
pub mod coherence;
mod padded;
pub(crate) mod sync;

pub use padded::CachePadded;
