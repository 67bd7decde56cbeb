//! A cell that both sides have: the runs of it, their ratio, and the chance of its loss. Cells with runs that failed on either side.

use std::collections::BTreeMap;

use super::Side;
use crate::analysis::rate::{self, Rate, estimate_ratio};
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
    /// Rates of B, and of A: in pairs, or of two groups.
    above: Vec<Rate>,
    below: Vec<Rate>,
    are_paired: bool,
    pub(super) better: Option<Better>,
    /// Whether each pair, or each run of either side, is valid.
    validity: Vec<(&'static str, Vec<bool>)>,
}

impl Cell {
    /// Of runs that are paired within blocks, and on one host, or of two groups.
    pub(super) fn of(above: &[Run], below: &[Run], asked: Asked<'_>, are_paired: bool) -> Self {
        let (validity, above, below) = if are_paired { pairs(above, below) } else { groups(above, below) };
        let (estimate, per_block) = if are_paired {
            let ratios = ratios(&above, &below);
            (rate::estimate(&ratios), rate::values(&ratios))
        } else {
            (estimate_ratio(&above, &below), vec![])
        };
        let shown = comparison("B/A", asked.setting, [asked.arm, asked.baseline], estimate, per_block);
        let is_lost = validity.iter().any(|(_, valid)| trust::is_lost(valid));
        let verdict = if is_lost { Verdict::NotValid } else { shown.verdict };
        let shown = Comparison { of: asked.of.clone(), verdict, ..shown };
        Self { shown, above, below, are_paired, better: asked.better, validity }
    }

    /// The comparison, and the p-value of its difference, as a summary corrects them.
    pub(super) fn with_p_value(&self) -> (Comparison, Option<f64>) {
        let Self { above, below, .. } = self;
        let p_value = match self.are_paired {
            true => rate::p_of_difference(&ratios(above, below)),
            false => rate::p_of_two_groups(above, below),
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

    /// The chance of a loss as great as `limit` says, and the least that it could have been with as many runs; none of too few runs. A
    /// lock that collapsed has no figure and yet a chance: half a section is more than its runs can have done, and ranks need no more.
    /// Where more than half of the baseline's runs completed no section it is unknown what can be lost.
    pub(super) fn p_values(&self, limit: f64) -> (Option<f64>, Option<f64>) {
        let is_told = rate::are_seen(&self.below) && self.lost_validity().is_none();
        let (above, below) = match self.better.filter(|_| is_told) {
            Some(Better::More) => (&self.above, &self.below),
            Some(Better::Less) => (&self.below, &self.above),
            None => return (None, None),
        };
        let (p_value, least) = if self.are_paired {
            let ratios = rate::values(&ratios(above, below));
            (significance::p_of_pairs(&ratios, limit), significance::least_p_of_pairs(ratios.len()))
        } else {
            let (above, below) = (rate::values(above), rate::values(below));
            let least = significance::least_p_of_groups(above.len(), below.len());
            (significance::p_of_groups(&above, &below, limit), least)
        };
        (p_value, p_value.and(least))
    }
}

/// Whether the runs are valid, by what they are, and the rates of either side.
type Rates = (Vec<(&'static str, Vec<bool>)>, Vec<Rate>, Vec<Rate>);

fn groups(above: &[Run], below: &[Run]) -> Rates {
    let validity = |runs: &[Run]| runs.iter().map(|run| run.is_valid).collect();
    let rates = |runs: &[Run]| runs.iter().filter_map(|run| run.rate).collect();
    (vec![("runs of A", validity(below)), ("runs of B", validity(above))], rates(above), rates(below))
}

fn pairs(above: &[Run], below: &[Run]) -> Rates {
    let below: BTreeMap<&Pass, &Run> = below.iter().map(|run| (&run.pass, run)).collect();
    let pair = |run: &Run| {
        let other = below.get(&run.pass)?;
        Some((run.is_valid && other.is_valid, run.rate.zip(other.rate)))
    };
    let (validity, rates): (Vec<bool>, Vec<Option<(Rate, Rate)>>) = above.iter().filter_map(pair).unzip();
    let (above, below) = rates.into_iter().flatten().unzip();
    (vec![("pairs", validity)], above, below)
}

fn ratios(above: &[Rate], below: &[Rate]) -> Vec<Rate> {
    above.iter().zip(below).map(|(above, below)| above.over(*below)).collect()
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
