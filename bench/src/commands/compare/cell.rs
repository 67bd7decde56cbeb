//! A cell that both sides have: the runs of it, their ratio, and the chance of its loss. Cells with runs that failed on either side.

use std::collections::BTreeMap;

use super::Side;
use crate::analysis::rate::{self, Rate, are_seen, estimate_ratio};
use crate::analysis::significance;
use crate::analysis::statistics::Verdict;
use crate::analysis::summary::{Comparison, comparison, trust, words};
use crate::experiment::measure::Measure;
use crate::record::figures::Better;
use crate::record::place::slug;
use crate::show::table::LeftOut;
use crate::text::exit::Exit;

pub(super) type Setting = BTreeMap<String, String>;
/// Block and host.
type Pass = (u32, String);

/// When and where, how much it came to, and whether to believe it.
pub(super) struct Run {
    pub(super) pass: Pass,
    pub(super) rate: Option<Rate>,
    /// Whether nothing spoiled it, and it has a rate.
    pub(super) is_valid: bool,
}

/// The measure, the better direction of it, and the two arms that are compared at a setting.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) of: &'a Measure,
    pub(super) better: Option<Better>,
    pub(super) setting: &'a Setting,
    pub(super) arm: &'a str,
    pub(super) baseline: &'a str,
}

/// A cell of both sides.
pub(super) struct Cell {
    pub(super) shown: Comparison,
    values: Values,
    /// Whether more than half of the baseline's runs completed a section: else it is unknown what can be lost.
    is_baseline_seen: bool,
    pub(super) better: Option<Better>,
    /// Whether each pair, or each run of either side, is valid.
    validity: Vec<(&'static str, Vec<bool>)>,
}

impl Cell {
    pub(super) fn of_groups(above: &[Run], below: &[Run], asked: Asked<'_>) -> Self {
        let rates = |runs: &[Run]| runs.iter().filter_map(|run| run.rate).collect::<Vec<_>>();
        let validity = |runs: &[Run]| runs.iter().map(|run| run.is_valid).collect::<Vec<_>>();
        let values = Values::Groups(rates(above), rates(below));
        let estimate = estimate_ratio(&rates(above), &rates(below));
        let shown = comparison("B/A", asked.setting, [asked.arm, asked.baseline], estimate, vec![]);
        let validity = vec![("runs of A", validity(below)), ("runs of B", validity(above))];
        Self::new(shown, asked, values, are_seen(&rates(below)), validity)
    }

    /// Within blocks, and on one host.
    pub(super) fn of_pairs(above: &[Run], below: &[Run], asked: Asked<'_>) -> Self {
        let below: BTreeMap<&Pass, &Run> = below.iter().map(|run| (&run.pass, run)).collect();
        let pair = |run: &Run| {
            let other = below.get(&run.pass)?;
            Some((run.rate.zip(other.rate), run.is_valid && other.is_valid))
        };
        let (rates, validity): (Vec<Option<(Rate, Rate)>>, Vec<bool>) = above.iter().filter_map(pair).unzip();
        let ratio = |(above, below): (Rate, Rate)| (above.over(below), below);
        let (ratios, baseline): (Vec<Rate>, Vec<Rate>) = rates.into_iter().flatten().map(ratio).unzip();
        let (estimate, per_block) = (rate::estimate(&ratios), rate::values(&ratios));
        let shown = comparison("B/A", asked.setting, [asked.arm, asked.baseline], estimate, per_block);
        let validity = vec![("pairs", validity)];
        Self::new(shown, asked, Values::Pairs(ratios), are_seen(&baseline), validity)
    }

