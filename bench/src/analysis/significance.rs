//! Whether a finding is more than luck: p-values, and one correction for how many cells were looked at.
//!
//! The largest of many ratios is large by luck as well. Holm's procedure (1979) goes through the cells from the smallest p-value
//! on and asks ever less of them, so that the chance of any false finding among them is that of one cell by itself.
//!
//! Two questions are asked. Has a cell regressed: does the upper end of its interval lie below `1 - threshold`? The p-values are
//! one-sided and from ranks. And does a comparison show a difference at a setting: does its interval exclude 1? The correction asks
//! for p-values far below what a rank test of seven blocks can have at all (1/64), so these are Student's, of the logarithms.
//!
//! The smallest difference that a plan can show is half the width of the interval that it will get. Earlier results give the scatter of
//! one ratio: half the width of their interval (of logarithms), over that of as many standard normal values. These stand at their
//! expected ranks (Blom, 1958), so that nothing is random.

use statrs::distribution::{ContinuousCDF as _, Normal, StudentsT};
use statrs::statistics::Statistics as _;

use crate::analysis::statistics::{Estimate, Interval, Pairs, RankSum, half_normal, logs_over};

/// Chance of a false alarm among all cells: that of one end of a 95 % interval.
pub(crate) const LEVEL: f64 = 0.025;
/// Chance that any difference of one comparison is called one and is none.
pub(crate) const LEVEL_OF_BOTH_SIDES: f64 = 2.0 * LEVEL;

/// Two-sided p-value of ratios whose centre is 1; none of fewer than two. Their mean is never more certain than the least half of
/// a 95 % interval says.
pub(crate) fn p_of_difference(ratios: &[f64], least_half: f64) -> Option<f64> {
    let logs: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
    let n = logs.len() as f64;
    let error = (logs.iter().variance() / n).sqrt().max(least_half / half_normal());
    two_sided(logs.iter().mean() / error, n - 1.0)
}

/// Two-sided p-value of two groups that are not paired and have one centre, by Welch's t of their logarithms.
pub(crate) fn p_of_two_groups(above: &[f64], below: &[f64], least_half: f64) -> Option<f64> {
    let (above, below) = (logs_over(above, 1.0)?, logs_over(below, 1.0)?);
    let of_group = |logs: &[f64]| (logs.mean(), logs.variance() / logs.len() as f64);
    let ((mean, error), (mean_below, error_below)) = (of_group(&above), of_group(&below));
    let freedom = (error + error_below).powi(2)
        / (error.powi(2) / (above.len() as f64 - 1.0) + error_below.powi(2) / (below.len() as f64 - 1.0));
    // Groups without any scatter have all the freedom that there is.
    let most = (above.len() + below.len()) as f64 - 2.0;
    let freedom = if freedom.is_finite() { freedom } else { most };
    let t = (mean - mean_below) / (error + error_below).sqrt().max(least_half / half_normal());
    two_sided(t, freedom).filter(|_| above.len() > 1 && below.len() > 1)
}

fn two_sided(t: f64, freedom: f64) -> Option<f64> {
    tail(t.abs(), freedom).map(|tail| (2.0 * tail).min(1.0))
}

/// Chance of a `t` this large or larger, by Student; none without a degree of freedom. Values that are all 0 have no `t`, and show no
/// difference.
fn tail(t: f64, freedom: f64) -> Option<f64> {
    let distribution = StudentsT::new(0.0, 1.0, freedom).ok()?;
    Some(if t.is_nan() { 1.0 } else { distribution.sf(t) })
}

/// Positions of those that Holm's procedure rejects, ascending.
pub(crate) fn holm(p_values: &[Option<f64>], level: f64) -> Vec<usize> {
    let mut order: Vec<(f64, usize)> =
        p_values.iter().enumerate().filter_map(|(i, p)| p.map(|p| (p, i))).collect();
    order.sort_by(|a, b| a.0.total_cmp(&b.0));
    let cells = order.len();
    let passing = order.iter().enumerate().take_while(|(rank, (p, _))| *p <= level / (cells - rank) as f64);
    let mut rejected: Vec<usize> = passing.map(|(_, (_, i))| *i).collect();
    rejected.sort_unstable();
    rejected
}

