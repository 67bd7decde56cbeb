//! What a report says in sentences: only differences that are shown, with their intervals, corrected for how many were
//! looked at.
//!
//! The largest of many ratios is large by luck as well. So a difference is told only if its own 95 % interval excludes 1
//! *and* it withstands Holm's correction over all ratios of the experiment. That correction asks for p-values far below
//! what a rank test of seven blocks can have at all (1/64), so here they are Student's, of the logarithms.

use std::collections::BTreeMap;

use statrs::distribution::{ContinuousCDF as _, StudentsT};

use crate::analysis::statistics::{Estimate, Interval, Verdict};
use crate::analysis::summary::{Comparison, Row, Summary};
use crate::experiment::outline::OutlineComparison;
use crate::experiment::place::Role;
use crate::text::quantity::significant;

/// Chance of telling any difference that is not there.
const LEVEL: f64 = 0.05;

/// The sentences.
pub(crate) fn findings(summary: &Summary) -> Vec<String> {
    let shown = shown(&summary.comparisons);
    let of_comparisons = summary.outline.comparisons.iter().map(|asked| {
        let of_it = |(comparison, _): &(&Comparison, bool)| comparison.name == asked.name;
        sentence(summary, asked, &shown.iter().copied().filter(of_it).collect::<Vec<_>>())
    });
    of_comparisons.flatten().chain(most_efficient(summary)).chain(control(summary)).collect()
}

/// Each comparison, and whether it shows a difference that withstands the correction.
fn shown(comparisons: &[Comparison]) -> Vec<(&Comparison, bool)> {
    let mut order: Vec<(usize, f64)> = comparisons
        .iter()
        .enumerate()
        .filter_map(|(i, comparison)| Some((i, p_value(&comparison.per_block)?)))
        .collect();
    order.sort_by(|a, b| a.1.total_cmp(&b.1));
    let looked_at = order.len();
    let mut withstands = vec![false; comparisons.len()];
    for (rank, (i, p)) in order.into_iter().enumerate() {
        if p > LEVEL / (looked_at - rank) as f64 {
            break;
        }
        withstands[i] = true;
    }
    let excludes_1 =
        |comparison: &Comparison| matches!(comparison.verdict, Verdict::Faster | Verdict::Slower);
    comparisons.iter().zip(withstands).map(|(it, withstands)| (it, withstands && excludes_1(it))).collect()
}

/// Two-sided p-value of ratios whose centre is 1, by Student's t of their logarithms.
fn p_value(ratios: &[f64]) -> Option<f64> {
    let n = ratios.len() as f64;
    let logs: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
    let mean = logs.iter().sum::<f64>() / n;
    let variance = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / (n - 1.0);
    let t = mean / (variance / n).sqrt();
    let distribution = StudentsT::new(0.0, 1.0, n - 1.0).ok()?;
    t.is_finite().then(|| 2.0 * distribution.sf(t.abs()))
}

/// The largest difference that is shown in each direction, or that none is.
fn sentence(summary: &Summary, asked: &OutlineComparison, of_it: &[(&Comparison, bool)]) -> Option<String> {
    if of_it.is_empty() {
        return None;
    }
    let log =
        |comparison: &Comparison| comparison.ratio.as_ref().map_or(0.0, |ratio| ratio.hodges_lehmann.ln());
    let shown = || of_it.iter().filter(|(_, shown)| *shown).map(|(comparison, _)| *comparison);
    let told = shown().count();
    if told == 0 {
        return Some(format!("{}: no difference is shown at any of {} settings.", asked.name, of_it.len()));
    }
    let best = shown().max_by(|a, b| log(a).total_cmp(&log(b))).filter(|it| log(it) > 0.0);
    let worst = shown().min_by(|a, b| log(a).total_cmp(&log(b))).filter(|it| log(it) < 0.0);
    let (better_word, worse_word) = asked.of.words();
    let told_of = |word: &str, it: Option<&Comparison>| {
        let it = it?;
        let ratio = it.ratio.as_ref()?.as_ratio();
        Some(format!("{word} by up to {ratio} at {}", setting_name(summary, &it.setting)))
    };
    let parts: Vec<String> =
        [told_of(better_word, best), told_of(worse_word, worst)].into_iter().flatten().collect();
    let extent = if of_it.len() == 1 {
        String::new()
    } else {
        format!(" (a difference is shown at {told} of {} settings)", of_it.len())
    };
    Some(format!("{}: {}{extent}.", asked.name, parts.join(", ")))
}

