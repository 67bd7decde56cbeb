//! Whether our figure agrees with a published one.
//!
//! An interval that contains the published value agrees with it by vagueness as well as by being right: one of 1.05 to 8
//! contains nearly everything. So agreement is equivalence: the whole interval must lie within a margin around the
//! published value. Where it lies partly inside and partly outside, more blocks would tell, and about how many is said.

use serde::{Deserialize, Serialize};

use crate::analysis::statistics::{Estimate, Interval};

/// How our ratio stands to a published one.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Agreement {
    /// Our whole interval lies within the margin around the published ratio.
    Agrees,
    /// Same direction as published, further from 1 by more than the margin.
    Larger,
    /// Same direction as published, closer to 1 by more than the margin.
    Smaller,
    /// Our interval contains 1 and lies outside the margin. The number of blocks is about that which would show a
    /// difference, if there is the one that our estimate has and any number that can be run would.
    NoDifferenceShown {
        /// Blocks in all.
        blocks: Option<u32>,
    },
    /// The other direction.
    Opposite,
    /// A share: our whole interval lies above the margin.
    LargerShare,
    /// A share: our whole interval lies below the margin.
    SmallerShare,
    /// Not to be had on so few pCPUs as there are: it takes as many as this.
    NeedsPcpus {
        /// pCPUs.
        pcpus: u32,
    },
    /// Our interval lies partly within the margin and partly outside. The number of blocks is about that which would
    /// tell, if any number that can be run would.
    TooWideToTell {
        /// Blocks in all.
        blocks: Option<u32>,
    },
    /// There is no figure of ours, or it has no interval.
    NoFigure,
}

/// More blocks than this are not worth naming.
const MOST_BLOCKS: f64 = 10_000.0;

impl Agreement {
    /// Compares `ours` with what was `published`, once or several times. All of it must lie within this share of that.
    pub(crate) fn of(published: &[f64], within: f64, ours: Option<&Estimate>) -> Self {
        let Some((ours, interval, first)) = both(published, ours) else { return Self::NoFigure };
        // As distances from 1 in the published direction.
        let towards = |ratio: f64| if first < 1.0 { -ratio.ln() } else { ratio.ln() };
        let (a, b) = (towards(interval.low), towards(interval.high));
        let (near, far) = (a.min(b), a.max(b));
        let edge = |sign: f64| move |published: &f64| towards(*published) + sign * within.ln_1p();
        let inside = published.iter().map(edge(-1.0)).fold(f64::INFINITY, f64::min);
        let outside = published.iter().map(edge(1.0)).fold(f64::NEG_INFINITY, f64::max);
        match () {
            () if inside <= near && far <= outside => Self::Agrees,
            () if near > outside => Self::Larger,
            () if far >= inside => {
                let centre = towards(ours.hodges_lehmann);
                let to_an_end = (centre - inside).abs().min((outside - centre).abs());
                Self::TooWideToTell { blocks: blocks_needed(ours.n, interval, to_an_end) }
            }
            () if near > 0.0 => Self::Smaller,
            () if far < 0.0 => Self::Opposite,
            () => {
                let blocks = blocks_needed(ours.n, interval, towards(ours.hodges_lehmann).abs());
                Self::NoDifferenceShown { blocks }
            }
        }
    }

    /// Compares shares, which have no direction.
    pub(crate) fn of_share(published: &[f64], within: f64, ours: Option<&Estimate>) -> Self {
        let Some((ours, interval, published)) = both(published, ours) else { return Self::NoFigure };
        let (inside, outside) = (published / (1.0 + within), published * (1.0 + within));
        match () {
            () if interval.low > outside => Self::LargerShare,
            () if interval.high < inside => Self::SmallerShare,
            () if inside <= interval.low && interval.high <= outside => Self::Agrees,
            // No event was seen, in too few occasions.
            () if ours.hodges_lehmann <= 0.0 => Self::TooWideToTell { blocks: None },
            () => {
                let centre = ours.hodges_lehmann.ln();
                let to_an_end = (centre - inside.ln()).abs().min((outside.ln() - centre).abs());
                Self::TooWideToTell { blocks: blocks_needed(ours.n, interval, to_an_end) }
            }
        }
    }

    /// In words.
    pub(crate) fn word(self) -> String {
        match self {
            Self::Agrees => "agrees".into(),
            Self::Larger => "same direction, larger".into(),
            Self::Smaller => "same direction, smaller".into(),
            Self::NoDifferenceShown { blocks: Some(blocks) } => {
                format!("smaller, or none: no difference shown, {blocks} blocks might")
            }
            Self::NoDifferenceShown { blocks: None } => "smaller, or none: no difference shown".into(),
            Self::Opposite => "opposite direction".into(),
            Self::TooWideToTell { blocks: Some(blocks) } => format!("too wide to tell: {blocks} blocks"),
            Self::TooWideToTell { blocks: None } => "too wide to tell".into(),
            Self::LargerShare => "a larger share".into(),
            Self::SmallerShare => "a smaller share".into(),
            Self::NeedsPcpus { pcpus } => format!("needs {pcpus} pCPUs"),
            Self::NoFigure => "no figure".into(),
        }
    }
}

/// Ours with its interval, and the first that was published.
fn both<'a>(published: &[f64], ours: Option<&'a Estimate>) -> Option<(&'a Estimate, Interval, f64)> {
    Some((ours?, ours?.interval?, *published.first()?))
}

