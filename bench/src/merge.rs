//! Records of several directories as one experiment.
//!
//! Directories that hold different cells of the same blocks (`--cell`) are put together as they are. Directories
//! that hold the same cells of the same blocks, such as two whole runs, are repetitions: the later one's blocks are
//! renumbered to follow the earlier one's.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::exit::{Failure, Result};
use crate::manifest::Manifest;
use crate::record::{Record, Role};

pub(crate) fn merge(
    paths: &[PathBuf],
    parts: Vec<(Manifest, Vec<Record>)>,
) -> Result<(Manifest, Vec<Record>)> {
    let mut parts = parts.into_iter().zip(paths);
    let ((mut manifest, mut records), first_path) =
        parts.next().ok_or_else(|| Failure::usage("nothing to merge: give at least one directory"))?;
    for ((other, added), path) in parts {
        if !same_cells(&manifest, &other) {
            return Err(Failure::usage(format!(
                "{} holds another experiment than {}: '{}' with other arms or settings than '{}'",
                path.display(),
                first_path.display(),
                other.outline.experiment,
                manifest.outline.experiment
            )));
        }
        let known: BTreeSet<&str> = records.iter().map(|record| record.run_id.as_str()).collect();
        let mut added: Vec<Record> =
            added.into_iter().filter(|record| !known.contains(record.run_id.as_str())).collect();
        if overlap(&records, &added) {
            renumber(&records, &mut added);
        }
        records.append(&mut added);
    }
    manifest.outline.blocks = blocks(&records);
    Ok((manifest, records))
}

/// Whether results of the two can stand in one table.
fn same_cells(a: &Manifest, b: &Manifest) -> bool {
    let (a, b) = (&a.outline, &b.outline);
    a.experiment == b.experiment && a.axes == b.axes && a.arms == b.arms && a.comparisons == b.comparisons
}

/// Whether some cell was run in the same block by both. Lock-free cells go along with any other.
fn overlap(records: &[Record], added: &[Record]) -> bool {
    let runs = |records: &[Record]| -> BTreeSet<(String, u32)> {
        let places = records.iter().filter_map(|record| record.place.as_ref());
        let arms = places.filter(|place| place.role != Role::Ideal);
        arms.map(|place| (place.cell_id.clone(), place.block)).collect()
    };
    !runs(records).is_disjoint(&runs(added))
}

fn renumber(records: &[Record], added: &mut [Record]) {
    let first_block = blocks(records);
    let indices =
        records.iter().filter_map(|record| record.place.as_ref()).map(|place| place.order_index + 1);
    let first_index = indices.max().unwrap_or(0);
    for place in added.iter_mut().filter_map(|record| record.place.as_mut()) {
        place.block += first_block;
        place.order_index += first_index;
    }
}

fn blocks(records: &[Record]) -> u32 {
    let places = records.iter().filter_map(|record| record.place.as_ref());
    places.map(|place| place.block + 1).max().unwrap_or(0)
}