/// The arm nearest to the ideal at the last setting, and those that cannot be told from it.
fn most_efficient(summary: &Summary) -> Option<String> {
    let setting = &summary.rows.last()?.setting;
    let rows = summary.rows.iter().filter(|row| row.role == Role::Arm && row.setting == *setting);
    let mut known: Vec<(&Row, &Estimate, Interval)> = rows
        .filter_map(|row| {
            let efficiency = row.efficiency.as_ref()?;
            Some((row, efficiency, efficiency.interval?))
        })
        .collect();
    known.sort_by(|a, b| b.1.hodges_lehmann.total_cmp(&a.1.hodges_lehmann));
    let ((best, efficiency, interval), rest) = known.split_first()?;
    if rest.is_empty() {
        return None;
    }
    let alike: Vec<&str> = rest
        .iter()
        .filter(|(.., other)| other.high >= interval.low)
        .map(|(row, ..)| row.arm.as_str())
        .collect();
    let besides = if alike.is_empty() {
        String::new()
    } else {
        format!("; by these intervals it cannot be told from {}", alike.join(", "))
    };
    Some(format!(
        "At {} the arm {} has the highest efficiency, {} of the ideal ({} to {}){besides}.",
        setting_name(summary, setting),
        best.arm,
        significant(efficiency.hodges_lehmann),
        significant(interval.low),
        significant(interval.high)
    ))
}

fn control(summary: &Summary) -> Option<String> {
    let control = summary.control.as_ref()?;
    let ratio = control.ratio.as_ref().map_or("no figure".into(), Estimate::as_ratio);
    Some(format!(
        "A/A pair, the same cell twice in every block: {ratio}, {}.",
        control.verdict.word(&control.of)
    ))
}

/// "ratio 8, slice 1ms".
pub(crate) fn setting_name(summary: &Summary, setting: &BTreeMap<String, String>) -> String {
    let axes = summary.outline.axes.iter();
    let parts: Vec<String> =
        axes.filter_map(|axis| Some(format!("{} {}", axis.key, setting.get(&axis.key)?))).collect();
    if parts.is_empty() { "the only setting".into() } else { parts.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::plan::Plan;
    use crate::measure::synthetic::{Shape, Sketch, World};

    const RATIOS: [&str; 12] = ["1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12"];

    fn plan() -> Plan {
        let sketch = Sketch::new().axis("ratio", &RATIOS).arm("a", "tas").arm("b", "ticket");
        sketch.compare("b/a", "b", "a").plan(7)
    }

    fn summary(plan: &Plan, seed: u64, slower_at_12: f64) -> Summary {
        let world = World::new(seed)
            .truth(move |config| {
                let is_slow = config.lock == "ticket" && config.vcpus == 12 * config.cpus.len() as u32;
                if is_slow { 1e5 * slower_at_12 } else { 1e5 }
            })
            .shape(Shape::LogNormal(0.05));
        Summary::new(&plan.outline, &world.records(plan))
    }

    /// Each takes an eighth of a second.
    const REPORTS: u64 = 64;

    #[test]
    fn among_many_that_do_not_differ_no_difference_is_told() {
        let plan = plan();
        let told = (0..REPORTS).filter(|seed| {
            let findings = findings(&summary(&plan, *seed, 1.0));
            !findings[0].contains("no difference is shown at any of 12 settings")
        });
        // One in twenty or fewer is promised; told by the largest ratio alone it would be all of them.
        let told = told.count() as u64;
        assert!(told <= REPORTS / 8, "{told} of {REPORTS} reports tell of a difference that is not there");
    }

    #[test]
    fn a_real_difference_is_told_with_its_interval_and_where() {
        let findings = findings(&summary(&plan(), 1, 0.5));
        assert!(findings[0].starts_with("b/a: slower by up to 0."), "{findings:?}");
        assert!(findings[0].contains(" to ") && findings[0].contains("at ratio 12"), "{findings:?}");
        assert!(findings[0].contains("at 1 of 12 settings"), "{findings:?}");
    }

    #[test]
    fn the_most_efficient_arm_is_told_with_those_that_it_cannot_be_told_from() {
        let findings = findings(&summary(&plan(), 1, 1.0));
        let sentence = findings.iter().find(|sentence| sentence.contains("highest efficiency")).unwrap();
        assert!(sentence.contains("cannot be told from") && sentence.contains(" to "), "{sentence}");
        let findings = super::findings(&summary(&plan(), 1, 0.5));
        let sentence = findings.iter().find(|sentence| sentence.contains("highest efficiency")).unwrap();
        assert!(sentence.contains("arm a has") && !sentence.contains("cannot be told"), "{sentence}");
    }

    #[test]
    fn p_values_are_those_of_another_implementation() {
        // scipy.stats.ttest_1samp(numpy.log(x), 0)
        let p = p_value(&[1.1, 1.2, 0.95, 1.3, 1.05]).unwrap();
        assert!((p - 0.117_519_5).abs() < 1e-6, "{p}");
    }
}
