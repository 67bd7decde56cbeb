//! The result of a run.

use haltkick_vmm::Found;

use super::console::Heard;
use crate::record::Record;

/// The findings of a run, and the figures that a Linux guest printed.
#[derive(Debug)]
pub(crate) struct RunResult {
    pub(crate) found: Found,
    pub(crate) heard: Heard,
    /// The record of the workload inside a Linux guest, or why there is none; `None` where none was to run.
    pub(crate) inside: Option<Result<Box<Record>, String>>,
}

/// Our own guests print no figures.
impl From<Found> for RunResult {
    fn from(found: Found) -> Self {
        Self { found, heard: Heard::default(), inside: None }
    }
}