/// Chance of a mean as large as that of `values`, or larger, if it were really 0: one-sided, Student's; none of fewer than two. That few
/// values are alike says little: a standard deviation that is known from elsewhere counts as much as [`KNOWN_COUNTS`] more of them.
pub(crate) fn p_of_mean(values: &[f64], known: Option<f64>) -> Option<f64> {
    let n = values.len() as f64;
    let weight = if known.is_some() { KNOWN_COUNTS } else { 0.0 };
    let freedom = n - 1.0 + weight;
    let squares = values.variance() * (n - 1.0);
    let variance = (squares + weight * known.unwrap_or(0.0).powi(2)) / freedom;
    tail(values.mean() / (variance / n).sqrt(), freedom).filter(|_| values.len() > 1)
}

/// Values that a known standard deviation stands for.
const KNOWN_COUNTS: f64 = 4.0;

/// Chance of ratios as low as these, or lower, if they were really `limit`: exact, by Wilcoxon's signed-rank test, from
/// six on, and Student's t below. None where there is nothing to tell from.
pub(crate) fn p_of_pairs(ratios: &[f64], limit: f64) -> Option<f64> {
    let logs: Vec<f64> = logs_over(ratios, limit)?.iter().map(|log| -log).collect();
    match logs.len() {
        ..6 => p_of_mean(&logs, None),
        n => Some(RankSum::of_signs(n).at_most(Pairs::averages(&logs).not_above(0.0))),
    }
}

/// P-value of the ratio of two groups that are not paired, by the rank-sum test.
pub(crate) fn p_of_groups(above: &[f64], below: &[f64], limit: f64) -> Option<f64> {
    let (above, below) = (logs_over(above, limit)?, logs_over(below, 1.0)?);
    let (m, n) = (above.len(), below.len());
    let not_below = above.iter().map(|a| below.iter().filter(|b| a >= b).count()).sum::<usize>();
    (m > 0 && n > 0).then(|| RankSum::of_groups(m, n).at_most(not_below))
}

/// The least p-value of [`p_of_pairs`] for this many pairs.
pub(crate) fn least_p_of_pairs(pairs: usize) -> Option<f64> {
    // Student's has no least.
    let least = if pairs < 6 { 0.0 } else { 0.5_f64.powi(pairs.min(1000) as i32) };
    (pairs > 1).then_some(least)
}

/// The least that [`p_of_groups`] can be for groups of these sizes, however great the loss: one order of all that there are.
pub(crate) fn least_p_of_groups(above: usize, below: usize) -> Option<f64> {
    let orders = (1..=above).map(|i| (below + i) as f64 / i as f64).product::<f64>();
    (above > 0 && below > 0).then_some(1.0 / orders)
}

/// Runs on either side with which the greatest loss in one of `cells` cells would be rejected; of pairs those that ranks tell.
pub(crate) fn runs_to_tell(cells: usize, are_paired: bool) -> usize {
    let least_p = |runs| if are_paired { least_p_of_pairs(runs) } else { least_p_of_groups(runs, runs) };
    let suffices = |runs: &usize| least_p(*runs).is_some_and(|p| p <= LEVEL / cells.max(1) as f64);
    let fewest = if are_paired { 6 } else { 1 };
    (fewest..).find(suffices).unwrap_or(usize::MAX)
}

/// Half the width that the interval of `earlier` would have with `blocks` blocks, as a share of the ratio. None without an
/// interval on either side.
pub(crate) fn smallest_difference(earlier: &Estimate, blocks: u32) -> Option<f64> {
    let scatter = earlier.interval?.log_half_width() / of_normal(earlier.n)?;
    Some((scatter * of_normal(blocks as usize)?).exp() - 1.0)
}

