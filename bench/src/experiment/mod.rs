//! An experiment: its file, what the command line changes in it, and the plan of its cells.

mod booted;
mod contents;
mod file;
mod fit;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzed;
pub(crate) mod measure;
pub(crate) mod outline;
pub(crate) mod overrides;
pub(crate) mod plan;
mod publication;
pub(crate) mod published;
mod reader;
mod robust;
pub(crate) mod schema;
mod source;
pub(crate) mod sweep;
#[cfg(test)]
mod tests;
pub(crate) mod workload_inside;

pub(crate) use booted::Boot;
pub(crate) use contents::{Experiment, MOST_RETRIES};
pub(crate) use file::{read_guest_set, summary};
pub(crate) use source::{BUILT_IN, Source};
