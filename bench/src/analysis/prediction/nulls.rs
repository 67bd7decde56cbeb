//! Predictors that know nothing of cache lines, next to those that are simulated: what they get right as well, a simulation of
//! lines cannot take credit for.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Cell;
use crate::analysis::statistics::median;

/// One predictor of all cells.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Predictor {
    /// Directory of its simulated runs, or what it assumes.
    pub(crate) name: String,
    /// Whether it leaves out what is to be validated.
    pub(crate) is_null: bool,
    /// All cells, and those of one and of two and more pCPUs, at ratio 1 and above.
    pub(crate) groups: Vec<Group>,
}

/// Cells that have something in common.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Group {
    /// The common trait.
    pub(crate) name: String,
    /// Cells with both figures.
    pub(crate) cells: usize,
    /// Cells within 25 %.
    pub(crate) near: usize,
}

impl Group {
    /// The share of near cells; none without cells.
    pub(crate) fn share(&self) -> Option<f64> {
        (self.cells > 0).then(|| self.near as f64 / self.cells as f64)
    }
}

/// A group's name, and what it takes in.
type Trait = (&'static str, fn(&Cell) -> bool);

/// The groups: one pCPU has no other one to move lines to, and at ratio 1 each vCPU has a pCPU to itself.
const GROUPS: [Trait; 5] = [
    ("all", |_| true),
    ("1 pCPU, ratio 1", |cell| cell.pcpus == 1 && !is_overcommitted(cell)),
    ("1 pCPU, above", |cell| cell.pcpus == 1 && is_overcommitted(cell)),
    ("more pCPUs, ratio 1", |cell| cell.pcpus > 1 && !is_overcommitted(cell)),
    ("more pCPUs, above", |cell| cell.pcpus > 1 && is_overcommitted(cell)),
];

fn is_overcommitted(cell: &Cell) -> bool {
    cell.vcpus as usize > cell.pcpus
}

impl Predictor {
    pub(crate) fn new(name: impl Into<String>, is_null: bool, cells: &[Cell]) -> Self {
        let group = |(name, is_in): Trait| {
            let cells = cells.iter().filter(|cell| is_in(cell));
            let near = cells.clone().filter(|cell| cell.is_near).count();
            Group { name: name.into(), cells: cells.count(), near }
        };
        Self { name: name.into(), is_null, groups: GROUPS.map(group).to_vec() }
    }

    /// The share of all cells that are near; none without cells.
    pub(crate) fn share(&self) -> Option<f64> {
        self.groups[0].share()
    }
}

/// The predictors that take from a simulation only its median: of all arms at a setting, and of all cells at a ratio.
pub(super) fn of_medians(cells: &[Cell]) -> [Predictor; 2] {
    let by_setting = |cell: &Cell| format!("{:?}", cell.setting);
    let by_ratio = |cell: &Cell| format!("{}", f64::from(cell.vcpus) / cell.pcpus as f64);
    [
        Predictor::new("all arms equal", true, &with_medians(cells, by_setting)),
        Predictor::new("the ratio alone", true, &with_medians(cells, by_ratio)),
    ]
}

/// The cells with the median prediction of all with the same key.
fn with_medians(cells: &[Cell], key: impl Fn(&Cell) -> String) -> Vec<Cell> {
    let mut predictions: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    cells.iter().for_each(|cell| predictions.entry(key(cell)).or_default().push(cell.predicted));
    cells.iter().map(|cell| cell.with_prediction(median(&predictions[&key(cell)]))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::statistics::Estimate;

    fn cell(setting: &str, (pcpus, vcpus): (usize, u32), measured: f64, predicted: f64) -> Cell {
        let setting = BTreeMap::from([("hold".to_owned(), setting.to_owned())]);
        let measured = Estimate::of_positive(&[measured; 3]).expect("three figures");
        let cell =
            Cell { setting, arm: "a".into(), pcpus, vcpus, measured, predicted, factor: 0.0, is_near: false };
        cell.with_prediction(predicted)
    }

    #[test]
    fn nulls_predict_the_median_of_what_they_know() {
        // Arms differ at the first setting, and at the second of the same ratio all are slow.
        let cells = [
            cell("short", (2, 4), 1.0, 1.0),
            cell("short", (2, 4), 0.5, 0.5),
            cell("short", (2, 4), 0.9, 0.9),
            cell("long", (2, 4), 0.1, 0.1),
            cell("short", (1, 1), 1.0, 1.0),
        ];
        let simulated = Predictor::new("simulated", false, &cells);
        let near =
            |predictor: &Predictor| predictor.groups.iter().map(|it| (it.near, it.cells)).collect::<Vec<_>>();
        assert_eq!(near(&simulated), [(5, 5), (1, 1), (0, 0), (0, 0), (4, 4)]);
        let [equal, ratio] = of_medians(&cells);
        assert_eq!(near(&equal), [(4, 5), (1, 1), (0, 0), (0, 0), (3, 4)], "0.9 for 0.5 is off");
        // 0.7 for 1.0, 0.5, 0.9 and 0.1: near 0.9 alone.
        assert_eq!(near(&ratio), [(2, 5), (1, 1), (0, 0), (0, 0), (1, 4)]);
        assert!(equal.is_null && ratio.is_null && !simulated.is_null);
        assert_eq!(simulated.share(), Some(1.0));
        assert_eq!(Predictor::new("nothing", true, &[]).share(), None);
    }
}
