//! Two directories, or two arms, cell by cell: the table of `haltkick compare`.

use std::fmt::Write as _;

use serde::Serialize;

use super::{Field, Line, layout, told};
use crate::analysis::significance;
use crate::analysis::statistics::Verdict;
use crate::analysis::summary::{Comparison, Setting, words};
use crate::show::cases::Cases;
use crate::text::exit::Exit;
use crate::text::quantity::significant;

/// Output of `compare --format json`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Compared {
    /// "haltkick.comparison".
    pub(crate) schema: String,
    /// 1.
    pub(crate) schema_version: u32,
    /// A slow-down beyond this share is a regression.
    pub(crate) threshold: f64,
    /// Differences between the two sides, where `--anyway` was given; else empty.
    pub(crate) differences: Vec<String>,
    /// Throughput of B over that of A, or of kernels the figures by which the experiment compares them.
    pub(crate) cells: Vec<Comparison>,
    /// For each cell the chance of a loss as great as this, or greater, if the true one were the threshold; null
    /// where the baseline has no figure, for figures without a known better direction, and for invalid cells.
    pub(crate) p_values: Vec<Option<f64>>,
    /// Cells of which it is known whether more or less is better.
    #[serde(skip)]
    pub(crate) told: usize,
    /// Whether there are enough runs for any cell to be called a regression, however much it had lost.
    pub(crate) can_tell: bool,
    /// Indices of the cells that regressed: those whose p-values Holm's procedure rejects, at 2.5 % for all together.
    pub(crate) regressions: Vec<usize>,
    /// Indices of the invalid cells, which are neither regressions nor an all-clear: more than 29 % of their pairs, or of the
    /// runs of either side, are invalid.
    pub(crate) invalid: Vec<usize>,
    /// Indices of the valid cells that have no p-value although the better direction is known, which are no all-clear either: half
    /// of the baseline's runs or more completed no section, or there is only one pair.
    pub(crate) untold: Vec<usize>,
    /// Cells of either side with runs that failed, a sentence for each: nothing is known of these runs, so there is no all-clear.
    pub(crate) left_out: Vec<String>,
    /// These cells, and where they belong.
    #[serde(skip)]
    pub(crate) failed: Vec<LeftOut>,
    /// Whether the runs are compared within blocks.
    #[serde(skip)]
    pub(crate) are_paired: bool,
}

impl Compared {
    pub(crate) fn exit(&self) -> Exit {
        match () {
            () if !self.regressions.is_empty() => Exit::Regression,
            // The first is as good as any: the lines name them all.
            () if !self.failed.is_empty() => self.failed[0].exit,
            () if self.can_tell && self.invalid.is_empty() && self.untold.is_empty() => Exit::Done,
            // No all-clear: there could not have been an alarm, or not in every cell.
            () => Exit::Untrusted,
        }
    }
}

/// A cell with failed runs on one side.
#[derive(Debug)]
pub(crate) struct LeftOut {
    pub(crate) is_of_b: bool,
    pub(crate) cell_id: String,
    /// The failure in a sentence.
    pub(crate) sentence: String,
    /// Setting and arm, if any run of it is recorded on either side.
    pub(crate) place: Option<(Setting, String)>,
    /// The end of a comparison that lacks it.
    pub(crate) exit: Exit,
}

impl LeftOut {
    pub(crate) fn is_of(&self, cell: &Comparison) -> bool {
        self.place.as_ref().is_some_and(|(setting, arm)| {
            cell.setting == *setting && [&cell.arm, &cell.baseline].contains(&arm)
        })
    }

    /// Notes the test that it is: the candidate's failure is one, the baseline's leaves nothing to compare with.
    pub(crate) fn note(&self, cases: &mut Cases, name: &str) {
        match self.is_of_b {
            true => cases.failed(name, &self.sentence),
            false => cases.skipped(name, &self.sentence),
        }
    }
}

