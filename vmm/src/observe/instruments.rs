//! What a run is asked to show besides its outcome.

use std::time::Duration;

/// What a run is asked to show.
#[derive(Clone, Debug, Default)]
pub struct Instruments {
    /// Sample instruction pointers, at this mean distance on each pCPU.
    pub profile: Option<Duration>,
    /// Note who ran where, who waited and held what, and who kicked whom.
    pub trace: bool,
}
