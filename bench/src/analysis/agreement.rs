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
    /// Compares `ours` with what was `published`, once or several times. All of it must lie within this share of that. Shares have no
    /// direction, and the first that was published counts.
    pub(crate) fn of(published: &[f64], within: f64, ours: Option<&Estimate>, is_share: bool) -> Self {
        let both = ours.and_then(|ours| Some((ours, ours.interval?, *published.first()?)));
        let Some((ours, interval, first)) = both else { return Self::NoFigure };
        let published = if is_share { &published[..1] } else { published };
        // As distances from 1 in the published direction.
        let towards = |ratio: f64| if first < 1.0 && !is_share { -ratio.ln() } else { ratio.ln() };
        let (a, b) = (towards(interval.low), towards(interval.high));
        let (near, far) = (a.min(b), a.max(b));
        let edge = |sign: f64| move |published: &f64| towards(*published) + sign * within.ln_1p();
        let inside = published.iter().map(edge(-1.0)).fold(f64::INFINITY, f64::min);
        let outside = published.iter().map(edge(1.0)).fold(f64::NEG_INFINITY, f64::max);
        let centre = towards(ours.hodges_lehmann);
        match () {
            () if inside <= near && far <= outside => Self::Agrees,
            () if near > outside && is_share => Self::LargerShare,
            () if near > outside => Self::Larger,
            // The number of blocks is not known for a share of 0: no event was seen.
            () if far >= inside => {
                let to_an_end = (centre - inside).abs().min((outside - centre).abs());
                Self::TooWideToTell { blocks: blocks_needed(ours.n, interval, to_an_end) }
            }
            () if is_share => Self::SmallerShare,
            () if near > 0.0 => Self::Smaller,
            () if far < 0.0 => Self::Opposite,
            () => Self::NoDifferenceShown { blocks: blocks_needed(ours.n, interval, centre.abs()) },
        }
    }

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

    #[test]
    fn the_word_says_where_ours_lies_beyond_the_margin() {
        for (published, low, high, expected) in [
            (2.0, 1.7, 2.4, "agrees"),
            (1.004, 0.99, 1.01, "agrees"),
            (2.0, 2.6, 3.0, "same direction, larger"),
            (2.0, 1.2, 1.5, "same direction, smaller"),
            (2.0, 0.9, 1.5, "smaller, or none: no difference shown, 18 blocks might"),
            (2.0, 0.99, 1.01, "smaller, or none: no difference shown"),
            (2.0, 0.5, 0.9, "opposite direction"),
            (1.004, 1.1, 1.2, "same direction, larger"),
            // A published loss is mirrored.
            (0.5, 0.2, 0.3, "same direction, larger"),
            (0.5, 0.7, 0.8, "same direction, smaller"),
            (0.5, 1.7, 1.8, "opposite direction"),
            // An estimate on the margin never tells.
            (2.0, 1.6 / 1.3, 1.6 * 1.3, "too wide to tell"),
            // Half as wide fits into the margin, so that it takes some more than three times the six blocks.
            (2.0, 2.0 / 1.5, 2.0 * 1.5, "too wide to tell: 20 blocks"),
        ] {
            let margin = if published == 1.004 { 0.05 } else { 0.25 };
            let word = Agreement::of(&[published], margin, Some(&estimate(low, high)), false).word();
            assert_eq!(word, expected, "{published}: {low} to {high}");
        }
    }

    #[test]
    fn without_an_interval_nothing_is_said() {
        let alone = Estimate { interval: None, ..estimate(1.9, 2.1) };
        // A directory's files may hold anything.
        let ours = estimate(0.1, 0.2);
        for (published, ours) in [(&[2.0][..], Some(&alone)), (&[2.0], None), (&[], Some(&ours))] {
            for is_share in [false, true] {
                assert_eq!(Agreement::of(published, 0.25, ours, is_share), Agreement::NoFigure);
            }
        }
    }

    #[test]
    fn two_published_figures_are_one_and_a_share_has_no_direction() {
        for (published, low, high, expected) in [
            (&[1.44, 1.8][..], 1.2, 2.2, Agreement::Agrees),
            (&[1.44, 1.8], 2.3, 2.5, Agreement::Larger),
            (&[1.44, 1.8], 1.05, 1.1, Agreement::Smaller),
            (&[0.2], 0.17, 0.24, Agreement::Agrees),
            (&[0.2], 0.3, 0.9, Agreement::LargerShare),
            (&[0.2], 0.001, 0.1, Agreement::SmallerShare),
            (&[0.2], 0.0, 0.22, Agreement::TooWideToTell { blocks: None }),
        ] {
            let found = Agreement::of(published, 0.25, Some(&estimate(low, high)), published.len() == 1);
            assert_eq!(found, expected, "{low} to {high}");
        }
    }
}
