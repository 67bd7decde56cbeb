//! How well a simulation foretells real runs: cell by cell, and whether it puts the locks into the same order.
//!
//! Compares efficiency, throughput over that of lock-free runs of the same engine: the cost of a section alone depends
//! on the host and on the machine file, and is not predicted.

mod kendall;
mod nulls;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::analysis::rate::Rate;
use crate::analysis::statistics::{Estimate, median};
use crate::analysis::summary::{Row, Summary};
use crate::record::Record;
use crate::record::figures::{EFFICIENCY, IDEAL};
use crate::record::place::Role;

use kendall::{concordance, mean_of_pairs, tau_b};
pub(crate) use nulls::{Group, Predictor};

/// A prediction that is off by at most this share of what was measured is near. Sniper, a simulator of many cores, states
/// this for itself (docs/sources.md).
pub(crate) const NEAR: f64 = 0.25;

/// One arm at one setting.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Cell {
    /// Settings that vary.
    pub(crate) setting: BTreeMap<String, String>,
    /// The arm.
    pub(crate) arm: String,
    /// pCPUs.
    pub(crate) pcpus: usize,
    /// vCPUs.
    pub(crate) vcpus: u32,
    /// Efficiency of the real runs.
    pub(crate) measured: Estimate,
    /// Efficiency of the simulated ones.
    pub(crate) predicted: f64,
    /// Predicted over measured.
    pub(crate) factor: f64,
    /// Whether the prediction is within 25 % of what was measured.
    pub(crate) is_near: bool,
}

/// All arms at one setting.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Order {
    /// Settings that vary.
    pub(crate) setting: BTreeMap<String, String>,
    /// Arms with both figures.
    pub(crate) arms: usize,
    /// Kendall's tau-b of the arms' measured and predicted efficiency; null with fewer than two arms, or where all are
    /// equal.
    pub(crate) tau: Option<f64>,
    /// Mean tau-b of each measured block of runs with each predicted one; null with fewer than two arms in a block.
    pub(crate) tau_of_runs: Option<f64>,
    /// Mean tau-b of each measured block with each other one: how well the host agrees with itself. Null with fewer than
    /// two blocks.
    pub(crate) tau_of_measured_runs: Option<f64>,
    /// Pairs of arms whose measured 95 % intervals do not overlap.
    pub(crate) told_apart: usize,
    /// (Agreeing - disagreeing) / all, of those pairs alone; null without any.
    pub(crate) tau_told_apart: Option<f64>,
    /// Cells within 25 %.
    pub(crate) near: usize,
    /// Median of predicted over measured.
    pub(crate) median_factor: f64,
}

/// A simulation next to real runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Prediction {
    /// "haltkick.prediction".
    pub(crate) schema: String,
    /// 1.
    pub(crate) schema_version: u32,
    /// All cells with both figures, those that are off farthest first.
    pub(crate) cells: Vec<Cell>,
    /// In the order of the experiment.
    pub(crate) orders: Vec<Order>,
    /// Cells of both without a figure on one side, such as a lock that completed no section.
    pub(crate) without_figure: usize,
    /// Share of the cells within 25 %; null without cells.
    pub(crate) near_share: Option<f64>,
    /// The least tau of all settings.
    pub(crate) least_tau: Option<f64>,
    /// All simulations that were put next to the real runs, the worst first, which the figures above are of; then what predicts
    /// without lines.
    pub(crate) predictors: Vec<Predictor>,
}

/// The runs of one side, and what they come to.
pub(crate) struct Side {
    pub(crate) summary: Summary,
    /// Efficiencies of each setting: by block, and by arm.
    runs: BTreeMap<Setting, BTreeMap<u32, Efficiencies>>,
}

type Setting = BTreeMap<String, String>;

/// By the arm's name.
type Efficiencies = BTreeMap<String, f64>;

impl Side {
    /// `records` are those that `summary` was made of.
    pub(crate) fn new(summary: Summary, records: &[Record]) -> Self {
        let mut runs: BTreeMap<Setting, BTreeMap<u32, Efficiencies>> = BTreeMap::new();
        for record in records {
            let Some(place) = record.place.as_ref().filter(|place| place.role == Role::Arm) else { continue };
            let Some((rate, ideal)) = Rate::of(record).zip(record.figure(IDEAL)) else { continue };
            let efficiency = rate.per_second / ideal;
            let blocks = runs.entry(place.setting.clone()).or_default();
            blocks.entry(place.block).or_default().insert(place.arm.clone(), efficiency);
        }
        Self { summary, runs }
    }

    fn blocks(&self, setting: &Setting) -> Vec<&Efficiencies> {
        self.runs.get(setting).into_iter().flat_map(BTreeMap::values).collect()
    }
}

