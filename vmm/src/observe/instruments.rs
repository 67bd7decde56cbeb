//! What a run is asked to show besides its outcome.

use std::sync::Arc;
use std::time::Duration;

use crate::host::clock::VirtualTime;
use crate::host::error::Refused;
use crate::host::span::Span;
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
    ///
    /// # Errors
    /// A profile whose samples are too close together, or too far apart.
    pub fn check(&self) -> Result<(), Refused> {
        let (shortest, longest) = PROFILE_PERIODS;
        let Some(period) = self.profile.filter(|period| !(shortest..=longest).contains(period)) else {
            return Ok(());
        };
        let [period, shortest, longest] = [period, shortest, longest].map(Span);
        let message = format!("a period of {period} is out of range: {shortest} to {longest}");
        Err(Refused::new("profile", message))
    }
}
