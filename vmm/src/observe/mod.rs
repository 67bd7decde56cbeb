//! Instruments that a run may have besides its outcome: a profile and a trace, with each thread's notes for them;
//! and a live view while the run goes.

pub(crate) mod live;
pub(crate) mod notes;
pub(crate) mod profile;
pub(crate) mod ticks_histogram;
pub(crate) mod trace;
pub(crate) mod whereabouts;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::host::clock::VirtualTime;
use crate::host::error::Refused;
use crate::host::text::Span;
use crate::observe::live::Live;
use crate::observe::profile::PROFILE_PERIODS;

/// The outputs that a run is asked for.
#[derive(Clone, Debug, Default)]
pub struct Instruments {
    /// Sample instruction pointers, at this mean distance on each pCPU.
    pub profile: Option<Duration>,
    /// Note which vCPU ran where, which vCPU waited and held what, and which vCPU kicked which.
    pub trace: bool,
    /// Progress of a simulated machine's clock, for display.
    pub virtual_time: Option<Arc<VirtualTime>>,
    /// File of the live view, for runs that are [asked to](crate::Run::live) show themselves.
    pub live: Option<Arc<Live>>,
    /// Listeners to a Linux guest.
    pub linux: Option<LinuxConsole>,
}

/// Takes lines of text as they come.
pub type ConsoleSink = Arc<dyn Fn(&str) + Send + Sync>;

/// Listeners to the console of a Linux guest, and to a warning before it.
#[derive(Clone)]
pub struct LinuxConsole {
    /// Hears every line on the thread of the vCPU that wrote it, which waits meanwhile: must be quick.
    pub hears: ConsoleSink,
    /// Shows it, on a thread of its own. May be slow; of what it does not take in time lines are lost.
    pub shows: ConsoleSink,
    /// Is told before the guest starts if this host is no place for it.
    pub warns: ConsoleSink,
}

impl fmt::Debug for LinuxConsole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinuxConsole").finish_non_exhaustive()
    }
}

/// Listens to nothing.
impl Default for LinuxConsole {
    fn default() -> Self {
        let nothing: ConsoleSink = Arc::new(|_| {});
        Self { hears: Arc::clone(&nothing), shows: Arc::clone(&nothing), warns: nothing }
    }
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