impl Prediction {
    pub(crate) fn new(real: &Side, simulated: &Side) -> Self {
        let (measured, predicted) = (&real.summary, &simulated.summary);
        let mut cells: Vec<Cell> = Vec::new();
        let mut without_figure = 0;
        for row in measured.rows.iter().filter(|row| row.role == Role::Arm) {
            let Some(other) = predicted.row(&row.setting, &row.arm) else { continue };
            match Cell::new(row, other) {
                Some(cell) => cells.push(cell),
                None => without_figure += 1,
            }
        }
        let mut settings: Vec<_> = cells.iter().map(|cell| &cell.setting).collect();
        settings.sort_by_key(|setting| measured.outline.rank(setting));
        settings.dedup();
        let of = |setting: &Setting| -> Vec<&Cell> {
            cells.iter().filter(|cell| cell.setting == *setting).collect()
        };
        let orders: Vec<Order> = settings
            .into_iter()
            .map(|setting| Order::new(&of(setting), &real.blocks(setting), &simulated.blocks(setting)))
            .collect();
        let near = cells.iter().filter(|cell| cell.is_near).count();
        let near_share = (!cells.is_empty()).then(|| near as f64 / cells.len() as f64);
        let least_tau = orders.iter().filter_map(|order| order.tau).min_by(f64::total_cmp);
        cells.sort_by(|a, b| b.factor.ln().abs().total_cmp(&a.factor.ln().abs()));
        Self {
            schema: "haltkick.prediction".into(),
            schema_version: 1,
            cells,
            orders,
            without_figure,
            near_share,
            least_tau,
            predictors: vec![],
        }
    }

    /// The worst of several simulations, each with its name and whether lines cost nothing in it, with all of them and their nulls
    /// for comparison. None without any in which lines cost something.
    pub(crate) fn worst(real: &Side, simulated: &[(String, bool, Side)]) -> Option<Self> {
        let predict = |(name, is_null, side): &(String, bool, Side)| {
            let prediction = Self::new(real, side);
            (Predictor::new(name.as_str(), *is_null, &prediction.cells), prediction)
        };
        let mut found: Vec<(Predictor, Self)> = simulated.iter().map(predict).collect();
        let share = |predictor: &Predictor| predictor.share().unwrap_or(0.0);
        found.sort_by(|(a, _), (b, _)| a.is_null.cmp(&b.is_null).then(share(a).total_cmp(&share(b))));
        let (predictors, predictions): (Vec<_>, Vec<_>) = found.into_iter().unzip();
        let worst =
            predictions.into_iter().next().filter(|_| predictors.first().is_some_and(|it| !it.is_null))?;
        let nulls = nulls::of_medians(&worst.cells);
        Some(Self { predictors: predictors.into_iter().chain(nulls).collect(), ..worst })
    }
}

impl Cell {
    fn new(real: &Row, simulated: &Row) -> Option<Self> {
        let measured = real.estimate(EFFICIENCY).cloned()?;
        let predicted = simulated.estimate(EFFICIENCY)?.hodges_lehmann;
        let (pcpus, vcpus) = (real.pcpus, real.vcpus);
        let (setting, arm) = (real.setting.clone(), real.arm.clone());
        let cell = Self { setting, arm, pcpus, vcpus, measured, predicted, factor: 1.0, is_near: true };
        Some(cell.with_prediction(predicted))
    }

    /// The cell with another prediction.
    fn with_prediction(&self, predicted: f64) -> Self {
        let factor = predicted / self.measured.hodges_lehmann;
        Self { predicted, factor, is_near: (factor - 1.0).abs() <= NEAR, ..self.clone() }
    }

    /// Whether the real runs tell it apart from another cell.
    fn differs_from(&self, other: &Self) -> bool {
        let (Some(here), Some(there)) = (&self.measured.interval, &other.measured.interval) else {
            return false;
        };
        here.high < there.low || there.high < here.low
    }
}

