//! Which locks there are, in which order they are taken, and what they protect.

pub(crate) mod guarded;
pub(crate) mod order;
pub(crate) mod scheme;
pub(crate) mod sync;

pub use scheme::*;
