//! What a directory holds against a job that is to go on there: program, image and files by their content, since the same names may
//! stand for something else by now.

use std::collections::BTreeMap;

use super::job::Job;
use crate::experiment::plan::Cell;
use crate::host::facts::{self, Fact};
use crate::record::Record;
use crate::results::manifest::{KernelFiles, Manifest};

/// A fact that says with what a directory's runs were made.
#[derive(Clone, Copy, Debug)]
pub(super) enum Made {
    /// The program: it simulates, too.
    By,
    /// The image, with the lock objects behind it.
    With,
}

/// Whether `job` would make its runs by or with the same as those of `manifest` were.
pub(super) fn is_same(made: Made, manifest: &Manifest, job: &Job) -> bool {
    let key = match made {
        Made::By => "tool.vmm_sha256",
        Made::With => "tool.guest_sha256",
    };
    let value = |facts: &BTreeMap<String, Fact>| facts.get(key).and_then(|fact| fact.value.clone());
    value(&manifest.facts) == value(&facts::of_tool(&job.image))
}

/// What the runs of a directory were made with that `job` no longer has, in words.
pub(super) fn difference(manifest: &Manifest, records: &[Record], job: &Job) -> Option<String> {
    if !is_same(Made::With, manifest, job) {
        return Some("another guest image, or with lock objects that have changed".into());
    }
    if let Some(difference) = KernelFiles::first_difference(&manifest.kernels, &job.kernels) {
        return Some(format!("other kernels: {difference}"));
    }
    if job.plan.cells().any(|cell| cell.run.engine.is_simulated()) && !is_same(Made::By, manifest, job) {
        return Some("another haltkick, whose simulated figures may differ".into());
    }
    if manifest.has_kernels() {
        return None;
    }
    let cells: BTreeMap<&str, &Cell> = job.plan.cells().map(|cell| (cell.id.as_str(), cell)).collect();
    records.iter().find_map(|record| {
        let cell = cells.get(record.place.as_ref()?.cell_id.as_str())?;
        let file = record.settings.other_file(&cell.run)?;
        Some(format!("another {file} in cell {}", cell.id))
    })
}
