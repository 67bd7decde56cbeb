//! A cell that both sides have: the runs of it, their ratio, and the chance of its loss.

use std::collections::BTreeMap;

use crate::analysis::comparable::Better;
use crate::analysis::holm;
use crate::analysis::rate::{Rate, estimate, estimate_ratio};
use crate::analysis::summary::{Comparison, comparison, comparison_of};
use crate::experiment::measure::Measure;

pub(super) type Setting = BTreeMap<String, String>;
/// Block and host.
type Pass = (u32, String);
/// When and where, and how much it came to.
pub(super) type Run = (Pass, Rate);

/// A cell of both sides.
pub(super) struct Cell {
    pub(super) shown: Comparison,
    values: Values,
    pub(super) better: Option<Better>,
}

impl Cell {
    /// The chance of its loss, and the least that it could have been with as many runs, for a true loss as `limit` says.
    pub(super) fn p_values(&self, limit: f64) -> (Option<f64>, Option<f64>) {
        let Some(better) = self.better else { return (None, None) };
        let values = self.values.of_better(better);
        (values.p_value(limit), values.least_p_value(limit))
    }
}

/// What a cell's comparison is made of.
#[derive(Clone)]
pub(super) enum Values {
    /// Ratios of runs of one block.
    Pairs(Vec<Rate>),
    /// Runs of B and of A.
    Groups(Vec<Rate>, Vec<Rate>),
}

impl Values {
    pub(super) fn of_groups(above: &[Run], below: &[Run]) -> Self {
        let rates = |runs: &[Run]| runs.iter().map(|(_, rate)| *rate).collect();
        Self::Groups(rates(above), rates(below))
    }

    /// Within blocks, and on one host.
    pub(super) fn of_pairs(above: &[Run], below: &[Run]) -> Self {
        let below: BTreeMap<&Pass, Rate> = below.iter().map(|(pass, rate)| (pass, *rate)).collect();
        Self::Pairs(above.iter().filter_map(|(pass, rate)| Some(rate.over(*below.get(pass)?))).collect())
    }

    pub(super) fn cell(
        self,
        of: (&Measure, Option<Better>),
        setting: &Setting,
        arm: &str,
        baseline: &str,
    ) -> Cell {
        let shown = match &self {
            Self::Pairs(ratios) => comparison("B/A", setting, arm, baseline, ratios),
            Self::Groups(above, below) => {
                comparison_of("B/A", setting, arm, baseline, estimate_ratio(above, below))
            }
        };
        Cell { shown: Comparison { of: of.0.clone(), ..shown }, values: self, better: of.1 }
    }

    /// As if more of it were better.
    fn of_better(&self, better: Better) -> Self {
        let turned = |rates: &[Rate]| -> Vec<Rate> {
            rates.iter().map(|rate| Rate { per_second: 1.0 / rate.per_second, ..*rate }).collect()
        };
        match (better, self) {
            (Better::More, it) => it.clone(),
            (Better::Less, Self::Pairs(ratios)) => Self::Pairs(turned(ratios)),
            (Better::Less, Self::Groups(above, below)) => Self::Groups(turned(above), turned(below)),
        }
    }

    /// The least that [`Self::p_value`] could have been with as many runs.
    fn least_p_value(&self, limit: f64) -> Option<f64> {
        self.p_value(limit)?;
        match self {
            Self::Pairs(ratios) => holm::least_p_of_pairs(ratios.len()),
            Self::Groups(above, below) => holm::least_p_of_groups(above.len(), below.len()),
        }
    }

    /// Of a loss as great as `limit` says; none where there is no figure either.
    fn p_value(&self, limit: f64) -> Option<f64> {
        let values = |rates: &[Rate]| rates.iter().map(|rate| rate.per_second).collect::<Vec<_>>();
        match self {
            Self::Pairs(ratios) => {
                estimate(ratios)?;
                holm::p_of_pairs(&values(ratios), limit)
            }
            Self::Groups(above, below) => {
                estimate_ratio(above, below)?;
                holm::p_of_groups(&values(above), &values(below), limit)
            }
        }
    }
}
