//! The directory of an experiment: its manifest, its records, several merged into one, what is seen of its runs.

pub(crate) mod directory;
pub(crate) mod live;
pub(crate) mod manifest;
pub(crate) mod merge;
pub(crate) mod preemption;
