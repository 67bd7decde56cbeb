//! The directory of an experiment: its manifest, its records, several merged into one.

pub(crate) mod directory;
pub(crate) mod manifest;
pub(crate) mod merge;
pub(crate) mod opened;