/// Half the width of the interval of `n` standard normal values at their expected ranks.
fn of_normal(n: usize) -> Option<f64> {
    let at_rank =
        |rank: usize| Normal::standard().inverse_cdf((rank as f64 - 0.375) / (n as f64 + 0.25)).exp();
    let values: Vec<f64> = (1..=n).map(at_rank).collect();
    Estimate::of_positive(&values)?.interval.map(Interval::log_half_width)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::analysis::statistics::median;
    use crate::experiment::outline::OutlineComparison;
    use crate::experiment::overrides::Overrides;
    use crate::experiment::plan::{Plan, Point};
    use crate::experiment::{BUILT_IN, Experiment, Source};
    use crate::measure::synthetic::{Scatter, Shape, built_in, planned};
    use crate::record::place::{BESIDE, Role};
    use crate::settings::machines::is_like;
    use crate::settings::rounds;

    #[test]
    fn one_cell_by_itself_regresses_where_its_interval_ends_below_the_limit() {
        for (seed, blocks) in [(1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 9), (7, 15)] {
            let mut scatter = Scatter::new(seed);
            let mut rates = || (0..60).map(|_| scatter.next(Shape::LogNormal(0.1))).collect::<Vec<f64>>();
            let (a, b) = (rates(), rates());
            for (a, b) in a.chunks_exact(blocks).zip(b.chunks_exact(blocks)) {
                let ratios: Vec<f64> = a.iter().zip(b).map(|(a, b)| a / b).collect();
                for limit in [0.9, 0.97, 1.0, 1.05, 1.1] {
                    let ends_below = |estimate: Estimate| estimate.interval.map(|it| it.high < limit);
                    let paired = Estimate::of_positive(&ratios).and_then(ends_below);
                    assert_eq!(p_of_pairs(&ratios, limit).map(|p| p <= LEVEL), paired, "{ratios:?} {limit}");
                    let groups = Estimate::of_ratio(a, b).and_then(ends_below).unwrap_or(false);
                    assert_eq!(p_of_groups(a, b, limit).unwrap() <= LEVEL, groups, "{a:?} {b:?} {limit}");
                }
            }
        }
    }

    /// By hand: of 64 orders of signs one has a smaller sum of ranks, of 20 orders of two groups one has fewer above.
    #[test]
    fn ratios_at_the_limit_and_ties_speak_against_a_loss() {
        let p = p_of_pairs(&[0.5, 0.6, 0.7, 0.8, 0.9, 1.0], 1.0).unwrap();
        assert!((p - 2.0 / 64.0).abs() < 1e-12, "{p}");
        let p = |above: &[f64]| p_of_groups(above, &[3.0, 4.0, 5.0], 1.0).unwrap();
        assert!((p(&[1.0, 2.0, 3.0]) - 2.0 / 20.0).abs() < 1e-12, "{}", p(&[1.0, 2.0, 3.0]));
        let least = least_p_of_groups(3, 3).unwrap();
        assert!((p(&[0.1, 0.2, 0.3]) - least).abs() < 1e-12 && (least - 1.0 / 20.0).abs() < 1e-12, "{least}");
        assert_eq!((least_p_of_groups(0, 3), least_p_of_groups(3, 0)), (None, None));
        // 70 orders of four and four, 252 of five and five.
        assert_eq!([0, 1, 2].map(|cells| runs_to_tell(cells, false)), [4, 4, 5]);
        // Eight pairs have 256 orders of signs.
        assert_eq!([1, 3, 6, 7].map(|cells| runs_to_tell(cells, true)), [6, 7, 8, 9]);
    }

    #[test]
    fn p_values_are_those_of_another_implementation() {
        let (above, below) = ([1.1, 1.2, 0.95, 1.3, 1.05], [0.9, 1.0, 0.85, 1.02]);
        for (p, expected) in [
            // scipy.stats.ttest_1samp(numpy.log(x), 0)
            (p_of_difference(&above, 0.0), 0.117_519_5),
            // By numerical integration: t is 2.447_734, with 6.960_465 degrees of freedom.
            (p_of_two_groups(&above, &below, 0.0), 0.044_445_8),
            // t is 2.1 / (0.2 / sqrt(3)) with two degrees, and 2 / sqrt((0.02 + 4 * 9) / 5 / 2) with five.
            (p_of_mean(&[1.9, 2.1, 2.3], None), 0.001_504_9),
            (p_of_mean(&[1.9, 2.1], Some(3.0)), 0.170_105_9),
            (p_of_difference(&[2.0; 3], 0.0), 0.0),
            (p_of_difference(&[1.0; 3], 0.0), 1.0),
            (p_of_two_groups(&[2.0; 3], &[1.0; 3], 0.0), 0.0),
            (p_of_two_groups(&[1.0; 3], &[1.0; 3], 0.0), 1.0),
            (p_of_pairs(&[0.5; 3], 1.0), 0.0),
            (p_of_pairs(&[1.0; 3], 1.0), 1.0),
            (p_of_pairs(&[2.0; 3], 1.0), 1.0),
            // Known scatter is less than that of two values.
            (p_of_mean(&[1.9, 2.1], Some(0.1)), 0.0),
            (p_of_mean(&[-1.9, -2.1], Some(0.1)), 1.0),
        ] {
            let off = (p.expect("a p-value") - expected).abs();
            assert!(off < if expected.fract() == 0.0 { 1e-4 } else { 1e-6 }, "{p:?}, not {expected}");
        }
        let alone = [
            p_of_difference(&[2.0], 0.0),
            p_of_two_groups(&[2.0], &below, 0.0),
            p_of_mean(&[1.0], Some(1.0)),
        ];
        assert_eq!(alone, [None; 3]);
        // Differences are less sure where counting cannot tell values apart.
        assert!(p_of_two_groups(&above, &below, 0.5) > Some(0.3));
        assert!(p_of_difference(&[1.1; 3], 0.3) > Some(0.05));
    }

    #[test]
    fn holm_asks_less_of_each_next_cell_and_stops_at_a_failure() {
        let of_both_sides = |p_values: &[f64]| {
            holm(&p_values.iter().map(|p| Some(*p)).collect::<Vec<_>>(), LEVEL_OF_BOTH_SIDES)
        };
        assert_eq!(of_both_sides(&[0.04, 0.01, 0.02]), [0, 1, 2]);
        assert_eq!(of_both_sides(&[0.04, 0.02, 0.02]), [0; 0]);
        assert_eq!(of_both_sides(&[0.05, 0.025]), [0, 1], "as small as is asked is small enough");
        // The third may be half of the level at most, and is more; the fourth, which would pass, comes after it.
        assert_eq!(of_both_sides(&[0.012, 0.016, 0.026, 0.049]), [0, 1]);
        let regressed = |p_values: &[Option<f64>]| holm(p_values, LEVEL);
        assert_eq!(regressed(&[Some(0.03), Some(0.001), None, Some(0.012)]), [1, 3]);
        assert_eq!(regressed(&[Some(0.02), Some(0.02)]), [0; 0]);
        assert_eq!(regressed(&[Some(0.024)]), [0]);
    }

    /// Settings of the comparison that has the most, without those of machines that are like another.
    fn most_settings(plan: &Plan) -> usize {
        let has = |point: &Point, name: &str| {
            let arm = name.split(BESIDE).next();
            point.arms.iter().any(|cell| cell.role == Role::Arm && Some(&*cell.arm) == arm)
        };
        let is_own = |point: &&Point| {
            let mut values = point.arms.iter().flat_map(|cell| cell.setting.values());
            !values.any(|value| is_like(value))
        };
        let both = |it: &OutlineComparison| {
            let own = plan.points.iter().filter(is_own);
            own.filter(|point| has(point, &it.arm) && has(point, &it.baseline)).count()
        };
        plan.outline.comparisons.iter().map(both).max().unwrap_or(0)
    }

    /// Share of the settings of a comparison at which `blocks` blocks show that one arm is twice as fast, where the ratios of blocks
    /// scatter by a fifth. Half of the kept measurements scatter by 6 to 24 %.
    fn doublings_shown(blocks: u32, settings: usize) -> f64 {
        const TRIES: u64 = 400;
        let of_try = |seed| {
            let mut scatter = Scatter::new(seed);
            let mut ratio = || 2.0 * scatter.next(Shape::LogNormal(0.2));
            let mut ratios = || (0..blocks).map(|_| ratio()).collect::<Vec<f64>>();
            let each: Vec<_> = (0..settings).map(|_| p_of_difference(&ratios(), 0.0)).collect();
            holm(&each, LEVEL_OF_BOTH_SIDES).len()
        };
        (0..TRIES).map(of_try).sum::<usize>() as f64 / (TRIES as usize * settings) as f64
    }

    #[test]
    fn every_built_in_plan_can_decide_and_its_windows_hold_eight_rounds() {
        let text = include_str!("../commands/answer_pv.toml").into();
        let answer = Experiment::parse(Source { origin: "answer-pv".into(), text }).unwrap();
        let all = BUILT_IN.into_iter().map(|(name, _)| built_in(name)).chain([answer]);
        let mut known = BTreeMap::new();
        for (mut experiment, quick) in all.flat_map(|it| [(it.clone(), false), (it, true)]) {
            experiment.apply(&Overrides { quick, ..Overrides::default() }).unwrap();
            let (name, plan) = (&experiment.name, planned(&experiment).unwrap());
            let blocks = experiment.trial_blocks.unwrap_or(experiment.blocks);
            let settings = most_settings(&plan);
            let shown = known.entry((blocks, settings)).or_insert_with(|| doublings_shown(blocks, settings));
            assert!(settings == 0 || *shown >= 0.95, "{name} {quick}: {blocks} at {settings}: {shown}");
            assert_eq!(rounds::too_few(plan.cells().map(|cell| &cell.run)), None, "{name} {quick}");
        }
    }

    /// Estimates of 30 ratios in `blocks` blocks, where runs scatter by 5 %.
    fn estimates(blocks: usize, seed: u64) -> Vec<Estimate> {
        let mut scatter = Scatter::new(seed);
        let mut ratio = || scatter.next(Shape::LogNormal(0.05)) / scatter.next(Shape::LogNormal(0.05));
        let mut ratios = || (0..blocks).map(|_| ratio()).collect::<Vec<f64>>();
        (0..30).map(|_| Estimate::of_positive(&ratios()).unwrap()).collect()
    }

    #[test]
    fn predicted_half_widths_are_those_that_the_blocks_then_show() {
        for (earlier, later) in [(3, 7), (6, 12), (8, 20), (20, 6)] {
            let predicted = estimates(earlier, 1);
            let predicted = predicted.iter().map(|it| smallest_difference(it, later as u32).unwrap());
            let shown = estimates(later, 2).into_iter().map(|it| it.half_width().unwrap());
            let ratio = median(&Vec::from_iter(predicted)) / median(&Vec::from_iter(shown));
            assert!((0.7..1.3).contains(&ratio), "{earlier} to {later} blocks: {ratio}");
        }
        // One block shows nothing, and the same number shows the same.
        let [one, six] = [1, 6].map(|blocks| estimates(blocks, 3).swap_remove(0));
        assert_eq!((smallest_difference(&one, 6), smallest_difference(&six, 1)), (None, None));
        let same = smallest_difference(&six, 6).unwrap();
        assert!((same / six.half_width().unwrap() - 1.0).abs() < 1e-9);
    }
}
