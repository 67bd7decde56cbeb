//! An experiment: its file, what the command line changes in it, and the plan of its cells.

mod file;
pub(crate) mod guest_set;
pub(crate) mod ideal;
pub(crate) mod measure;
pub(crate) mod names;
pub(crate) mod origins;
pub(crate) mod outline;
pub(crate) mod overrides;
pub(crate) mod place;
pub(crate) mod plan;
mod reader;
mod source;

pub(crate) use file::{Experiment, MOST_RETRIES, summary};
pub(crate) use source::{BUILT_IN, Source};
