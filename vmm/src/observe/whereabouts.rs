//! The whereabouts of a vCPU: one vocabulary for the schedulers' books, timelines, traces, the live view and explanations.
//!
//! Timelines and traces have codes of their own for them, which are public and written out where they are used.

use crate::guest::activity::Activity;

/// The place where a vCPU is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Where {
    /// Not started: the boot vCPU has not let it start.
    #[default]
    NotStarted,
    /// On a pCPU; under the host's scheduler, where it does not report: not asleep, and so on a pCPU or waiting for one.
    Running,
    /// On a pCPU or waiting for one, which only the host's scheduler knows.
    Runnable,
    /// Ready without a pCPU: new, kicked awake, or it gave up its slice.
    Ready,
    /// Taken off its pCPU by a scheduler in the midst of this.
    Preempted(Activity),
    /// Kept off its pCPU on purpose, in the midst of this.
    KeptOut(Activity),
    /// Asleep until it is kicked, in the VMM's hands or in KVM's.
    Asleep,
    /// Asleep for a reason of the host's, such as a page that has to be fetched.
    Blocked,
    /// Done, or failed.
    Left,
}

impl Where {
    /// Its name in the live view; explanations call one of them otherwise.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NotStarted => "not-started",
            Self::Running => "running",
            Self::Runnable => "runnable",
            Self::Ready => "ready",
            Self::Preempted(_) | Self::KeptOut(_) => "preempted",
            Self::Asleep => "asleep",
            Self::Blocked => "blocked",
            Self::Left => "left",
        }
    }
}

/// A vCPU's place, and since when it has been there in host time where that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Whereabouts {
    pub(crate) at: Where,
    pub(crate) since_ns: Option<u64>,
}

impl From<Where> for Whereabouts {
    /// A place without a time.
    fn from(at: Where) -> Self {
        Self { at, since_ns: None }
    }
}
