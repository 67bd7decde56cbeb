//! The measures that two directories of an experiment are compared by, and which changes are a loss.

use std::collections::BTreeSet;

use crate::experiment::measure::Measure;
use crate::experiment::outline::Outline;
use crate::record::Record;
use crate::record::figures::Better;

/// The measures by which the experiment compares kernels; where it compares none, all that these printed. Locks are compared by their
/// throughput.
pub(crate) fn measures(outline: &Outline, records: &[Record]) -> Vec<Measure> {
    if !records.iter().any(Record::is_linux) {
        return vec![Measure::Throughput];
    }
    let mut measures: Vec<Measure> = Vec::new();
    for it in &outline.comparisons {
        if !measures.contains(&it.of) {
            measures.push(it.of.clone());
        }
    }
    if measures.is_empty() {
        let names: BTreeSet<&String> = records.iter().flat_map(|record| record.units.keys()).collect();
        measures = names.into_iter().map(|name| Measure::Printed(name.clone())).collect();
    }
    measures
}

/// The better direction of a measure; none where nothing tells it. Rates and times that a guest prints tell it by their units.
pub(crate) fn better(measure: &Measure, records: &[Record]) -> Option<Better> {
    let Measure::Printed(name) = measure else { return measure.better() };
    let units: BTreeSet<&str> = records
        .iter()
        .filter(|record| record.figure(name).is_some())
        .map(|record| record.unit(name))
        .collect();
    match &Vec::from_iter(units)[..] {
        ["ns" | "us" | "µs" | "ms" | "s" | "min" | "h"] => Some(Better::Less),
        [unit] if unit.ends_with("/s") => Some(Better::More),
        _ => None,
    }
}
