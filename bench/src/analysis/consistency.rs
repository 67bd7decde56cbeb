//! A set of records as such: which of several attempts at a run count, and oddities: cells that are there twice, pairs that are
//! not pairs, several hosts.

use std::collections::{BTreeMap, BTreeSet};

use crate::experiment::measure::Measure;
use crate::experiment::outline::Outline;
use crate::host::noise::BUSY_NEIGHBOUR;
use crate::record::Record;
use crate::record::place::Role;

/// Warnings about them, for a summary.
pub(crate) fn warnings(outline: &Outline, records: &[Record]) -> Vec<String> {
    let hosts: BTreeSet<String> = records.iter().map(|record| record.host.identity()).collect();
    let mut warnings = Vec::new();
    let twice = repeated(records);
    if let [first, ..] = &twice[..] {
        warnings.push(format!(
            "{} runs are there twice, such as {first}: the later one counts; two processes may have written here",
            twice.len()
        ));
    }
    if hosts.len() > 1 {
        warnings.push(format!(
            "records come from {} hosts: a ratio is made of runs of one host, a level mixes them",
            hosts.len()
        ));
        let torn = torn_pairs(outline, records);
        if torn > 0 {
            warnings.push(format!(
                "{torn} pairs have their runs on different hosts and are left out: run all cells of a block on one host"
            ));
        }
    }
    warnings
}

/// Cells that were run more than once in one block on one host, but for lock-free ones, which go along with any other.
fn repeated(records: &[Record]) -> Vec<String> {
    let mut runs: BTreeMap<(String, &str, u32), BTreeSet<&str>> = BTreeMap::new();
    for record in records {
        let Some(place) = record.place.as_ref().filter(|place| place.role != Role::Ideal) else { continue };
        let run = (record.host.identity(), place.cell_id.as_str(), place.block);
        runs.entry(run).or_default().insert(&*record.run_id);
    }
    let twice = runs.into_iter().filter(|(_, ids)| ids.len() > 1);
    twice.map(|((_, cell, block), _)| format!("{cell} in block {block}")).collect()
}

/// Pairs of compared arms that one block has both of, but on different hosts.
fn torn_pairs(outline: &Outline, records: &[Record]) -> usize {
    type Where<'a> = (&'a BTreeMap<String, String>, u32, &'a str);
    let mut hosts: BTreeMap<Where<'_>, BTreeSet<String>> = BTreeMap::new();
    for record in records {
        let Some(place) = record.place.as_ref().filter(|place| place.role != Role::Control) else { continue };
        let run = (&place.setting, place.block, place.arm.as_str());
        hosts.entry(run).or_default().insert(record.host.identity());
    }
    let is_torn = |comparison: &crate::experiment::outline::OutlineComparison| {
        let (arm, baseline) = (comparison.arm.as_str(), comparison.baseline.as_str());
        let of_arm = hosts.iter().filter(|((.., of), _)| *of == arm);
        of_arm
            .filter(|((setting, block, _), here)| {
                hosts.get(&(*setting, *block, baseline)).is_some_and(|there| here.is_disjoint(there))
            })
            .count()
    };
    outline.comparisons.iter().map(is_torn).sum()
}

/// Warnings that say that the host disturbed the run: another attempt may go better. What lies in the run itself would come
/// again.
const DISTURBANCES: [&str; 7] =
    [BUSY_NEIGHBOUR, "host-steal", "pinning-lost", "stopped", "window-missed", "work-off", "work-uneven"];

/// Whether another attempt may go better.
pub(crate) fn is_disturbed(record: &Record) -> bool {
    record.warnings.iter().any(|warning| DISTURBANCES.contains(&warning.code.as_str()))
}

/// Runs that one kind of disturbance spoilt.
#[derive(Debug, PartialEq)]
pub(crate) struct Spoilt {
    /// Code of the warning.
    pub(crate) by: &'static str,
    /// The warning of one of the runs.
    pub(crate) told: String,
    pub(crate) runs: usize,
    /// All runs that count.
    pub(crate) of: usize,
}

/// The disturbance that spoilt at least nine tenths of the runs that count, if one did: for comparisons, too.
pub(crate) fn spoilt(records: &[Record]) -> Option<Spoilt> {
    let last = last_attempts(records);
    let compares = |run: &&Record| {
        run.neighbours_share().is_some_and(|share| share <= Measure::Throughput.neighbours_limit())
    };
    let told_by = |code: &str| {
        let spoilt = last.iter().filter(|run| !compares(run));
        let warnings = spoilt.filter_map(|run| run.warnings.iter().find(|it| it.code == code));
        warnings.map(|warning| &warning.message).collect::<Vec<_>>()
    };
    let by = DISTURBANCES.into_iter().max_by_key(|code| told_by(code).len())?;
    let (told, of) = (told_by(by), last.len());
    (told.len() * 10 >= of * 9).then_some(())?;
    Some(Spoilt { by, told: (*told.first()?).clone(), runs: told.len(), of })
}

/// The records that count: all but those that a later attempt replaces, whatever that found.
pub(crate) fn last_attempts(records: &[Record]) -> Vec<Record> {
    let places = records.iter().filter_map(|record| record.place.as_ref());
    let replaced: BTreeSet<&str> = places.flat_map(|place| &place.replaces).map(String::as_str).collect();
    records.iter().filter(|record| !replaced.contains(record.run_id.as_str())).cloned().collect()
}

/// How many runs those that count have replaced.
pub(crate) fn replaced(records: &[Record]) -> usize {
    let places = records.iter().filter_map(|record| record.place.as_ref());
    places.flat_map(|place| &place.replaces).collect::<BTreeSet<_>>().len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::synthetic::{Sketch, World};

    #[test]
    fn runs_that_are_there_twice_are_reported_and_others_are_not() {
        let plan = Sketch::new().arm("a", "tas").control("a").plan(3);
        let mut records = World::new(1).records(&plan);
        assert_eq!(warnings(&plan.outline, &records), [""; 0]);
        let mut again = records[1].clone();
        again.run_id = "another".into();
        records.push(again);
        let warnings = warnings(&plan.outline, &records);
        assert!(warnings[0].starts_with("1 runs are there twice, such as a"), "{warnings:?}");
    }
}
