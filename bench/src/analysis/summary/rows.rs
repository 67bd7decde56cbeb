//! One row per setting and arm, and where guests vary one for all guests that run at once.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::Setting;
use super::compared::Placed;
use crate::analysis::rate::{self, Rate};
use crate::analysis::statistics::{self, Estimate};
use crate::experiment::measure::Measure;
use crate::experiment::outline::Outline;
use crate::record::Record;
use crate::record::figures::{EFFICIENCY, Figure, IDEAL, LOCK_EVENT, OF_ALL_GUESTS, THROUGHPUT, WAIT_P99};
use crate::record::place::{BESIDE, Role};

/// One arm at one setting.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Row {
    /// Settings that vary.
    pub(crate) setting: BTreeMap<String, String>,
    /// The arm.
    pub(crate) arm: String,
    /// Purpose of the row.
    pub(crate) role: Role,
    /// vCPUs; of all guests, where the row is one of all of them.
    pub(crate) vcpus: u32,
    /// pCPUs.
    pub(crate) pcpus: usize,
    /// Runs.
    pub(crate) runs: usize,
    /// Number of these runs that are invalid.
    pub(crate) invalid_runs: usize,
    /// Figures by name: those that `haltkick list figures` gives an estimate, and what kernels printed, events of their locks with
    /// `lock_event.` before the name.
    pub(crate) figures: BTreeMap<String, Told>,
    /// Names of the figures of this row that are lower bounds, since waits that had not ended decide them.
    pub(crate) at_least: Vec<String>,
    /// Blocks whose throughput lies far from the others'.
    pub(crate) outlier_blocks: Vec<u32>,
}

/// A figure over all runs of a cell.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Told {
    /// Its unit.
    pub(crate) unit: String,
    /// Runs that have it.
    pub(crate) runs: usize,
    /// The least.
    pub(crate) least: f64,
    /// Arithmetic mean.
    pub(crate) mean: f64,
    /// Median.
    pub(crate) median: f64,
    /// The most.
    pub(crate) most: f64,
    /// Estimate over all runs with its interval; null if half of the runs or more do not have it, a guest did not print it each time, or
    /// not all values are positive.
    pub(crate) estimate: Option<Estimate>,
}

impl Row {
    pub(crate) fn figure(&self, name: &str) -> Option<&Told> {
        self.figures.get(name)
    }

    pub(crate) fn estimate(&self, name: &str) -> Option<&Estimate> {
        self.figures.get(name)?.estimate.as_ref()
    }
}

pub(super) fn rows(outline: &Outline, settings: &[Setting], placed: &Placed<'_>) -> Vec<Row> {
    let at = |setting| {
        let cells = arms(outline, setting, placed).flat_map(|arm| [(arm, false), (arm, true)]);
        cells.filter_map(move |(arm, control)| {
            row(setting, arm, &placed.of(setting, arm, control).collect::<Vec<_>>())
        })
    };
    settings.iter().flat_map(at).collect()
}

/// A row for all guests of an arm, where their number varies.
pub(super) fn together(outline: &Outline, settings: &[Setting], placed: &Placed<'_>) -> Vec<Row> {
    if outline.axes.iter().all(|axis| axis.key != "guests") {
        return vec![];
    }
    let at = |setting| {
        let whole = arms(outline, setting, placed).filter(|arm| !arm.contains(BESIDE));
        whole.filter_map(move |arm| {
            let firsts: Vec<_> = placed.of(setting, arm, false).collect();
            let row = row(setting, arm, &firsts)?;
            Some(Row {
                vcpus: placed.guests(firsts[0].1).iter().map(|guest| guest.settings.vcpus()).sum(),
                figures: of_all_guests(placed, &firsts),
                at_least: vec![],
                outlier_blocks: vec![],
                ..row
            })
        })
    };
    settings.iter().flat_map(at).collect()
}

fn of_all_guests(placed: &Placed<'_>, firsts: &[(u32, &Record)]) -> BTreeMap<String, Told> {
    let measures = [Measure::AllGuests, Measure::SlowestGuest, Measure::SlowestVcpu];
    let of_measures = measures.iter().zip(OF_ALL_GUESTS).filter_map(|(measure, name)| {
        let rates = all(firsts, |record| placed.rate(measure, record))?;
        Some((name.to_owned(), told(&rate::values(&rates), "1/s", rate::estimate(&rates))?))
    });
    let longest =
        |first: &Record| placed.guests(first).iter().filter_map(|it| it.figure(WAIT_P99)).reduce(f64::max);
    let p99: Vec<f64> = firsts.iter().filter_map(|(_, record)| longest(record)).collect();
    let of_waits = told(&p99, "ns", of_most(&p99, firsts.len()));
    of_measures.chain(of_waits.map(|it| (OF_ALL_GUESTS[3].to_owned(), it))).collect()
}

/// The lock-free arms of a setting, then the others.
fn arms<'a>(
    outline: &'a Outline,
    setting: &Setting,
    placed: &Placed<'a>,
) -> impl Iterator<Item = &'a str> + use<'a> {
    let ideals: BTreeSet<&str> = placed
        .cells
        .iter()
        .filter(|((of, ..), record)| *of == setting && role(record) == Some(Role::Ideal))
        .map(|((_, arm, ..), _)| *arm)
        .collect();
    ideals.into_iter().chain(outline.arms.iter().map(String::as_str))
}

