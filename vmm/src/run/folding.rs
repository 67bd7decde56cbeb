//! Folding: how a guest whose work is tasks chooses the vCPUs that they run on.

use std::time::Duration;

use crate::host::error::Refused;
use crate::host::span::Span;

/// The choice of vCPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fold {
    /// All, always.
    #[default]
    Off,
    /// As many as its share of the pCPUs, where all guests have equal shares, as if it knew.
    Oracle,
    /// As many as this governor says.
    Governor(Governor),
}

/// Parameters of the guest's steal governor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Governor {
    /// Time between two samples.
    pub interval: Duration,
    /// Up to this share of stolen time, in hundredths of a percent, one vCPU more is preferred.
    pub low: u32,
    /// Above this share one fewer is.
    pub high: u32,
}

impl Governor {
    /// Linux' defaults.
    pub const LINUX: Self = Self { interval: Duration::from_secs(1), low: 200, high: 500 };
}

/// In a shorter time the law takes no sample.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(1);
const LONGEST_INTERVAL: Duration = Duration::from_secs(100);

impl Fold {
    /// The governor, if there is one.
    #[must_use]
    pub fn governor(self) -> Option<Governor> {
        match self {
            Self::Governor(governor) => Some(governor),
            Self::Off | Self::Oracle => None,
        }
    }

    /// Refuses parameters that are no governor's.
    ///
    /// # Errors
    /// The part that is wrong.
    pub fn check(self) -> Result<(), Refused> {
        let Some(Governor { interval, low, high }) = self.governor() else { return Ok(()) };
        let refuse = |message| Err(Refused::new("fold", message));
        if !(SHORTEST_INTERVAL..=LONGEST_INTERVAL).contains(&interval) {
            return refuse(format!("an interval of {} is out of range: 1ms to 100s", Span(interval)));
        }
        if low >= high || high >= 10_000 {
            return refuse("the low threshold is below the high one, and that below 100%".into());
        }
        Ok(())
    }
}