    fn new(
        shown: Comparison,
        asked: Asked<'_>,
        values: Values,
        is_baseline_seen: bool,
        validity: Vec<(&'static str, Vec<bool>)>,
    ) -> Self {
        let is_lost = validity.iter().any(|(_, valid)| trust::is_lost(valid));
        let verdict = if is_lost { Verdict::NotValid } else { shown.verdict };
        let shown = Comparison { of: asked.of.clone(), verdict, ..shown };
        Self { shown, values, is_baseline_seen, better: asked.better, validity }
    }

    /// The comparison, and the p-value of its difference, as a summary corrects them.
    pub(super) fn with_p_value(&self) -> (Comparison, Option<f64>) {
        let p_value = match &self.values {
            Values::Pairs(ratios) => rate::p_of_difference(ratios),
            Values::Groups(above, below) => rate::p_of_two_groups(above, below),
        };
        (self.shown.clone(), p_value)
    }

    /// How many of its runs are invalid, and where it is, if the cell is invalid for that.
    pub(super) fn lost_validity(&self) -> Option<String> {
        let (what, valid) = self.validity.iter().find(|(_, valid)| trust::is_lost(valid))?;
        let spoiled = trust::spoiled(valid);
        let Comparison { arm, setting, .. } = &self.shown;
        Some(format!("{spoiled} of {} {what} of {arm}{}", valid.len(), words(" at ", setting)))
    }

    /// The chance of its loss, and the least that it could have been with as many runs, for a true loss as `limit` says. A lock
    /// that collapsed has no figure and yet a chance: half a section is more than its runs can have done, and ranks need no more.
    pub(super) fn p_values(&self, limit: f64) -> (Option<f64>, Option<f64>) {
        let is_told = self.is_baseline_seen && self.lost_validity().is_none();
        let Some(better) = self.better.filter(|_| is_told) else {
            return (None, None);
        };
        let values = self.values.of_better(better);
        (values.p_value(limit), values.least_p_value(limit))
    }
}

/// Values that a cell's comparison is made of.
#[derive(Clone)]
enum Values {
    /// Ratios of runs of one block.
    Pairs(Vec<Rate>),
    /// Runs of B and of A.
    Groups(Vec<Rate>, Vec<Rate>),
}

impl Values {
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
            Self::Pairs(ratios) => significance::least_p_of_pairs(ratios.len()),
            Self::Groups(above, below) => significance::least_p_of_groups(above.len(), below.len()),
        }
    }

    /// The p-value of a loss as great as `limit` says; none of too few runs.
    fn p_value(&self, limit: f64) -> Option<f64> {
        match self {
            Self::Pairs(ratios) => significance::p_of_pairs(&rate::values(ratios), limit),
            Self::Groups(above, below) => {
                significance::p_of_groups(&rate::values(above), &rate::values(below), limit)
            }
        }
    }
}

/// The cells with failed runs on either side, A and B: those of its arm, if a side is one arm.
pub(super) fn of_either(sides: [&Side; 2]) -> Vec<LeftOut> {
    let of_side = |(side, letter): (&Side, char)| {
        let exit = side.manifest.ending_of_failed().unwrap_or(Exit::NoProgress);
        let of_cell = |(cell_id, failure): (&str, String)| LeftOut {
            is_of_b: letter == 'B',
            cell_id: cell_id.to_owned(),
            sentence: format!("{letter}: {failure}"),
            place: place_of(&sides, cell_id),
            exit,
        };
        let failed = side.manifest.failed_cells().into_iter();
        failed.filter(|(cell_id, _)| is_of_arm(side, cell_id)).map(of_cell).collect::<Vec<_>>()
    };
    sides.into_iter().zip(['A', 'B']).flat_map(of_side).collect()
}

/// Whether a cell is one of the arm that is compared, whose name its id begins with.
fn is_of_arm(side: &Side, cell_id: &str) -> bool {
    let Some(arm) = side.arm.as_deref().map(slug) else { return true };
    cell_id.strip_prefix(&arm).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
}

fn place_of(sides: &[&Side; 2], cell_id: &str) -> Option<(Setting, String)> {
    let mut placed = sides.iter().flat_map(|side| &side.records).filter_map(|record| record.place.as_ref());
    let place = placed.find(|place| place.cell_id == cell_id)?;
    Some((place.setting.clone(), place.arm.clone()))
}
