//! One correction for how many settings a comparison was looked at: marks of tables and findings of reports both follow it.
//!
//! The largest of many ratios is large by luck as well. So a difference is called one only if its own 95 % interval excludes 1
//! *and* it withstands Holm's correction over all settings of its comparison. With one setting there is nothing to correct. With
//! several, the correction asks for p-values far below what a rank test of seven blocks can have at all (1/64), so here they
//! are Student's, of the logarithms.

use statrs::distribution::{ContinuousCDF as _, StudentsT};

use crate::analysis::statistics::Verdict;

/// Chance that any difference of one comparison is called one and is none.
const LEVEL: f64 = 0.05;

/// Whether the word says that there is a difference.
pub(crate) fn is_difference(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Faster | Verdict::Slower)
}

/// One setting of a comparison.
pub(crate) struct AtSetting {
    /// The word by its own interval.
    pub(crate) verdict: Verdict,
    /// Ratios within blocks.
    pub(crate) ratios: Vec<f64>,
    /// The least half of its interval, on a logarithmic scale.
    pub(crate) least_half: f64,
}

/// Which settings of one comparison withstand the correction; those that are not valid are not looked at.
pub(crate) fn withstand(settings: &[AtSetting]) -> Vec<bool> {
    let valid = |it: &&AtSetting| it.verdict != Verdict::NotValid;
    let p_value = |it: &AtSetting| p_value(&it.ratios, it.least_half).filter(|_| valid(&it));
    let p_values: Vec<Option<f64>> = settings.iter().map(p_value).collect();
    match p_values.iter().flatten().count() {
        0 | 1 => vec![true; settings.len()],
        _ => withstanding(&p_values),
    }
}

/// Which of them Holm's procedure (1979) rejects.
fn withstanding(p_values: &[Option<f64>]) -> Vec<bool> {
    let mut order: Vec<(usize, f64)> =
        p_values.iter().enumerate().filter_map(|(i, p)| Some((i, (*p)?))).collect();
    order.sort_by(|a, b| a.1.total_cmp(&b.1));
    let looked_at = order.len();
    let mut withstands = vec![false; p_values.len()];
    for (rank, (i, p)) in order.into_iter().enumerate() {
        if p > LEVEL / (looked_at - rank) as f64 {
            break;
        }
        withstands[i] = true;
    }
    withstands
}

/// Two-sided p-value of ratios whose centre is 1, by Student's t of their logarithms; none of fewer than two. Their mean is
/// never more certain than the least half of a 95 % interval says.
fn p_value(ratios: &[f64], least_half: f64) -> Option<f64> {
    const HALF: f64 = 1.959_964;
    let n = ratios.len() as f64;
    let logs: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
    let mean = logs.iter().sum::<f64>() / n;
    let variance = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / (n - 1.0);
    let distribution = StudentsT::new(0.0, 1.0, n - 1.0).ok()?;
    match mean / (variance / n).sqrt().max(least_half / HALF) {
        t if t.is_finite() => Some(2.0 * distribution.sf(t.abs())),
        // All alike: beyond doubt, or without any difference at all.
        t if t.is_infinite() => Some(0.0),
        _ => Some(1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p_values_are_those_of_another_implementation() {
        // scipy.stats.ttest_1samp(numpy.log(x), 0)
        let p = p_value(&[1.1, 1.2, 0.95, 1.3, 1.05], 0.0).unwrap();
        assert!((p - 0.117_519_5).abs() < 1e-6, "{p}");
    }

    #[test]
    fn ratios_that_are_all_alike_are_as_sure_as_counting_is() {
        let p = |ratio: f64, least_half| p_value(&[ratio; 3], least_half);
        assert_eq!((p(2.0, 0.0), p(1.0, 0.0), p_value(&[2.0], 0.0)), (Some(0.0), Some(1.0), None));
        assert!(p(1.1, 0.3).unwrap() > 0.05, "{:?}", p(1.1, 0.3));
        assert!(p(1.1, 1e-6).unwrap() < 1e-6, "{:?}", p(1.1, 1e-6));
    }

    #[test]
    fn holm_asks_less_of_each_that_follows_until_one_fails() {
        let of = |p_values: &[f64]| withstanding(&p_values.iter().map(|p| Some(*p)).collect::<Vec<_>>());
        assert_eq!(of(&[0.04, 0.01, 0.02]), [true, true, true]);
        assert_eq!(of(&[0.04, 0.02, 0.02]), [false, false, false]);
        assert_eq!(withstanding(&[None, Some(0.04)]), [false, true]);
    }
}
