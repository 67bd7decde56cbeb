//! A set of records as such: which of several attempts at a run count, and oddities: cells that are there twice, several hosts.
//! Whether two sets can be compared: the same settings in the same cells, on the same host; by which measures they are compared, and
//! which changes are a loss.

use std::collections::{BTreeMap, BTreeSet};

use crate::experiment::measure::Measure;
use crate::experiment::outline::Outline;
use crate::host::noise::BUSY_NEIGHBOUR;
use crate::record::Record;
use crate::record::figures::Better;
use crate::record::place::{Place, Role};

pub(crate) fn warnings(records: &[Record]) -> Vec<String> {
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

/// The disturbance that spoilt at least nine tenths of the runs that count, if one did. Neighbours that used `limit` of the pCPUs or less
/// spoil nothing.
pub(crate) fn spoilt(records: &[Record], limit: f64) -> Option<Spoilt> {
    let last = last_attempts(records);
    let told_by = |code: &str| {
        let is_spoilt = |run: &&Record| run.neighbours_share().is_none_or(|share| share > limit);
        let spoilt = last.iter().filter(is_spoilt);
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
    let replaced = replaced(records);
    records.iter().filter(|record| !replaced.contains(record.run_id.as_str())).cloned().collect()
}

/// Runs that those that count have replaced.
pub(crate) fn replaced(records: &[Record]) -> BTreeSet<&str> {
    let places = records.iter().filter_map(|record| record.place.as_ref());
    places.flat_map(|place| &place.replaces).map(String::as_str).collect()
}

/// Settings that may differ: what is random, words for people, and where files lie; the manifest tells those apart.
const NO_SETTINGS: [&str; 6] = ["seed", "ring_reason", "pv_backend_reason", "cpus", "kernel", "initrd"];

/// Setting, arm, and whether it is the second half of the A/A pair.
type Cell<'a> = (&'a BTreeMap<String, String>, &'a str, bool);
/// The values of each setting, as text.
type Values = BTreeMap<String, BTreeSet<String>>;

/// Reasons why `a` and `b` cannot be compared, one phrase each; none if they can: settings of the cells that both have,
/// pCPUs and hosts.
pub(crate) fn differences(a: &[Record], b: &[Record]) -> Vec<String> {
    let mut differences = of_settings(a, b);
    let cpus = |record: &Record| record.settings.get("cpus").map_or(String::new(), ToString::to_string);
    let of_each = [("pCPUs", cpus as fn(&Record) -> String), ("host", |it| it.host.identity())];
    for (what, of) in of_each {
        let [a, b] = [a, b].map(|records| join(&records.iter().map(of).collect()));
        if a != b {
            differences.push(format!("{what} {a} and {b}"));
        }
    }
    differences
}

/// Cells that only one of them has, one phrase for each side. `failed` names cells whose runs on the other side are known to have
/// failed: in A, and in B.
pub(crate) fn cells_of_one<'a>(
    a: &'a [Record],
    b: &'a [Record],
    failed: [&BTreeSet<&str>; 2],
) -> Vec<String> {
    let mut differences = Vec::new();
    let [failed_in_a, failed_in_b] = failed;
    let places = |records: &'a [Record]| records.iter().filter_map(|record| record.place.as_ref());
    for (side, here, there, failed) in [("first", a, b, failed_in_b), ("second", b, a, failed_in_a)] {
        let there: BTreeSet<Cell<'_>> = places(there).map(cell).collect();
        let here = places(here).filter(|place| !failed.contains(&*place.cell_id)).map(cell);
        let only: BTreeSet<Cell<'_>> = here.filter(|cell| !there.contains(cell)).collect();
        let Some(one) = only.first().map(name) else { continue };
        let others = match only.len() {
            1 => String::new(),
            all => format!(" and {} cells more", all - 1),
        };
        differences.push(format!("only the {side} has {one}{others}"));
    }
    differences
}

/// Settings that differ in the cells that both have, but for which pCPUs they ran on.
pub(crate) fn of_settings(a: &[Record], b: &[Record]) -> Vec<String> {
    let (a, b) = (cells(a), cells(b));
    let mut differing: BTreeMap<(&str, String, String), usize> = BTreeMap::new();
    for (cell, of_a) in &a {
        let Some(of_b) = b.get(cell) else { continue };
        for key in of_a.keys().chain(of_b.keys()).collect::<BTreeSet<_>>() {
            let text = |values: &Values| values.get(key).map_or("unknown".into(), join);
            if of_a.get(key) != of_b.get(key) {
                *differing.entry((key, text(of_a), text(of_b))).or_default() += 1;
            }
        }
    }
    let phrase = |((key, a, b), cells): (&(&str, String, String), &usize)| match cells {
        1 => format!("{key} {a} and {b}"),
        cells => format!("{key} {a} and {b} in {cells} cells"),
    };
    differing.iter().map(phrase).collect()
}

fn cell(place: &Place) -> Cell<'_> {
    (&place.setting, &place.arm, place.role == Role::Control)
}

