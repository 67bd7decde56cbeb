//! The word for a ratio and its interval.

use serde::{Deserialize, Serialize};

use crate::experiment::measure::Measure;

/// Verdict of a ratio's interval.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verdict {
    /// The interval lies above 1: the arm does better than its baseline.
    Faster,
    /// The interval lies below 1: it does worse.
    Slower,
    /// The interval contains 1.
    NoDifferenceShown,
    /// No interval.
    TooFewBlocks,
    /// More than 29 % of the pairs have an invalid run: whatever the interval says is no finding.
    NotValid,
}

impl Verdict {
    /// Whether the word says that there is a difference.
    pub(crate) fn is_difference(self) -> bool {
        matches!(self, Self::Faster | Self::Slower)
    }

    /// In words that fit what was compared.
    pub(crate) fn word(self, of: &Measure) -> &'static str {
        match self {
            Self::Faster => of.words().0,
            Self::Slower => of.words().1,
            Self::NoDifferenceShown => "no difference shown",
            Self::TooFewBlocks => "too few blocks",
            Self::NotValid => "not valid",
        }
    }

    /// The verdict as a mark for narrow columns.
    pub(crate) fn mark(self) -> &'static str {
        match self {
            Self::Faster => "+",
            Self::Slower => "-",
            Self::NoDifferenceShown => "~",
            Self::TooFewBlocks => "?",
            Self::NotValid => "!",
        }
    }
}