impl Order {
    /// Compares all arms at one setting, which is at least one, and the blocks of runs that they were measured in.
    fn new(cells: &[&Cell], measured: &[&Efficiencies], predicted: &[&Efficiencies]) -> Self {
        let figures: Vec<_> =
            cells.iter().map(|cell| (cell.measured.hodges_lehmann, cell.predicted)).collect();
        let (mut told_apart, mut agreement) = (0, 0);
        for (index, a) in cells.iter().enumerate() {
            for b in cells[index + 1..].iter().filter(|b| a.differs_from(b)) {
                told_apart += 1;
                agreement += concordance(
                    (a.measured.hodges_lehmann, a.predicted),
                    (b.measured.hodges_lehmann, b.predicted),
                );
            }
        }
        let factors: Vec<f64> = cells.iter().map(|cell| cell.factor).collect();
        Self {
            setting: cells[0].setting.clone(),
            arms: cells.len(),
            tau: tau_b(&figures),
            tau_of_runs: mean_of_pairs(measured.iter().flat_map(|a| predicted.iter().map(move |b| (*a, *b)))),
            tau_of_measured_runs: mean_of_pairs(
                measured
                    .iter()
                    .enumerate()
                    .flat_map(|(n, a)| measured[n + 1..].iter().map(move |b| (*a, *b))),
            ),
            told_apart,
            tau_told_apart: (told_apart > 0).then(|| agreement as f64 / told_apart as f64),
            near: cells.iter().filter(|cell| cell.is_near).count(),
            median_factor: median(&factors),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::synthetic::{Shape, Sketch, World};

    /// Locks of a synthetic host, whose throughput at `ratio` is the product of both.
    fn side(seed: u64, truth: fn(&str) -> f64) -> Side {
        let sketch = Sketch::new().axis("ratio", &["1", "2"]);
        let sketch = sketch.arm("t", "tas").arm("m", "mcs").arm("k", "ticket");
        let plan = sketch.plan(6);
        let world =
            World::new(seed).truth(move |asked| 1e6 * truth(&asked.ours.lock)).shape(Shape::Normal(0.001));
        let records = world.records(&plan);
        Side::new(Summary::new(&plan.outline, &records), &records)
    }

    #[test]
    fn the_worst_simulation_stands_first_and_its_nulls_last() {
        let truth: fn(&str) -> f64 = |lock| if lock == "tas" { 1.0 } else { 0.5 };
        let half_right: fn(&str) -> f64 = |lock| if lock == "ticket" { 0.5 } else { 1.0 };
        let real = side(1, truth);
        let of = |name: &str, is_null, seed, truth| (name.to_owned(), is_null, side(seed, truth));
        let without_lines = of("without lines", true, 4, truth);
        assert!(Prediction::worst(&real, std::slice::from_ref(&without_lines)).is_none(), "that is a null");
        let all = [of("good", false, 2, truth), without_lines, of("bad", false, 3, half_right)];
        let found = Prediction::worst(&real, &all).expect("two simulations");
        let names: Vec<_> = found.predictors.iter().map(|it| (it.name.as_str(), it.is_null)).collect();
        assert_eq!(
            names,
            [
                ("bad", false),
                ("good", false),
                ("without lines", true),
                ("all arms equal", true),
                ("the ratio alone", true)
            ]
        );
        assert!((found.near_share.unwrap() - found.predictors[0].share().unwrap()).abs() < 1e-9);
        assert!(found.near_share.unwrap() < 0.8, "{:?}", found.near_share);
        assert_eq!(found.predictors[1].share(), Some(1.0));
    }

    #[test]
    fn the_farthest_cells_come_first_and_a_swapped_pair_lowers_tau() {
        let real = side(1, |lock| match lock {
            "tas" => 1.0,
            "mcs" => 0.5,
            "ticket" => 0.4,
            _ => 1.0,
        });
        let simulated = side(2, |lock| match lock {
            "tas" => 1.05,
            "mcs" => 0.3,
            "ticket" => 0.45,
            _ => 1.0,
        });
        let found = Prediction::new(&real, &simulated);
        assert_eq!(found.cells.len(), 6);
        assert_eq!(found.cells[0].arm, "m");
        assert!((found.cells[0].factor - 0.6).abs() < 0.02, "{:?}", found.cells[0]);
        assert_eq!(found.cells.iter().filter(|cell| cell.is_near).count(), 4);
        assert!((found.near_share.unwrap() - 4.0 / 6.0).abs() < 1e-9);
        let order = &found.orders[0];
        assert_eq!((order.arms, order.told_apart, order.near), (3, 3, 2));
        assert!((order.tau.unwrap() - 1.0 / 3.0).abs() < 1e-9, "{order:?}");
        // Six blocks of a host whose noise is far smaller than the differences.
        assert_eq!(order.tau_of_measured_runs, Some(1.0));
        assert!((order.tau_of_runs.unwrap() - 1.0 / 3.0).abs() < 1e-9, "{order:?}");
        assert_eq!(found.orders.len(), 2);
        assert_eq!(found.least_tau, order.tau);
    }

    #[test]
    fn a_host_that_cannot_tell_locks_apart_disagrees_with_itself() {
        let alike = |_: &str| 1.0;
        let found = Prediction::new(&side(1, alike), &side(2, alike));
        let of_host = found.orders.iter().map(|order| order.tau_of_measured_runs.unwrap()).sum::<f64>();
        assert!(of_host.abs() < 1.0, "{:?}", found.orders);
    }
}