fn cells(records: &[Record]) -> BTreeMap<Cell<'_>, Values> {
    let mut cells: BTreeMap<Cell<'_>, Values> = BTreeMap::new();
    for record in records {
        let Some(place) = record.place.as_ref() else { continue };
        let values = cells.entry(cell(place)).or_default();
        values.entry("pcpus".into()).or_default().insert(record.settings.pcpus().to_string());
        for (key, value) in record.settings.iter().filter(|(key, _)| !NO_SETTINGS.contains(key)) {
            values.entry(key.into()).or_default().insert(value.to_string());
        }
    }
    cells
}

fn join(values: &BTreeSet<String>) -> String {
    values.iter().map(String::as_str).collect::<Vec<_>>().join(" or ")
}

fn name((setting, arm, control): &Cell<'_>) -> String {
    let setting: String = setting.iter().map(|(key, value)| format!(", {key} {value}")).collect();
    format!("{arm}{setting}{}", if *control { " (control)" } else { "" })
}

/// The measures by which the experiment compares kernels; where it compares none, all that these printed. Locks are compared by their
/// throughput.
pub(crate) fn measures(outline: &Outline, records: &[Record]) -> Vec<Measure> {
    if !records.iter().any(Record::is_linux) {
        return vec![Measure::Throughput];
    }
    let mut measures: Vec<Measure> = outline.comparisons.iter().map(|it| it.of.clone()).collect();
    if measures.is_empty() {
        let names: BTreeSet<&String> = records.iter().flat_map(|record| record.units.keys()).collect();
        measures = names.into_iter().cloned().map(Measure::Printed).collect();
    }
    let mut known = BTreeSet::new();
    measures.retain(|of| known.insert(String::from(of.clone())));
    measures
}

/// The better direction of a measure; none where nothing tells it. Rates and times that a guest prints tell it by their units.
pub(crate) fn better(measure: &Measure, records: &[Record]) -> Option<Better> {
    let Measure::Printed(name) = measure else { return measure.better() };
    let with_it = records.iter().filter(|record| record.figure(name).is_some());
    let units: BTreeSet<&str> = with_it.map(|record| record.unit(name)).collect();
    match &Vec::from_iter(units)[..] {
        ["ns" | "us" | "µs" | "ms" | "s" | "min" | "h"] => Some(Better::Less),
        [unit] if unit.ends_with("/s") => Some(Better::More),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::synthetic::Sketch;

    #[test]
    fn runs_that_are_there_twice_are_reported_and_others_are_not() {
        let (_, mut records) = Sketch::new().arm("a", "tas").control("a").measured(3);
        assert_eq!(warnings(&records), [""; 0]);
        let mut again = records[1].clone();
        again.run_id = "another".into();
        records.push(again);
        let warnings = warnings(&records);
        assert!(warnings[0].starts_with("1 runs are there twice, such as a"), "{warnings:?}");
    }

    #[test]
    fn neighbours_spoil_runs_only_beyond_the_limit() {
        let (_, mut records) = Sketch::two().measured(2);
        for record in &mut records {
            record.noise.run_delay_share = Some(0.08);
            record.warn(BUSY_NEIGHBOUR, "somebody".into());
        }
        assert_eq!(spoilt(&records, 0.1), None);
        let found = spoilt(&records, 0.05).unwrap();
        assert_eq!((found.by, found.runs, found.of), (BUSY_NEIGHBOUR, records.len(), records.len()));
    }
}
