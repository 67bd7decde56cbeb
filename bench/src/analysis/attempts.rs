//! Runs that were disturbed and made again: which of the attempts count.

use std::collections::BTreeSet;

use crate::record::Record;

/// Warnings that say that the host disturbed the run: another attempt may go better. What lies in the run itself would come
/// again.
const DISTURBANCES: [&str; 7] =
    ["busy-neighbour", "host-steal", "pinning-lost", "stopped", "window-missed", "work-off", "work-uneven"];

/// Whether another attempt may go better.
pub(crate) fn is_disturbed(record: &Record) -> bool {
    record.warnings.iter().any(|warning| DISTURBANCES.contains(&warning.code.as_str()))
}

/// The records that count: all but those that a later attempt replaces, whatever that found.
pub(crate) fn last(records: &[Record]) -> Vec<Record> {
    let places = records.iter().filter_map(|record| record.place.as_ref());
    let replaced: BTreeSet<&str> = places.flat_map(|place| &place.replaces).map(String::as_str).collect();
    records.iter().filter(|record| !replaced.contains(record.run_id.as_str())).cloned().collect()
}

/// How many runs those that count have replaced.
pub(crate) fn replaced(records: &[Record]) -> usize {
    let places = records.iter().filter_map(|record| record.place.as_ref());
    places.flat_map(|place| &place.replaces).collect::<BTreeSet<_>>().len()
}
