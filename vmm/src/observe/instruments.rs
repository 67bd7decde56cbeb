//! What a run is asked to show besides its outcome.

use std::sync::Arc;
use std::time::Duration;

use crate::host::clock::VirtualTime;
use crate::host::error::RunError;
use crate::observe::live::Live;
use crate::observe::profile::PROFILE_PERIODS;

/// What a run is asked to show.
#[derive(Clone, Debug, Default)]
pub struct Instruments {
    /// Sample instruction pointers, at this mean distance on each pCPU.
    pub profile: Option<Duration>,
    /// Note who ran where, who waited and held what, and who kicked whom.
    pub trace: bool,
    /// Where a simulated machine shows how far it has come.
    pub virtual_time: Option<Arc<VirtualTime>>,
    /// Where runs show themselves that are [asked to](crate::Run::live).
    pub live: Option<Arc<Live>>,
}

impl Instruments {
    /// Refuses what cannot be shown.
    pub(crate) fn check(&self) -> Result<(), RunError> {
        let (shortest, longest) = PROFILE_PERIODS;
        match self.profile.filter(|period| !(shortest..=longest).contains(period)) {
            Some(period) => Err(RunError::Usage(format!(
                "a profile's samples are {shortest:?} to {longest:?} apart, not {period:?}"
            ))),
            None => Ok(()),
        }
    }
}
