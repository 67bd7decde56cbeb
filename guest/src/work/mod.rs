//! Building blocks of workloads: choices, memory, lines to touch, jobs to share, folding, an end at rest.

pub(crate) mod arena;
pub(crate) mod choice;
pub(crate) mod folding;
pub(crate) mod footprint;
pub(crate) mod pool;
pub(crate) mod random;
