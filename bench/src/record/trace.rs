//! Content of a trace file.

use serde::{Deserialize, Serialize};

/// Content of a trace file, and its gaps.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Traced {
    /// The file.
    pub(crate) path: String,
    /// Its length.
    pub(crate) bytes: u64,
    /// Turns, sleeps and kicks in it.
    pub(crate) host_events: u64,
    /// Events that were dropped for lack of room: the oldest.
    pub(crate) host_events_dropped: u64,
    /// Critical sections in it.
    pub(crate) guest_sections: u64,
    /// Sections that were dropped for lack of room: the oldest of each vCPU.
    pub(crate) guest_sections_dropped: u64,
    /// Sections that the guest noted with impossible times or locks.
    pub(crate) guest_sections_implausible: u64,
    /// Gaps, and why: one line for each.
    #[serde(default)]
    pub(crate) missing: Vec<String>,
}

impl Traced {
    /// One line for people.
    pub(crate) fn story(&self) -> String {
        let mut story = format!(
            "trace: {} ({} host events, {} critical sections): open it in https://ui.perfetto.dev",
            self.path, self.host_events, self.guest_sections
        );
        let dropped = self.host_events_dropped.saturating_add(self.guest_sections_dropped);
        if dropped > 0 {
            story += &format!("; the {dropped} oldest did not fit");
        }
        for missing in &self.missing {
            story += &format!("\ntrace: without {missing}");
        }
        story
    }
}