/// Blocks after which an interval that narrows with their square root is half as wide as `wanted` on each side.
fn blocks_needed(blocks: usize, interval: Interval, wanted: f64) -> Option<u32> {
    let half = (interval.high / interval.low).ln() / 2.0;
    let needed = blocks as f64 * (half / wanted).powi(2);
    // The margin is inside the interval, so that it takes more than there are.
    (needed.is_finite() && needed <= MOST_BLOCKS).then(|| (needed.ceil() as u32).max(blocks as u32 + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::statistics::Method;

    fn estimate(low: f64, high: f64) -> Estimate {
        let middle = (low * high).sqrt();
        let interval = Some(Interval { low, high, method: Method::SignedRank });
        Estimate { n: 6, median: middle, hodges_lehmann: middle, interval }
    }

    fn agreement(published: f64, low: f64, high: f64) -> Agreement {
        let margin = if published == 1.004 { 0.05 } else { 0.25 };
        Agreement::of(&[published], margin, Some(&estimate(low, high)))
    }

    #[test]
    fn the_word_says_where_ours_lies_beyond_the_margin() {
        for (published, low, high, expected) in [
            (2.0, 1.9, 2.1, Agreement::Agrees),
            (2.0, 1.7, 2.4, Agreement::Agrees),
            (1.004, 0.99, 1.01, Agreement::Agrees),
            (2.0, 2.6, 3.0, Agreement::Larger),
            (2.0, 1.2, 1.5, Agreement::Smaller),
            (2.0, 0.9, 1.5, Agreement::NoDifferenceShown { blocks: Some(18) }),
            (2.0, 0.5, 0.9, Agreement::Opposite),
            (1.004, 1.1, 1.2, Agreement::Larger),
            // A published loss is mirrored.
            (0.5, 0.2, 0.3, Agreement::Larger),
            (0.5, 0.7, 0.8, Agreement::Smaller),
            (0.5, 1.7, 1.8, Agreement::Opposite),
            // An estimate on the margin never tells.
            (2.0, 1.6 / 1.3, 1.6 * 1.3, Agreement::TooWideToTell { blocks: None }),
            // Half as wide fits into the margin, so that it takes some more than three times the six blocks.
            (2.0, 2.0 / 1.5, 2.0 * 1.5, Agreement::TooWideToTell { blocks: Some(20) }),
        ] {
            assert_eq!(agreement(published, low, high), expected, "{published}: {low} to {high}");
        }
        for (published, low, high) in [(2.01, 1.05, 8.0), (1.004, 0.8, 1.3), (2.0, 0.9, 3.0), (2.0, 1.4, 2.1)]
        {
            let agreement = agreement(published, low, high);
            assert!(matches!(agreement, Agreement::TooWideToTell { .. }), "{published}: {agreement:?}");
        }
    }

    #[test]
    fn without_an_interval_nothing_is_said() {
        let estimate = Estimate { n: 1, median: 2.0, hodges_lehmann: 2.0, interval: None };
        assert_eq!(Agreement::of(&[2.0], 0.25, Some(&estimate)), Agreement::NoFigure);
        assert_eq!(Agreement::of(&[2.0], 0.25, None), Agreement::NoFigure);
        // A directory's files may hold anything.
        let ours = self::estimate(0.1, 0.2);
        assert_eq!(Agreement::of_share(&[], 0.25, Some(&ours)), Agreement::NoFigure);
        assert_eq!(Agreement::of_share(&[0.5], 0.25, Some(&estimate)), Agreement::NoFigure);
    }

    #[test]
    fn what_a_narrower_interval_could_turn_into_another_word_says_so() {
        // Each of these might become "smaller" or "opposite", or "agrees" or "larger".
        for (low, high) in [(0.9, 1.5), (0.99, 1.01), (1.4, 2.1), (1.9, 2.6)] {
            let word = agreement(2.0, low, high).word();
            assert!(word.contains("blocks") || word.contains("or none"), "{low} to {high}: {word}");
        }
        // These cannot: whatever lies inside gets the same word.
        for (low, high) in [(1.7, 2.4), (1.1, 1.5), (2.6, 9.0), (0.5, 0.9)] {
            let word = agreement(2.0, low, high).word();
            let inner = agreement(2.0, low * 1.01, high / 1.01).word();
            assert_eq!(word, inner, "{low} to {high}");
            assert!(!word.contains("blocks"), "{low} to {high}: {word}");
        }
    }

    #[test]
    fn two_published_figures_are_one_and_a_share_has_no_direction() {
        for (low, high, expected) in
            [(1.2, 2.2, Agreement::Agrees), (2.3, 2.5, Agreement::Larger), (1.05, 1.1, Agreement::Smaller)]
        {
            let found = Agreement::of(&[1.44, 1.8], 0.25, Some(&estimate(low, high)));
            assert_eq!(found, expected, "{low} to {high}");
        }
        let share = |low, high| Agreement::of_share(&[0.2], 0.25, Some(&estimate(low, high)));
        for (low, high, expected) in [
            (0.17, 0.24, Agreement::Agrees),
            (0.3, 0.9, Agreement::LargerShare),
            (0.001, 0.1, Agreement::SmallerShare),
        ] {
            assert_eq!(share(low, high), expected, "{low} to {high}");
        }
        assert!(matches!(share(0.1, 0.22), Agreement::TooWideToTell { .. }));
    }
}