/// A line for each cell, then what all together say.
pub(crate) fn comparisons(found: &Compared) -> String {
    let (header, lines) = cells(found.cells.iter());
    let mut text = layout(&header, &lines, 1);
    conclusions(found).iter().for_each(|line| _ = writeln!(text, "{line}"));
    text
}

/// The table of these comparisons: its header, and a line for each. The second field is the arm.
pub(crate) fn cells<'a>(cells: impl Iterator<Item = &'a Comparison> + Clone) -> (Vec<String>, Vec<Line>) {
    let has_figures = cells.clone().any(|cell| cell.of.figure().is_some());
    let figure = has_figures.then_some("figure");
    let header = ["setting", "arm (B)", "baseline (A)"].into_iter().chain(figure).chain(["B/A", "verdict"]);
    let line = |cell: &Comparison| {
        let baseline = if cell.baseline == cell.arm { "same" } else { cell.baseline.as_str() };
        let measure = has_figures.then(|| String::from(cell.of.clone()));
        let names = [words("", &cell.setting), cell.arm.clone(), baseline.into()];
        names.into_iter().chain(measure).map(Field::new).chain(told(cell)).collect()
    };
    (header.map(String::from).collect(), cells.map(line).collect())
}

fn conclusions(found: &Compared) -> Vec<String> {
    let cells = &found.cells;
    let (count, valid) = (cells.len(), cells.len() - found.invalid.len());
    let known = valid - found.untold.len();
    let mut lines = found.left_out.clone();
    let is_taken_back = |cell: &Comparison| {
        let own = cell.ratio.as_ref().is_some_and(|ratio| ratio.verdict().is_difference());
        own && cell.verdict == Verdict::NoDifferenceShown
    };
    if cells.iter().any(is_taken_back) {
        lines.push("an interval that excludes 1 shows no difference if Holm's correction over the settings takes it back".into());
    }
    if found.told < count {
        lines.push(format!(
            "{} of {count} cells are no regressions, whatever they are: only of rates (a unit that ends in /s) and of times (ns, \
             us, ms, s) it is known whether more is better",
            count - found.told
        ));
    }
    if valid < count {
        lines.push(format!("invalid cells, of which nothing is known: {} of {count}", count - valid));
    }
    if known < valid {
        lines.push(format!(
            "cells with one pair, or whose baseline completed no section in half of its runs or more: {} of {count}; a longer \
             --window shows more",
            valid - known
        ));
    }
    let percent = significant(found.threshold * 100.0);
    match found.regressions.len() {
        0 if found.told == 0 || known == 0 => {
            lines.push("nothing was compared: no cell could be told from a loss".into())
        }
        0 if !found.can_tell => lines.push(too_few_runs(found)),
        0 if !found.left_out.is_empty() => {
            lines.push(format!("no regression beyond {percent} % in the runs that there are; others failed"));
        }
        0 if known < count => lines.push(format!("no regression beyond {percent} % in the other {known}")),
        0 => lines.push(format!("no regression beyond {percent} %")),
        lost => lines.push(format!("{lost} of {valid} cells lost more than {percent} %")),
    }
    lines
}

fn too_few_runs(found: &Compared) -> String {
    let limit = 1.0 - found.threshold;
    let valid = || (0..).zip(&found.cells).filter(|(i, _)| !found.invalid.contains(i)).map(|(_, cell)| cell);
    let below = |cell: &&Comparison| {
        let interval = cell.ratio.as_ref().and_then(|ratio| ratio.interval.as_ref());
        interval.is_some_and(|interval| interval.high < limit)
    };
    format!(
        "too few runs to say that nothing regressed: of {} cells {} have intervals below {}, and none of them can be called \
         sure with fewer than {} blocks",
        valid().count(),
        valid().filter(below).count(),
        significant(limit),
        significance::runs_to_tell(valid().count(), found.are_paired)
    )
}
