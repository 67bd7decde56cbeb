//! The result of a run.

use haltkick_vmm::Found;

use super::console::Heard;

/// The findings of a run, and the figures that a Linux guest printed.
#[derive(Debug)]
pub(crate) struct RunResult {
    pub(crate) found: Found,
    pub(crate) heard: Heard,
}

/// Our own guests print no figures.
impl From<Found> for RunResult {
    fn from(found: Found) -> Self {
        Self { found, heard: Heard::default() }
    }
}
