//! Two directories, or two arms, cell by cell: the table of `haltkick compare`.

use std::fmt::Write as _;

use super::{FAINT, Field, layout, of_comparison, setting_words, verdict_style};
use crate::analysis::significance;
use crate::analysis::statistics::Verdict;
use crate::analysis::summary::Comparison;
use crate::text::quantity::significant;

/// Findings of all cells together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found<'a> {
    /// Whether there are enough runs for any cell to be called a regression, however much it had lost.
    pub(crate) can_tell: bool,
    /// Cells of which it is known whether more or less is better.
    pub(crate) told: usize,
    /// Indices of the cells that regressed.
    pub(crate) regressions: &'a [usize],
    /// Indices of the invalid cells.
    pub(crate) invalid: &'a [usize],
    /// Indices of the valid cells without a p-value.
    pub(crate) untold: &'a [usize],
    /// Whether the runs are compared within blocks.
    pub(crate) are_paired: bool,
    /// Failed runs of either side, a sentence for each cell.
    pub(crate) left_out: &'a [String],
}

/// A line for each cell, then what all together say.
pub(crate) fn comparisons(cells: &[Comparison], found: Found<'_>, threshold: f64) -> String {
    let has_figures = cells.iter().any(|cell| cell.of.figure().is_some());
    let figure = has_figures.then_some("figure");
    let header = ["setting", "arm (B)", "baseline (A)"].into_iter().chain(figure).chain(["B/A", "verdict"]);
    let header: Vec<String> = header.map(String::from).collect();
    let line = |(i, cell)| line(cell, found.invalid.contains(&i), has_figures);
    let lines: Vec<Vec<Field>> = cells.iter().enumerate().map(line).collect();
    let mut text = layout(&header, &lines, 1);
    conclusions(cells, found, threshold).iter().for_each(|line| _ = writeln!(text, "{line}"));
    text
}

/// The figure of an invalid cell is there to be seen, without a verdict.
fn line(cell: &Comparison, is_invalid: bool, has_figures: bool) -> Vec<Field> {
    let baseline = if cell.baseline == cell.arm { "same" } else { cell.baseline.as_str() };
    let mut fields =
        vec![Field::new(setting_words(&cell.setting)), Field::new(cell.arm.as_str()), Field::new(baseline)];
    let measure = || cell.of.figure().map_or_else(|| String::from(cell.of.clone()), String::from);
    fields.extend(has_figures.then(|| Field::new(measure())));
    let faint = |text: String| Field { text, style: FAINT };
    fields.extend(match is_invalid {
        true => [faint(cell.as_ratio()), faint("invalid".into())],
        false => {
            let verdict = cell.verdict.word(&cell.of).into();
            [of_comparison(cell), Field { text: verdict, style: verdict_style(cell.verdict) }]
        }
    });
    fields
}

fn conclusions(cells: &[Comparison], found: Found<'_>, threshold: f64) -> Vec<String> {
    let (count, valid) = (cells.len(), cells.len() - found.invalid.len());
    let known = valid - found.untold.len();
    let mut lines = found.left_out.to_vec();
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
    let percent = significant(threshold * 100.0);
    match found.regressions.len() {
        0 if found.told == 0 || known == 0 => {
            lines.push("nothing was compared: no cell could be told from a loss".into())
        }
        0 if !found.can_tell => lines.push(too_few_runs(cells, found, threshold)),
        0 if !found.left_out.is_empty() => {
            lines.push(format!("no regression beyond {percent} % in the runs that there are; others failed"));
        }
        0 if known < count => lines.push(format!("no regression beyond {percent} % in the other {known}")),
        0 => lines.push(format!("no regression beyond {percent} %")),
        lost => lines.push(format!("{lost} of {valid} cells lost more than {percent} %")),
    }
    lines
}

fn too_few_runs(cells: &[Comparison], found: Found<'_>, threshold: f64) -> String {
    let valid = || (0..).zip(cells).filter(|(i, _)| !found.invalid.contains(i)).map(|(_, cell)| cell);
    let below = |cell: &&Comparison| {
        let interval = cell.ratio.as_ref().and_then(|ratio| ratio.interval.as_ref());
        interval.is_some_and(|interval| interval.high < 1.0 - threshold)
    };
    format!(
        "too few runs to say that nothing regressed: of {} cells {} have intervals below {}, and none of them can be called \
         sure with fewer than {} blocks",
        valid().count(),
        valid().filter(below).count(),
        significant(1.0 - threshold),
        significance::runs_to_tell(valid().count(), found.are_paired)
    )
}
