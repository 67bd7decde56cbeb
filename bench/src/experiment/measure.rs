//! What comparisons compare.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a comparison compares. Above 1, the arm does better than the baseline.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Measure {
    /// Sections per second: for a fixed amount of work, how much sooner it is done.
    #[default]
    Throughput,
    /// Sections per CPU time that goes into acquiring and releasing locks.
    LockCpu,
}

impl Measure {
    /// All of them.
    pub(crate) const ALL: [Self; 2] = [Self::Throughput, Self::LockCpu];

    /// What its ratios are ratios of.
    pub(crate) fn ratio_of(self) -> &'static str {
        match self {
            Self::Throughput => "ratio of throughputs",
            Self::LockCpu => "ratio of sections per CPU time in locks",
        }
    }

    /// What an arm is whose ratio lies above 1, and one whose ratio lies below.
    pub(crate) fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Throughput => ("faster", "slower"),
            Self::LockCpu => ("less CPU time", "more CPU time"),
        }
    }

    /// Its name in files.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Throughput => "throughput",
            Self::LockCpu => "lock-cpu",
        }
    }
}
