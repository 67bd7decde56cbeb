//! Whether comparisons of simulated arms depend on what the machine's file guesses: those on a machine next to those on machines like it,
//! where the experiment has them.

use std::collections::{BTreeMap, BTreeSet};

use haltkick_vmm::machines::Machine;
use serde::{Deserialize, Serialize};
use statrs::statistics::Statistics as _;

use super::compared::{Placed, comparisons, settings};
use super::{Comparison, Summary};
use crate::analysis::statistics::{Estimate, Verdict};
use crate::experiment::outline::Outline;
use crate::record::Record;
use crate::settings::machines::{is_like, of_likes};

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
    pub(crate) fn word(self) -> String {
        format!("{self:?}").to_lowercase()
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
            None => self.robustness.word(),
        }
    }
}

/// A comparison on one machine: the one that was asked for, or one like it.
struct Point {
    /// Guessed figures of the machine, in the units of their keys.
    figures: BTreeMap<String, f64>,
    /// Choices of its model.
    choices: BTreeMap<String, String>,
    /// Ratio of the arms over seeds; none if half of the runs or more completed no section.
    ratio: Option<Estimate>,
}

impl Point {
    fn verdict(&self) -> Verdict {
        self.ratio.as_ref().map_or(Verdict::TooFewBlocks, Estimate::verdict)
    }
}

/// Whether the other arm is faster at `point` than at `nominal`.
fn is_flipped(nominal: &Point, point: &Point) -> bool {
    let (here, there) = (nominal.verdict(), point.verdict());
    here.is_difference() && there.is_difference() && here != there
}

/// Verdict of the machine and the points like it together.
fn robustness(nominal: &Point, points: &[Point]) -> Robustness {
    if points.iter().any(|point| is_flipped(nominal, point)) {
        return Robustness::Flips;
    }
    let verdict = nominal.verdict();
    if verdict.is_difference() && points.iter().all(|point| point.verdict() == verdict) {
        Robustness::Robust
    } else {
        Robustness::Undetermined
    }
}

