//! Which of many cells regressed, so that the chance of any false alarm stays what one would have.
//!
//! A cell has regressed if the upper end of its interval lies below `1 - threshold`. Each of many cells would raise one
//! false alarm in forty by itself; Holm's procedure (1979) goes through them from the smallest p-value on and asks ever
//! less of them, so that for all together it is one in forty at most.

use crate::analysis::statistics::{rank_sum_distribution, signed_rank_distribution, walsh_averages};

/// Chance of a false alarm: that of one end of a 95 % interval.
pub(crate) const LEVEL: f64 = 0.025;

/// Chance of ratios as low as these, or lower, if they were really `limit`: exact, by Wilcoxon's signed-rank test, from
/// six on, and Student's t below. None where there is nothing to tell from.
pub(crate) fn p_of_pairs(ratios: &[f64], limit: f64) -> Option<f64> {
    let logs = logs_over(ratios, limit)?;
    match logs.len() {
        0 | 1 => None,
        2..6 => Some(student(&logs)),
        n => {
            let not_below = walsh_averages(&logs).iter().filter(|average| **average >= 0.0).count();
            Some(if n <= EXACT_PAIRS {
                signed_rank_distribution(n).iter().take(not_below + 1).sum()
            } else {
                let n = n as f64;
                let deviation = (n * (n + 1.0) * (2.0 * n + 1.0) / 24.0).sqrt();
                normal_below((not_below as f64 + 0.5 - n * (n + 1.0) / 4.0) / deviation)
            })
        }
    }
}

/// The same of the ratio of two groups that are not paired, by the rank-sum test.
pub(crate) fn p_of_groups(above: &[f64], below: &[f64], limit: f64) -> Option<f64> {
    let (above, below) = (logs_over(above, limit)?, logs_over(below, 1.0)?);
    let (m, n) = (above.len(), below.len());
    if m == 0 || n == 0 {
        return None;
    }
    let not_below = above.iter().map(|a| below.iter().filter(|b| a >= b).count()).sum::<usize>();
    Some(if m.max(n) <= EXACT_GROUP {
        rank_sum_distribution(m, n).iter().take(not_below + 1).sum()
    } else {
        let (m, n) = (m as f64, n as f64);
        let deviation = (m * n * (m + n + 1.0) / 12.0).sqrt();
        normal_below((not_below as f64 + 0.5 - m * n / 2.0) / deviation)
    })
}

/// The least that [`p_of_pairs`] can be for so many pairs, however great the loss.
pub(crate) fn least_p_of_pairs(pairs: usize) -> Option<f64> {
    match pairs {
        0 | 1 => None,
        // Student's has no least.
        2..6 => Some(0.0),
        _ => Some(0.5_f64.powi(pairs.min(1000) as i32)),
    }
}

/// The least that [`p_of_groups`] can be for groups of these sizes, however great the loss: one order of all that there are.
pub(crate) fn least_p_of_groups(above: usize, below: usize) -> Option<f64> {
    let orders = (1..=above).map(|i| (below + i) as f64 / i as f64).product::<f64>();
    (above > 0 && below > 0).then_some(1.0 / orders)
}

/// Runs on either side with which the greatest loss in one of `cells` cells would be rejected.
pub(crate) fn runs_to_tell(cells: usize) -> usize {
    let suffices = |runs| least_p_of_groups(runs, runs).is_some_and(|p| p <= LEVEL / cells.max(1) as f64);
    (1..).find(|&runs| suffices(runs)).unwrap_or(usize::MAX)
}

/// Beyond this the exact distributions take long and differ from the normal one by nothing.
const EXACT_PAIRS: usize = 60;
const EXACT_GROUP: usize = 40;

/// Positions of those that Holm's procedure rejects at [`LEVEL`], ascending.
pub(crate) fn rejected(p_values: &[Option<f64>]) -> Vec<usize> {
    let mut order: Vec<(f64, usize)> =
        p_values.iter().enumerate().filter_map(|(i, p)| p.map(|p| (p, i))).collect();
    order.sort_by(|a, b| a.0.total_cmp(&b.0));
    let cells = order.len();
    let passing = order.iter().enumerate().take_while(|(rank, (p, _))| *p <= LEVEL / (cells - rank) as f64);
    let mut rejected: Vec<usize> = passing.map(|(_, (_, i))| *i).collect();
    rejected.sort_unstable();
    rejected
}

/// Logarithms of `values` over `limit`; none if one has none.
fn logs_over(values: &[f64], limit: f64) -> Option<Vec<f64>> {
    let logs: Vec<f64> = values.iter().map(|value| (value / limit).ln()).collect();
    logs.iter().all(|log| log.is_finite()).then_some(logs)
}

/// One-sided p-value of a mean below 0: two to five values.
fn student(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0);
    let freedom = values.len() - 1;
    // The distribution has closed forms in this angle (Abramowitz and Stegun 26.7.3 and 26.7.4).
    let angle = (mean / (variance / n).sqrt() / (freedom as f64).sqrt()).atan();
    let (sine, cosine) = angle.sin_cos();
    let between = match freedom {
        1 => angle * 2.0 / std::f64::consts::PI,
        2 => sine,
        3 => (angle + sine * cosine) * 2.0 / std::f64::consts::PI,
        _ => sine * (1.0 + cosine * cosine / 2.0),
    };
    if variance == 0.0 { f64::from(mean >= 0.0) } else { f64::midpoint(1.0, between) }
}

/// Chance of a normal value below `z`: by the series around 0, far enough out 0 or 1 (Abramowitz and Stegun 26.2.10).
pub(crate) fn normal_below(z: f64) -> f64 {
    if z.abs() > 7.0 {
        return f64::from(z > 0.0);
    }
    let (mut term, mut sum) = (z, z);
    for k in 1..200 {
        term *= -z * z / (2.0 * f64::from(k));
        sum += term / f64::from(2 * k + 1);
    }
    0.5 + sum / std::f64::consts::TAU.sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::statistics::Estimate;
    use crate::measure::synthetic::{Shape, Sketch, World};

    #[test]
    fn one_cell_by_itself_regresses_where_its_interval_ends_below_the_limit() {
        let plan = Sketch::new().arm("a", "tas").arm("b", "tas").plan(60);
        for (seed, blocks) in [(1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 9), (7, 15)] {
            let records = World::new(seed).shape(Shape::LogNormal(0.1)).records(&plan);
            let of = |arm: &str| -> Vec<f64> {
                let of_arm = records.iter().filter(|record| record.place.as_ref().unwrap().arm == arm);
                of_arm.map(|record| record.totals.acquisitions_per_second).collect()
            };
            let (a, b) = (of("a"), of("b"));
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

    #[test]
    fn large_groups_go_on_where_the_exact_distributions_end() {
        let ratios: Vec<f64> = (0..61).map(|i| 0.97 + 0.001 * f64::from(i)).collect();
        let (exact, normal) =
            (p_of_pairs(&ratios[..60], 1.001).unwrap(), p_of_pairs(&ratios, 1.001).unwrap());
        assert!((exact - normal).abs() < 0.1 && normal > exact, "{exact} {normal}");
        assert!((normal_below(1.96) - 0.975).abs() < 1e-4 && normal_below(-8.0) == 0.0);
    }

    #[test]
    fn holm_asks_less_of_each_next_cell_and_stops_at_a_failure() {
        assert_eq!(rejected(&[Some(0.03), Some(0.001), None, Some(0.012)]), [1, 3]);
        assert_eq!(rejected(&[Some(0.02), Some(0.02)]), [0; 0]);
        assert_eq!(rejected(&[Some(0.024)]), [0]);
    }
}
