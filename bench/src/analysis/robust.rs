//! Whether a comparison of two simulated arms depends on what the machine's file guesses.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::analysis::statistics::{Estimate, Verdict};

/// Dependence of a comparison on guesses.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Robustness {
    /// One arm is faster on the machine and at every point, with the whole interval.
    Robust,
    /// The other arm is faster at a point.
    Flips,
    /// The interval of the machine itself, or of a point, contains 1.
    Undetermined,
}

impl Robustness {
    /// In a word.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Robust => "robust",
            Self::Flips => "flips",
            Self::Undetermined => "undetermined",
        }
    }
}

/// Dependence of an experiment's comparison on guesses.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Sensitivity {
    /// The answer.
    pub(crate) robustness: Robustness,
    /// If it flips: the figure or choice that goes with the ratio most, at a flipped point.
    pub(crate) flips_at: Option<String>,
    /// Machines like the one in the setting.
    pub(crate) points: usize,
}

impl Sensitivity {
    /// The answer with what it flips at.
    pub(crate) fn word(&self) -> String {
        match &self.flips_at {
            Some(at) => format!("{} at {at}", self.robustness.word()),
            None => self.robustness.word().into(),
        }
    }
}

/// A comparison on one machine: the one that was asked for, or one like it.
pub(crate) struct Point {
    /// Guessed figures of the machine, in the units of their keys.
    figures: BTreeMap<String, f64>,
    /// Choices of its model.
    choices: BTreeMap<String, String>,
    /// Ratio of the arms over seeds; none if half of the runs or more completed no section.
    ratio: Option<Estimate>,
    /// Verdict of its interval.
    verdict: Verdict,
}

impl Point {
    /// A point that has been simulated.
    pub(crate) fn new(
        figures: BTreeMap<String, f64>,
        choices: BTreeMap<String, String>,
        ratio: Option<Estimate>,
    ) -> Self {
        let verdict = ratio.as_ref().map_or(Verdict::TooFewBlocks, Estimate::verdict);
        Self { figures, choices, ratio, verdict }
    }
}

/// Whether the other arm is faster at `point` than at `nominal`.
fn is_flipped(nominal: &Point, point: &Point) -> bool {
    let are_differences = nominal.verdict.is_difference() && point.verdict.is_difference();
    are_differences && nominal.verdict != point.verdict
}

/// Verdict of the machine and the points like it together.
pub(crate) fn robustness(nominal: &Point, points: &[Point]) -> Robustness {
    if points.iter().any(|point| is_flipped(nominal, point)) {
        return Robustness::Flips;
    }
    let is_same = |point: &Point| point.verdict == nominal.verdict;
    if nominal.verdict.is_difference() && points.iter().all(is_same) {
        Robustness::Robust
    } else {
        Robustness::Undetermined
    }
}

/// The figure or choice that goes with the ratio most, and its value at the flipped point that is farthest that way; none if no
/// point is flipped. Nothing is changed by itself: what is suspected need not flip the comparison alone.
///
/// The strength is the correlation of the logarithms, over all points.
pub(crate) fn suspect(nominal: &Point, points: &[Point]) -> Option<(String, String)> {
    let logs: Vec<f64> = points.iter().map(log_ratio).collect();
    let flipped: Vec<&Point> = points.iter().filter(|point| is_flipped(nominal, point)).collect();
    let mut found = Vec::new();
    let keys: BTreeSet<&String> = points.iter().flat_map(|point| point.figures.keys()).collect();
    for key in keys {
        let logarithm = |point: &Point| point.figures.get(key).map_or(0.0, |value| value.ln());
        let strength = correlation(&points.iter().map(logarithm).collect::<Vec<_>>(), &logs);
        // Towards flipped points the value grows if the ratio falls with it, or does not.
        let grows = strength * if nominal.verdict == Verdict::Faster { -1.0 } else { 1.0 };
        let by = |a: &&&Point, b: &&&Point| (logarithm(a) * grows).total_cmp(&(logarithm(b) * grows));
        if let Some(farthest) = flipped.iter().max_by(by) {
            found.push((strength.abs(), key.clone(), format!("{:.4}", farthest.figures[key])));
        }
    }
    for key in nominal.choices.keys() {
        let differs = |point: &Point| f64::from(point.choices.get(key) != nominal.choices.get(key));
        let strength = correlation(&points.iter().map(differs).collect::<Vec<_>>(), &logs);
        if let Some(point) = flipped.iter().find(|point| differs(point) > 0.0) {
            found.push((strength.abs(), key.clone(), point.choices[key].clone()));
        }
    }
    let (_, key, value) = found.into_iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
    Some((key, value))
}

