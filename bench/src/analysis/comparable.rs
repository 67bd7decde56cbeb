//! The figures that two directories of an experiment are compared by, and which changes are a loss.

use std::collections::BTreeSet;

use crate::experiment::measure::Measure;
use crate::experiment::outline::Outline;
use crate::record::linux::LinuxRecord;

/// The better direction of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Better {
    More,
    Less,
}

/// The figures by which the experiment compares its arms; where it compares none, all but events of locks.
pub(super) fn figures(outline: &Outline, records: &[LinuxRecord]) -> Vec<Measure> {
    let mut measures: Vec<Measure> = Vec::new();
    for it in &outline.comparisons {
        if !measures.contains(&it.of) {
            measures.push(it.of.clone());
        }
    }
    if measures.is_empty() {
        let names: BTreeSet<&String> = records.iter().flat_map(|record| record.figures.keys()).collect();
        measures = names.into_iter().map(|name| Measure::Figure(name.clone())).collect();
    }
    measures
}

/// Rates and times say it by their units.
pub(super) fn better_by_unit(measure: &Measure, records: &[LinuxRecord]) -> Option<Better> {
    let name = measure.figure()?;
    let units: BTreeSet<String> =
        records.iter().filter_map(|record| record.named().remove(name)).map(|(_, unit)| unit).collect();
    let better = |unit: &str| match unit {
        "ns" | "us" | "µs" | "ms" | "s" | "min" | "h" => Some(Better::Less),
        unit if unit.ends_with("/s") => Some(Better::More),
        _ => None,
    };
    match &Vec::from_iter(units)[..] {
        [unit] => better(unit),
        _ => None,
    }
}