/// The figure or choice that goes with the ratio most, and its value at the flipped point that is farthest that way; none if no
/// point is flipped. Nothing is changed by itself: what is suspected need not flip the comparison alone.
///
/// The strength is the correlation of the logarithms, over all points.
fn suspect(nominal: &Point, points: &[Point]) -> Option<(String, String)> {
    let log_ratio = |point: &Point| point.ratio.as_ref().map_or(0.0, |ratio| ratio.hodges_lehmann.ln());
    let logs: Vec<f64> = points.iter().map(log_ratio).collect();
    let flipped: Vec<&Point> = points.iter().filter(|point| is_flipped(nominal, point)).collect();
    let mut found = Vec::new();
    let keys: BTreeSet<&String> = points.iter().flat_map(|point| point.figures.keys()).collect();
    for key in keys {
        let logarithm = |point: &Point| point.figures.get(key).map_or(0.0, |value| value.ln());
        let strength = correlation(&points.iter().map(logarithm).collect::<Vec<_>>(), &logs);
        // Towards flipped points the value grows if the ratio falls with it, or does not.
        let grows = strength * if nominal.verdict() == Verdict::Faster { -1.0 } else { 1.0 };
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

/// Pearson's; 0 where one does not vary.
fn correlation(xs: &[f64], ys: &[f64]) -> f64 {
    let spread = xs.std_dev() * ys.std_dev();
    if spread > 0.0 { xs.covariance(ys) / spread } else { 0.0 }
}

const KEY: &str = "machine";

/// The records of machines like others, if there are any, and the outline and the records without them.
pub(super) fn apart(outline: &Outline, records: &[Record]) -> Option<(Outline, Vec<Record>, Vec<Record>)> {
    let has_likes = |axis: &crate::experiment::outline::OutlineAxis| {
        axis.key == KEY && axis.values.iter().any(|value| is_like(value))
    };
    if !outline.axes.iter().any(has_likes) {
        return None;
    }
    let mut own = outline.clone();
    let of_machines = own.axes.iter_mut().filter(|axis| axis.key == KEY);
    of_machines.for_each(|axis| axis.values.retain(|value| !is_like(value)));
    let is_of_like = |record: &&Record| machine_of(record).is_some_and(is_like);
    let (likes, rest): (Vec<&Record>, Vec<&Record>) = records.iter().partition(is_of_like);
    Some((own, rest.into_iter().cloned().collect(), likes.into_iter().cloned().collect()))
}

fn machine_of(record: &Record) -> Option<&str> {
    Some(record.place.as_ref()?.setting.get(KEY)?.as_str())
}

/// Says of each comparison on what it depends. `likes` are records of machines like those of `records`.
pub(super) fn tell(summary: &mut Summary, outline: &Outline, records: &[Record], likes: &[Record]) {
    let placed = Placed::sort(likes);
    let of_likes = comparisons(outline, &settings(outline, &placed), &placed);
    let named = records.iter().chain(likes).filter_map(|record| Some((machine_of(record)?, record)));
    let texts: BTreeMap<&str, &String> = named
        .filter_map(|(name, record)| Some((name, record.files.get(record.settings.text("machine_sha256")?)?)))
        .collect();
    let machine = |name: &str| Machine::parse(name, texts.get(name)?).ok();
    let machines: BTreeMap<&str, Machine> =
        texts.keys().filter_map(|name| Some((*name, machine(name)?))).collect();
    for comparison in &mut summary.comparisons {
        comparison.sensitivity = of_comparison(comparison, outline, &of_likes, &machines);
    }
}

/// The settings but for the machine.
fn others(comparison: &Comparison) -> impl Iterator<Item = (&String, &String)> {
    comparison.setting.iter().filter(|(key, _)| *key != KEY)
}

fn of_comparison(
    comparison: &Comparison,
    outline: &Outline,
    likes: &[Comparison],
    machines: &BTreeMap<&str, Machine>,
) -> Option<Sensitivity> {
    let name = comparison.setting.get(KEY)?;
    let values = outline.axes.iter().filter(|axis| axis.key == KEY).flat_map(|axis| &axis.values);
    let asked = values.filter(|value| of_likes(value) == Some(name)).count();
    let is_of_it = |like: &&Comparison| {
        let machine = like.setting.get(KEY).and_then(|machine| of_likes(machine));
        like.name == comparison.name && machine == Some(name.as_str()) && others(like).eq(others(comparison))
    };
    let point = |it: &Comparison| {
        let machine = machines.get(it.setting.get(KEY)?.as_str())?;
        let figures = machine.guesses().into_iter().map(|guess| (guess.key, guess.value)).collect();
        let choices = machine.chosen().into_iter().map(|(key, value)| (key.into(), value.into())).collect();
        Some(Point { figures, choices, ratio: it.ratio.clone() })
    };
    let nominal = point(comparison)?;
    let points: Vec<Point> = likes.iter().filter(is_of_it).filter_map(point).collect();
    let robustness = match robustness(&nominal, &points) {
        // No finding: the correction took it back, or it was not simulated on all machines.
        Robustness::Robust if !comparison.verdict.is_difference() || points.len() < asked => {
            Robustness::Undetermined
        }
        other => other,
    };
    let flips_at = match robustness {
        Robustness::Flips => suspect(&nominal, &points).map(|(key, value)| format!("{key} = {value}")),
        Robustness::Robust | Robustness::Undetermined => None,
    };
    Some(Sensitivity { robustness, flips_at, points: points.len() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::findings::findings;
    use crate::measure::synthetic::{Shape, Sketch, World};
    use crate::record::figures::{ACQUISITIONS, THROUGHPUT};
    use crate::settings::machines;

    const MACHINES: [&str; 5] =
        ["nehalem-2s", "nehalem-2s~1/4", "nehalem-2s~2/4", "nehalem-2s~3/4", "nehalem-2s~4/4"];

    /// Two arms in six blocks on a machine and on four like it, with the ratio of the arms on each.
    fn summary(ratios: [f64; 5]) -> Summary {
        let sketch = Sketch::two().axis("machine", &MACHINES).axis("engine", &["sim"]).axis("ratio", &["1"]);
        let plan = sketch.compared().plan(6);
        let mut records = World::new(1).truth(|_| 1e5).shape(Shape::LogNormal(0.01)).records(&plan);
        for record in &mut records {
            let place = record.placed();
            let number = MACHINES.iter().position(|name| *name == place.setting["machine"]).unwrap();
            let factor = if place.arm == "b" { ratios[number] } else { 1.0 };
            record.settings.set("machine_sha256", MACHINES[number]);
            record.files = [(MACHINES[number].into(), machines::find(MACHINES[number]).unwrap().text)].into();
            for name in [ACQUISITIONS, THROUGHPUT] {
                let value = (record.amount(name) * factor).floor();
                record.figures.set(name, value);
            }
            record.trusted = true;
        }
        Summary::new(&plan.outline, &records)
    }

    #[test]
    fn only_what_holds_on_all_machines_is_a_finding() {
        for (ratios, word, part) in [
            ([1.5, 1.4, 1.6, 1.2, 1.5], "robust", "faster, up to 1."),
            ([0.7, 0.6, 0.8, 0.7, 0.6], "robust", "slower, down to 0."),
            ([1.5, 1.4, 1.6, 0.7, 1.5], "flips at ", "1 flips or is undetermined"),
            ([0.7, 0.6, 1.6, 0.7, 0.6], "flips at ", "1 flips or is undetermined"),
            ([1.5, 1.0, 1.6, 0.7, 1.5], "flips at ", "1 flips or is undetermined"),
            ([1.5, 1.4, 1.6, 1.0, 1.5], "undetermined", "1 flips or is undetermined"),
            // A point without a figure, and a machine without a difference.
            ([1.5, 1.4, 1.6, 0.0, 1.5], "undetermined", "1 flips or is undetermined"),
            ([1.0, 1.4, 1.6, 1.2, 1.5], "undetermined", "no difference is shown"),
        ] {
            let summary = summary(ratios);
            assert_eq!(summary.comparisons.len(), 1, "machines like it have no rows of their own");
            assert!(summary.rows.iter().all(|row| row.setting["machine"] == "nehalem-2s"));
            assert_eq!(summary.outline.axes[0].values, ["nehalem-2s"]);
            let sensitivity = summary.comparisons[0].sensitivity.as_ref().expect("it was asked for");
            assert_eq!(sensitivity.points, 4);
            assert!(sensitivity.word().starts_with(word), "{ratios:?}: {}", sensitivity.word());
            let text = findings(&summary).remove(0).text;
            assert!(text.contains(part), "{ratios:?}: {text}");
            assert!(word == "robust" || !text.contains("er, "), "{ratios:?}: {text}");
        }
    }

    /// A point at which five seeds gave ratios near this one, within a percent.
    fn point(ratio: f64, figures: &[(&str, f64)], placement: &str) -> Point {
        let each = [0.99, 0.995, 1.0, 1.005, 1.01].map(|share| share * ratio);
        let figures = figures.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect();
        let choices = BTreeMap::from([("placement".to_owned(), placement.to_owned())]);
        Point { figures, choices, ratio: Estimate::of_positive(&each) }
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
