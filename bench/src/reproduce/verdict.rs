//! Whether our figure agrees with a published one.

use schemars::JsonSchema;
use serde::Serialize;

use crate::statistics::Estimate;

/// How our ratio stands to a published one.
#[derive(Clone, Copy, Debug, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Agreement {
    /// The published ratio lies in our interval, and 1 does not; or both are near 1.
    Agrees,
    /// The same direction, further from 1 than published.
    Larger,
    /// The same direction, closer to 1 than published.
    Smaller,
    /// Our interval contains 1, and the published ratio is not near 1.
    NoDifferenceShown,
    /// The other direction.
    Opposite,
    /// There is no figure of ours, or it has no interval.
    NoFigure,
}

/// Published differences up to this share are none.
const NEAR_1: f64 = 0.02;

impl Agreement {
    /// Compares `ours` with `published`.
    pub(crate) fn of(published: f64, ours: Option<&Estimate>) -> Self {
        let Some(interval) = ours.and_then(|ours| ours.interval) else { return Self::NoFigure };
        // As distances from 1 in the published direction.
        let towards = |ratio: f64| ratio.ln() * published.ln().signum();
        let (a, b) = (towards(interval.low), towards(interval.high));
        let (near, far, published) = (a.min(b), a.max(b), towards(published));
        let (holds_1, holds_it) = (near <= 0.0 && 0.0 <= far, near <= published && published <= far);
        match () {
            () if holds_1 && published > NEAR_1 => Self::NoDifferenceShown,
            () if holds_1 || holds_it => Self::Agrees,
            () if far < 0.0 => Self::Opposite,
            () if near > published => Self::Larger,
            () => Self::Smaller,
        }
    }

    /// In words.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Agrees => "agrees",
            Self::Larger => "same direction, larger",
            Self::Smaller => "same direction, smaller",
            Self::NoDifferenceShown => "no difference shown",
            Self::Opposite => "opposite direction",
            Self::NoFigure => "no figure",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::{Interval, Method};

    fn agreement(published: f64, low: f64, high: f64) -> Agreement {
        let interval = Some(Interval { low, high, method: Method::SignedRank });
        let middle = (low * high).sqrt();
        Agreement::of(published, Some(&Estimate { n: 6, median: middle, hodges_lehmann: middle, interval }))
    }

    #[test]
    fn the_word_follows_from_the_interval() {
        assert_eq!(agreement(2.0, 1.9, 2.1), Agreement::Agrees);
        assert_eq!(agreement(2.0, 2.5, 3.0), Agreement::Larger);
        assert_eq!(agreement(2.0, 1.2, 1.5), Agreement::Smaller);
        assert_eq!(agreement(2.0, 0.9, 1.5), Agreement::NoDifferenceShown);
        assert_eq!(agreement(2.0, 0.5, 0.9), Agreement::Opposite);
        assert_eq!(agreement(2.0, 0.9, 3.0), Agreement::NoDifferenceShown, "too wide to agree");
        assert_eq!(agreement(1.004, 0.99, 1.01), Agreement::Agrees);
        assert_eq!(agreement(1.004, 1.1, 1.2), Agreement::Larger);
    }

    #[test]
    fn a_published_loss_is_mirrored() {
        assert_eq!(agreement(0.5, 0.2, 0.3), Agreement::Larger);
        assert_eq!(agreement(0.5, 0.7, 0.8), Agreement::Smaller);
        assert_eq!(agreement(0.5, 1.7, 1.8), Agreement::Opposite);
    }

    #[test]
    fn without_an_interval_nothing_is_said() {
        let estimate = Estimate { n: 1, median: 2.0, hodges_lehmann: 2.0, interval: None };
        assert_eq!(Agreement::of(2.0, Some(&estimate)), Agreement::NoFigure);
        assert_eq!(Agreement::of(2.0, None), Agreement::NoFigure);
    }
}
