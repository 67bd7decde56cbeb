//! How well a simulation foretells real runs: cell by cell, and whether it puts the locks into the same order.
//!
//! What is put side by side is efficiency, throughput over that of lock-free runs of the same engine: what a section takes by
//! itself is the host's and the machine file's matter, not the simulated machine's.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use crate::analysis::statistics::{Estimate, median};
use crate::analysis::summary::{Row, Summary};
use crate::experiment::place::Role;

/// A prediction that is off by at most this share of what was measured is near. Sniper, a simulator of many cores, states
/// this for itself (docs/sources.md).
pub(crate) const NEAR: f64 = 0.25;

/// One arm at one setting.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
pub(crate) struct Cell {
    /// Settings that vary.
    pub(crate) setting: BTreeMap<String, String>,
    /// The arm.
    pub(crate) arm: String,
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
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
pub(crate) struct Order {
    /// Settings that vary.
    pub(crate) setting: BTreeMap<String, String>,
    /// Arms with both figures.
    pub(crate) arms: usize,
    /// Kendall's tau-b of the arms' measured and predicted efficiency; null with fewer than two arms, or where all are
    /// equal.
    pub(crate) tau: Option<f64>,
    /// Pairs of arms whose measured 95 % intervals do not overlap.
    pub(crate) told_apart: usize,
    /// (Agreeing - disagreeing) / all, of those pairs alone; null without any.
    pub(crate) tau_told_apart: Option<f64>,
    /// Cells within 25 %.
    pub(crate) near: usize,
    /// Median of predicted over measured.
    pub(crate) median_factor: f64,
}

/// A simulation beside real runs.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
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
}

impl Prediction {
    pub(crate) fn new(measured: &Summary, predicted: &Summary) -> Self {
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
        let of = |setting: &BTreeMap<String, String>| -> Vec<&Cell> {
            cells.iter().filter(|cell| cell.setting == *setting).collect()
        };
        let orders: Vec<Order> = settings.into_iter().map(|setting| Order::new(&of(setting))).collect();
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
        }
    }
}

impl Cell {
    fn new(real: &Row, simulated: &Row) -> Option<Self> {
        let measured = real.efficiency.clone()?;
        let predicted = simulated.efficiency.as_ref()?.hodges_lehmann;
        let factor = predicted / measured.hodges_lehmann;
        Some(Self {
            setting: real.setting.clone(),
            arm: real.arm.clone(),
            predicted,
            factor,
            is_near: (factor - 1.0).abs() <= NEAR,
            measured,
        })
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
    /// Of all arms at one setting, which is at least one.
    fn new(cells: &[&Cell]) -> Self {
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
            told_apart,
            tau_told_apart: (told_apart > 0).then(|| agreement as f64 / told_apart as f64),
            near: cells.iter().filter(|cell| cell.is_near).count(),
            median_factor: median(&factors),
        }
    }
}

/// 1 if both figures say the same of which of the two is greater, -1 if they say the contrary, 0 if one says neither.
fn concordance(a: (f64, f64), b: (f64, f64)) -> i64 {
    let sign = |x: f64, y: f64| x.total_cmp(&y) as i64;
    sign(a.0, b.0) * sign(a.1, b.1)
}

/// Kendall's tau-b of pairs of figures.
fn tau_b(figures: &[(f64, f64)]) -> Option<f64> {
    let (mut agreement, mut first_differ, mut second_differ) = (0, 0_u64, 0_u64);
    for (index, a) in figures.iter().enumerate() {
        for b in &figures[index + 1..] {
            agreement += concordance(*a, *b);
            first_differ += u64::from(a.0 != b.0);
            second_differ += u64::from(a.1 != b.1);
        }
    }
    let pairs = (first_differ as f64 * second_differ as f64).sqrt();
    (pairs > 0.0).then(|| agreement as f64 / pairs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::synthetic::{Shape, Sketch, World};

    #[test]
    fn tau_is_that_of_another_implementation() {
        // scipy.stats.kendalltau([1, 2, 3, 4, 5], [3, 1, 2, 5, 4]) and ([1, 2, 2, 3], [1, 2, 3, 3]).
        let tau = tau_b(&[(1.0, 3.0), (2.0, 1.0), (3.0, 2.0), (4.0, 5.0), (5.0, 4.0)]).unwrap();
        assert!((tau - 0.4).abs() < 1e-12, "{tau}");
        let tau = tau_b(&[(1.0, 1.0), (2.0, 2.0), (2.0, 3.0), (3.0, 3.0)]).unwrap();
        assert!((tau - 0.8).abs() < 1e-12, "{tau}");
        assert_eq!(tau_b(&[(1.0, 1.0)]), None);
        assert_eq!(tau_b(&[(1.0, 1.0), (1.0, 2.0)]), None);
    }

    /// Locks of a synthetic host, whose throughput at `ratio` is the product of both.
    fn summary(seed: u64, truth: fn(&str) -> f64) -> Summary {
        let sketch = Sketch::new().axis("ratio", &["1", "2"]);
        let sketch = sketch.arm("t", "tas").arm("m", "mcs").arm("k", "ticket");
        let plan = sketch.plan(6);
        let world =
            World::new(seed).truth(move |config| 1e6 * truth(&config.lock)).shape(Shape::Normal(0.001));
        Summary::new(&plan.outline, &world.records(&plan))
    }

    #[test]
    fn cells_that_are_off_farthest_come_first_and_a_swapped_pair_lowers_tau() {
        let real = summary(1, |lock| match lock {
            "tas" => 1.0,
            "mcs" => 0.5,
            "ticket" => 0.4,
            _ => 1.0,
        });
        let simulated = summary(2, |lock| match lock {
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
        assert_eq!(found.orders.len(), 2);
        assert_eq!(found.least_tau, order.tau);
    }
}
