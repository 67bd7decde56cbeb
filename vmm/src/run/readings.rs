//! What a run shows besides its outcome, and shows even if it has none.

use crate::explain::Explanation;
use crate::observe::profile::Profile;
use crate::observe::trace::Trace;

/// What was seen of a run, however it ended.
#[derive(Debug, Default)]
pub struct Readings {
    /// Who is at fault, when the run failed in the guest.
    pub explanation: Option<Explanation>,
    /// What the guest wrote to its console.
    pub console: String,
    /// Where the vCPUs spent their time, if that was asked for.
    pub profile: Option<Profile>,
    /// What happened when, if that was asked for.
    pub trace: Option<Trace>,
}
