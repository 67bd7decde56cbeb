//! Figures that others published on the subject of an experiment. Each names its source, which of our figures it is compared with, and
//! what must hold.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A published figure.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Published {
    /// Name of the row.
    pub(crate) name: String,
    /// The publication: author, subject, list and month.
    pub(crate) source: String,
    /// The comparison that was made there, and its measure.
    pub(crate) figure: String,
    /// The published ratio, above 1 where it is better, or the share; one for each run that was published.
    pub(crate) value: Vec<f64>,
    /// Our whole interval must lie within this share of it.
    pub(crate) within: f64,
    /// The machine that it was measured on.
    pub(crate) machine: String,
    /// CPUs of that machine that the guests shared; null if not published.
    pub(crate) pcpus: Option<u32>,
    /// vCPUs, or threads, for each of them; null if not published.
    pub(crate) ratio: Option<f64>,
    /// pCPUs without which there is nothing to compare.
    pub(crate) needs_pcpus: u32,
    /// Our figure.
    pub(crate) ours: Ours,
    /// The comparison in which the same thing must make no difference; null: the experiment's A/A pair.
    pub(crate) control: Option<Nothing>,
    /// A letter each for the lock, the arrangement of guests and the work: L, A and W if it is as it was there, - if not, ? if that was
    /// not published.
    pub(crate) like: String,
    /// Why the two figures are alike or not.
    pub(crate) why: String,
    /// The page that has more.
    pub(crate) page: String,
}

/// Values of axes that pick a point of the grid.
pub(crate) type At = BTreeMap<String, String>;

/// Our figure.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Ours {
    /// A comparison that the experiment makes.
    Ratio {
        /// Its name.
        compare: String,
        /// The point of the grid.
        at: At,
    },
    /// How many times as long as at another point an arm takes, in the same block.
    Slowdown {
        /// The arm.
        arm: String,
        /// The point of the grid.
        at: At,
        /// The other point.
        over: At,
    },
    /// A share.
    Share {
        /// The whole that it is a share of: `lock-cpu`, `waiting`, or an event of locks.
        share: String,
        /// The event that counts the occasions for an event.
        among: Option<String>,
        /// The arm.
        arm: String,
        /// The point of the grid.
        at: At,
    },
}

/// A control: a comparison that should be near 1.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Nothing {
    /// The comparison.
    pub(crate) compare: String,
    /// The point of the grid.
    pub(crate) at: At,
    /// The published figure, if there is one.
    pub(crate) value: Option<f64>,
}
