//! Ratios of arms within blocks.

use super::placed::{Pair, Placed};
use super::{Comparison, Setting};
use crate::analysis::rate::{self, Rate};
use crate::analysis::recorded::Recorded;
use crate::analysis::significance::{AtSetting, withstand};
use crate::analysis::statistics::Estimate;
use crate::analysis::trust;
use crate::analysis::verdict::Verdict;
use crate::experiment::measure::Measure;
use crate::experiment::outline::{Outline, OutlineComparison};

/// All comparisons at all settings, with words that are corrected for the number of settings.
pub(super) fn comparisons<R: Recorded>(
    outline: &Outline,
    settings: &[Setting],
    placed: &Placed<'_, R>,
) -> Vec<Comparison> {
    let at = |asked: &OutlineComparison, setting: &Setting| {
        let pairs = placed.pairs(&asked.of, setting, (&asked.arm, false), (&asked.baseline, false));
        is_measured(&pairs).then(|| comparison_of_pairs(asked, setting, &pairs))
    };
    let at_all = |asked| corrected(settings.iter().filter_map(|it| at(asked, it)).collect());
    outline.comparisons.iter().flat_map(at_all).collect()
}

/// One comparison at each of its settings, each with the least half of its interval: the words of those are taken back that do
/// not withstand the correction.
fn corrected(found: Vec<(Comparison, f64)>) -> Vec<Comparison> {
    let at_setting = |(it, least_half): &(Comparison, f64)| {
        let (verdict, ratios, least_half) = (it.verdict, it.per_block.clone(), *least_half);
        AtSetting { verdict, ratios, least_half }
    };
    let withstand = withstand(&found.iter().map(at_setting).collect::<Vec<_>>());
    let word = |((it, _), withstands): ((Comparison, f64), bool)| match withstands {
        false if it.verdict.is_difference() => Comparison { verdict: Verdict::NoDifferenceShown, ..it },
        _ => it,
    };
    found.into_iter().zip(withstand).map(word).collect()
}

/// A comparison within blocks, of runs that may be invalid, and the least half of its interval.
fn comparison_of_pairs(asked: &OutlineComparison, setting: &Setting, pairs: &[Pair]) -> (Comparison, f64) {
    let ratios: Vec<Rate> = pairs.iter().filter_map(|pair| pair.ratio).collect();
    let invalid_pairs = pairs.iter().filter(|pair| !pair.is_valid).count();
    let found = comparison(&asked.name, setting, &asked.arm, &asked.baseline, &ratios);
    let is_lost = trust::are_too_many(invalid_pairs, pairs.len());
    let verdict = if is_lost { Verdict::NotValid } else { found.verdict };
    let found = Comparison { of: asked.of.clone(), invalid_pairs: Some(invalid_pairs), verdict, ..found };
    (found, rate::least_half_width(&ratios))
}

/// A comparison within blocks.
pub(crate) fn comparison(
    name: &str,
    setting: &Setting,
    arm: &str,
    baseline: &str,
    ratios: &[Rate],
) -> Comparison {
    let ratio = rate::estimate(ratios);
    let per_block = ratios.iter().map(|ratio| ratio.per_second).collect();
    Comparison { per_block, ..comparison_of(name, setting, arm, baseline, ratio) }
}

/// A comparison that was not made within blocks.
pub(crate) fn comparison_of(
    name: &str,
    setting: &Setting,
    arm: &str,
    baseline: &str,
    ratio: Option<Estimate>,
) -> Comparison {
    Comparison {
        name: name.into(),
        setting: setting.clone(),
        of: Measure::Throughput,
        arm: arm.into(),
        baseline: baseline.into(),
        verdict: ratio.as_ref().map_or(Verdict::TooFewBlocks, Estimate::verdict),
        ratio,
        invalid_pairs: None,
        sensitivity: None,
        per_block: vec![],
    }
}

/// The A/A pair.
pub(super) fn control<R: Recorded>(outline: &Outline, placed: &Placed<'_, R>) -> Option<Comparison> {
    let control = outline.control.as_ref()?;
    // Kernels have no throughput: the headline says what they are compared by.
    let headline = outline.comparisons.first().map(|it| &it.of).filter(|of| of.figure().is_some());
    let of = headline.cloned().unwrap_or_default();
    let pairs = placed.pairs(&of, &control.setting, (&control.arm, true), (&control.arm, false));
    let arm = || control.arm.clone();
    let asked = OutlineComparison { of, name: "A/A".into(), arm: arm(), baseline: arm() };
    is_measured(&pairs).then(|| comparison_of_pairs(&asked, &control.setting, &pairs).0)
}

/// Whether any pair has a ratio.
fn is_measured(pairs: &[Pair]) -> bool {
    pairs.iter().any(|pair| pair.ratio.is_some())
}