fn role(record: &Record) -> Option<Role> {
    record.place.as_ref().map(|place| place.role)
}

fn row(setting: &Setting, arm: &str, records: &[(u32, &Record)]) -> Option<Row> {
    let (_, first) = records.first()?;
    let at_least: BTreeSet<&String> = records.iter().flat_map(|(_, record)| &record.at_least).collect();
    Some(Row {
        setting: setting.clone(),
        arm: arm.into(),
        role: role(first)?,
        vcpus: first.settings.vcpus(),
        pcpus: first.settings.pcpus(),
        runs: records.len(),
        invalid_runs: records.iter().filter(|(_, record)| !record.trusted).count(),
        figures: figures(records),
        at_least: at_least.into_iter().cloned().collect(),
        outlier_blocks: outlier_blocks(records),
    })
}

fn figures(records: &[(u32, &Record)]) -> BTreeMap<String, Told> {
    let is_told = |record: &Record, name: &str| {
        let is_printed = record.units.contains_key(name) || name.starts_with(LOCK_EVENT);
        is_printed || Figure::find(name).is_some_and(|row| row.center.is_some())
    };
    let names = records.iter().flat_map(|(_, record)| {
        record.named().map(|(name, _)| name).filter(move |name| is_told(record, name))
    });
    let names: BTreeSet<String> = names.collect();
    names.into_iter().filter_map(|name| figure(&name, records).map(|it| (name, it))).collect()
}

/// A figure over all runs of a cell; none where no run has it.
pub(super) fn figure(name: &str, records: &[(u32, &Record)]) -> Option<Told> {
    let values: Vec<f64> = records.iter().filter_map(|(_, record)| record.figure(name)).collect();
    let (_, last) = records.iter().rev().find(|(_, record)| record.figure(name).is_some())?;
    let is_printed = last.units.contains_key(name) || name.starts_with(LOCK_EVENT);
    let estimate = match name {
        THROUGHPUT => all(records, Rate::of).and_then(|rates| rate::estimate(&rates)),
        EFFICIENCY => {
            all(records, efficiency).and_then(|rates| rate::estimate(&rates)).filter(|it| is_share(last, it))
        }
        _ if is_printed && values.len() < records.len() => None,
        _ => of_most(&values, records.len()),
    };
    told(&values, last.unit(name), estimate)
}

fn told(values: &[f64], unit: &str, estimate: Option<Estimate>) -> Option<Told> {
    (!values.is_empty()).then(|| Told {
        unit: unit.into(),
        runs: values.len(),
        least: values.iter().copied().fold(f64::INFINITY, f64::min),
        mean: values.iter().sum::<f64>() / values.len() as f64,
        median: statistics::median(values),
        most: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        estimate,
    })
}

/// A figure that a run without acquisitions cannot have is that of the others.
fn of_most(values: &[f64], runs: usize) -> Option<Estimate> {
    if 2 * values.len() > runs { Estimate::of_positive(values) } else { None }
}

/// The rates of all runs, if each has one.
fn all(records: &[(u32, &Record)], rate: impl Fn(&Record) -> Option<Rate>) -> Option<Vec<Rate>> {
    records.iter().map(|(_, record)| rate(record)).collect()
}

fn efficiency(record: &Record) -> Option<Rate> {
    Some(Rate::of(record)?.over(Rate::exact(record.figure(IDEAL)?)?))
}

/// Whether an efficiency is a share of what can be had: sections without a lock overlap, and are no share of what one lock allows.
fn is_share(record: &Record, efficiency: &Estimate) -> bool {
    const NEAR: f64 = 1.05;
    role(record) != Some(Role::Ideal) || efficiency.hodges_lehmann < NEAR
}

/// Blocks whose throughput lies far from the others' on the same host.
fn outlier_blocks(records: &[(u32, &Record)]) -> Vec<u32> {
    let mut hosts: BTreeMap<String, (Vec<u32>, Vec<f64>)> = BTreeMap::new();
    for (block, record) in records {
        let Some(throughput) = record.figure(THROUGHPUT) else { continue };
        let (blocks, throughputs) = hosts.entry(record.host.identity()).or_default();
        blocks.push(*block);
        throughputs.push(throughput);
    }
    let mut outliers = Vec::new();
    for (blocks, throughputs) in hosts.values() {
        outliers.extend(statistics::outliers(throughputs).into_iter().map(|i| blocks[i]));
    }
    outliers.sort_unstable();
    outliers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::synthetic::{Sketch, World};

    #[test]
    fn guests_that_run_at_once_have_a_row_together() {
        let sketch = Sketch::two().axis("guests", &["1", "3"]);
        let plan = sketch.plan(4);
        let world = World::new(1).truth(|asked| if asked.index == 1 { 1e5 } else { 1e6 });
        let summary = world.summary(&plan);
        let of_three = |arm: &str| {
            let is_it = |row: &&Row| row.arm == arm && row.setting["guests"] == "3";
            let row = summary.together.iter().find(is_it).expect("a row for each arm");
            let figure = |name: &str| row.estimate(name).map(|it| (it.hodges_lehmann / 1e5).round());
            (row.runs, figure(OF_ALL_GUESTS[0]), figure(OF_ALL_GUESTS[1]))
        };
        for arm in ["a", "b"] {
            assert_eq!(of_three(arm), (4, Some(21.0), Some(1.0)));
        }
        // Two arms and the lock-free cell, at two settings.
        assert_eq!(summary.together.len(), 6);
    }
}
