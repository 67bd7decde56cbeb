//! Values that do not fit among the others: single ones that lie far off, and a trend in all of them.

use statrs::distribution::{ContinuousCDF as _, Normal};

use super::statistics::median;

/// Fewest values among which one can lie far from the others.
pub(crate) const OUTLIERS_NEED: usize = 5;

/// Positions of values that lie far from the others: modified z-score beyond 3.5 (Iglewicz and Hoaglin 1993).
pub(crate) fn outliers(values: &[f64]) -> Vec<usize> {
    const LIMIT: f64 = 3.5;
    const MAD_OF_STANDARD_NORMAL: f64 = 0.6745;
    if values.len() < OUTLIERS_NEED {
        return vec![];
    }
    let centre = median(values);
    let deviations: Vec<f64> = values.iter().map(|value| (value - centre).abs()).collect();
    let mad = median(&deviations);
    if mad == 0.0 {
        return vec![];
    }
    (0..values.len()).filter(|i| MAD_OF_STANDARD_NORMAL * deviations[*i] / mad > LIMIT).collect()
}

/// Fewest values of a series that can drift.
pub(crate) const DRIFT_NEEDS: usize = 8;

/// How far a series moves from beginning to end, as a factor, if it moves at all: Theil-Sen slope of the
/// logarithms where Kendall's tau differs from 0 beyond the 1 % level.
pub(crate) fn drift(series: &[f64]) -> Option<f64> {
    const LEVEL: f64 = 0.01;
    let n = series.len();
    if n < DRIFT_NEEDS || series.iter().any(|value| *value <= 0.0) {
        return None;
    }
    let mut slopes = Vec::new();
    let mut concordance = 0.0;
    for i in 0..n {
        for j in i + 1..n {
            let rise = (series[j] / series[i]).ln();
            slopes.push(rise / (j - i) as f64);
            concordance += if rise == 0.0 { 0.0 } else { rise.signum() };
        }
    }
    let n = n as f64;
    let deviation = (n * (n - 1.0) * (2.0 * n + 5.0) / 18.0).sqrt();
    (concordance.abs() / deviation > Normal::standard().inverse_cdf(1.0 - LEVEL / 2.0))
        .then(|| (median(&slopes) * (n - 1.0)).exp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::synthetic::{Scatter, Shape};

    #[test]
    fn the_far_value_is_the_outlier() {
        assert_eq!(outliers(&[10.0, 10.1, 9.9, 14.0, 10.05, 9.95]), [3]);
        assert_eq!(outliers(&[10.0, 10.1, 9.9, 10.2, 10.05, 9.95]), [0; 0]);
    }

    #[test]
    fn a_trend_is_told_from_noise() {
        let mut scatter = Scatter::new(3);
        let noise: Vec<f64> = (0..30).map(|_| scatter.next(Shape::Normal(0.01))).collect();
        assert_eq!(drift(&noise), None);
        let falling: Vec<f64> =
            noise.iter().enumerate().map(|(i, value)| value * (1.0 - 0.01 * i as f64)).collect();
        let factor = drift(&falling).unwrap();
        assert!((0.65..0.78).contains(&factor), "{factor}");
    }
}