fn log_ratio(point: &Point) -> f64 {
    point.ratio.as_ref().map_or(0.0, |ratio| ratio.hodges_lehmann.ln())
}

/// Pearson's; 0 where one does not vary.
fn correlation(xs: &[f64], ys: &[f64]) -> f64 {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let (x, y) = (mean(xs), mean(ys));
    let sum = |of: &dyn Fn(f64, f64) -> f64| xs.iter().zip(ys).map(|(a, b)| of(a - x, b - y)).sum::<f64>();
    let spread = (sum(&|a, _| a * a) * sum(&|_, b| b * b)).sqrt();
    if spread > 0.0 { sum(&|a, b| a * b) / spread } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A point at which five seeds gave ratios near this one, within a percent.
    fn point(ratio: f64, figures: &[(&str, f64)], placement: &str) -> Point {
        let each = [0.99, 0.995, 1.0, 1.005, 1.01].map(|share| share * ratio);
        let figures = figures.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect();
        let choices = BTreeMap::from([("placement".to_owned(), placement.to_owned())]);
        Point::new(figures, choices, Estimate::of_positive(&each))
    }

    #[test]
    fn only_points_that_all_agree_are_robust() {
        let nominal = point(1.2, &[], "last");
        let at = |ratios: &[f64]| {
            let points: Vec<Point> = ratios.iter().map(|ratio| point(*ratio, &[], "last")).collect();
            robustness(&nominal, &points)
        };
        assert_eq!(at(&[1.1, 1.3]), Robustness::Robust);
        assert_eq!(at(&[1.1, 1.001]), Robustness::Undetermined, "an interval that contains 1");
        assert_eq!(at(&[1.1, 1.001, 0.9]), Robustness::Flips);
        let vague = point(1.0, &[], "last");
        assert_eq!(robustness(&vague, &[point(1.1, &[], "last")]), Robustness::Undetermined);
        let none = Point::new(BTreeMap::new(), BTreeMap::new(), None);
        assert_eq!(robustness(&nominal, &[none]), Robustness::Undetermined, "a point without a figure");
        let slower = point(0.8, &[], "last");
        assert_eq!(robustness(&slower, &[point(0.9, &[], "last")]), Robustness::Robust);
        assert_eq!(robustness(&slower, &[point(1.1, &[], "last")]), Robustness::Flips);
    }

    #[test]
    fn what_the_ratio_follows_most_is_suspected() {
        let nominal = point(1.2, &[], "last");
        // The ratio falls with `a`, and has nothing to do with `b`.
        let points = [
            point(1.3, &[("a", 1.0), ("b", 5.0)], "last"),
            point(1.1, &[("a", 2.0), ("b", 7.0)], "last"),
            point(0.9, &[("a", 4.0), ("b", 5.1)], "last"),
            point(0.8, &[("a", 5.0), ("b", 6.9)], "last"),
        ];
        let found = suspect(&nominal, &points);
        assert_eq!(found, Some(("a".into(), "5.0000".into())));
        let by_choice = [
            point(1.3, &[("a", 1.0)], "last"),
            point(0.8, &[("a", 2.0)], "lowest"),
            point(1.2, &[("a", 2.1)], "last"),
            point(0.9, &[("a", 1.1)], "lowest"),
        ];
        let found = suspect(&nominal, &by_choice);
        assert_eq!(found, Some(("placement".into(), "lowest".into())));
    }
}
