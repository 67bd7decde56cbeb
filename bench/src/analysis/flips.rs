//! Whether a comparison of two simulated arms depends on what the machine's file guesses.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::analysis::statistics::Estimate;
use crate::analysis::verdict::Verdict;

/// Dependence of a comparison on guesses.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
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
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
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

/// A machine like the one that was asked for.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
pub(crate) struct Point {
    /// Figures that differ from the machine's own, in the units of their keys.
    pub(crate) figures: BTreeMap<String, f64>,
    /// Choices of its model.
    pub(crate) choices: BTreeMap<String, String>,
    /// Throughput of the arm over that of the baseline, over seeds; null if half of the runs or more completed no section.
    pub(crate) ratio: Option<Estimate>,
    /// Verdict of its interval.
    pub(crate) verdict: Verdict,
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

/// One thing of a machine that was changed by itself.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
pub(crate) struct Alone {
    /// The figure's key, or that of the choice.
    pub(crate) key: String,
    /// Its changed value.
    pub(crate) value: String,
    /// The ratio with that.
    pub(crate) ratio: Option<Estimate>,
    /// Whether that alone makes the other arm faster.
    pub(crate) flips: bool,
}

/// The answer of `haltkick flips`.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
pub(crate) struct Flips {
    /// "haltkick.flips".
    pub(crate) schema: String,
    /// 1.
    pub(crate) schema_version: u32,
    /// The arm above the line.
    pub(crate) arm: String,
    /// The arm below the line.
    pub(crate) baseline: String,
    /// The machine.
    pub(crate) machine: String,
    /// Runs of each arm at each point.
    pub(crate) seeds: u32,
    /// The answer.
    pub(crate) robustness: Robustness,
    /// The machine as its file says.
    pub(crate) nominal: Point,
    /// Machines like it.
    pub(crate) points: Vec<Point>,
    /// If it flips: what was most often different where it did, each by itself.
    pub(crate) alone: Vec<Alone>,
}

/// The verdict on the other side.
fn opposite(verdict: Verdict) -> Option<Verdict> {
    match verdict {
        Verdict::Faster => Some(Verdict::Slower),
        Verdict::Slower => Some(Verdict::Faster),
        Verdict::NoDifferenceShown | Verdict::TooFewBlocks | Verdict::NotValid => None,
    }
}

/// Verdict of the machine and the points like it together.
pub(crate) fn robustness(nominal: &Point, points: &[Point]) -> Robustness {
    match opposite(nominal.verdict) {
        None => Robustness::Undetermined,
        Some(other) if points.iter().any(|point| point.verdict == other) => Robustness::Flips,
        Some(_) if points.iter().all(|point| point.verdict == nominal.verdict) => Robustness::Robust,
        Some(_) => Robustness::Undetermined,
    }
}

/// Whether the other arm is faster at `point` than at `nominal`.
pub(crate) fn is_flipped(nominal: &Point, point: &Point) -> bool {
    opposite(nominal.verdict) == Some(point.verdict)
}

/// The keys that go with the ratio most, strongest first, each with its value at the flipped point that is farthest that way.
///
/// The strength is the correlation of the logarithms, over all points.
pub(crate) fn suspects(nominal: &Point, points: &[Point], most: usize) -> Vec<(String, String)> {
    let logs: Vec<f64> = points.iter().map(log_ratio).collect();
    let flipped: Vec<&Point> = points.iter().filter(|point| is_flipped(nominal, point)).collect();
    let mut found = Vec::new();
    for key in points.iter().flat_map(|point| point.figures.keys()).collect::<std::collections::BTreeSet<_>>()
    {
        let of = |point: &Point| point.figures.get(key).map_or(0.0, |value| value.ln());
        let strength = correlation(&points.iter().map(of).collect::<Vec<_>>(), &logs);
        // Towards flipped points the value grows if the ratio falls with it, or does not.
        let grows = strength * if nominal.verdict == Verdict::Faster { -1.0 } else { 1.0 };
        let by = |a: &&&Point, b: &&&Point| (of(a) * grows).total_cmp(&(of(b) * grows));
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
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    found.truncate(most);
    found.into_iter().map(|(_, key, value)| (key, value)).collect()
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
    fn what_the_ratio_follows_is_suspected_first() {
        let nominal = point(1.2, &[], "last");
        // The ratio falls with `a`, and has nothing to do with `b`.
        let points = [
            point(1.3, &[("a", 1.0), ("b", 5.0)], "last"),
            point(1.1, &[("a", 2.0), ("b", 7.0)], "last"),
            point(0.9, &[("a", 4.0), ("b", 5.1)], "last"),
            point(0.8, &[("a", 5.0), ("b", 6.9)], "last"),
        ];
        let found = suspects(&nominal, &points, 1);
        assert_eq!(found, [("a".to_owned(), "5.0000".to_owned())]);
        let by_choice = [
            point(1.3, &[("a", 1.0)], "last"),
            point(0.8, &[("a", 2.0)], "lowest"),
            point(1.2, &[("a", 2.1)], "last"),
            point(0.9, &[("a", 1.1)], "lowest"),
        ];
        let found = suspects(&nominal, &by_choice, 1);
        assert_eq!(found, [("placement".to_owned(), "lowest".to_owned())]);
    }
}
