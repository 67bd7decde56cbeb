//! `--reuse DIR`: runs of an earlier experiment, of cells that this one has in the same form.
//!
//! Only simulated runs are taken over: the same settings and seed always give the same record. Measured arms are compared within
//! a block, which a run of another day is not part of.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use haltkick_vmm::FILE_PREFIX;

use super::job::Job;
use super::same::{Made, is_same};
use crate::analysis::attempts;
use crate::analysis::records::Records;
use crate::cli::ImageArgs;
use crate::experiment::Source;
use crate::experiment::defaults::Defaults;
use crate::experiment::overrides::Overrides;
use crate::experiment::plan::Cell;
use crate::record::Record;
use crate::results::directory;
use crate::results::manifest::Manifest;
use crate::text::exit::{Failure, Result};
use crate::text::output;

/// The records in `path` of cells that `job` has in the same form, in the order of its blocks.
pub(super) fn reused(job: &Job, image: &ImageArgs, path: &Path) -> Result<Records> {
    let refuse = |why: &str| Err(Failure::usage(format!("--reuse {}: {why}", path.display())));
    if !job.plan.cells().all(|cell| cell.run.engine.is_simulated()) {
        return refuse("only simulated runs are taken over: measured ones are compared within a block");
    }
    let manifest = Manifest::read(path)?;
    if !is_same(Made::By, &manifest, job) {
        return refuse("another haltkick made it, whose figures may differ: leave --reuse out");
    }
    let earlier = earlier(&manifest, image)?;
    let has_its_objects = is_same(Made::With, &manifest, &earlier);
    let cells = same_cells(job, &earlier, has_its_objects);
    let known = attempts::last(&directory::read_records::<Record>(path)?).into_iter();
    let mut known: BTreeMap<(u32, String), Record> = known
        .filter_map(|record| {
            Some(((record.place.as_ref()?.block, record.place.as_ref()?.cell_id.clone()), record))
        })
        .collect();
    let mut records: Vec<Record> = vec![];
    for block in 0..job.plan.outline.blocks {
        let order = job.plan.block(block);
        for (position, cell) in order.iter().enumerate().filter(|(_, cell)| cells.contains(cell.id.as_str()))
        {
            // The earlier experiment is planned from the files as they are now: only the record tells what they were.
            let is_of_files = |record: &Record| record.config.other_file(&cell.run).is_none();
            let Some(mut record) = known.remove(&(block, cell.id.clone())).filter(is_of_files) else {
                continue;
            };
            let Some(place) = &mut record.place else { continue };
            place.order_index = u64::from(block) * order.len() as u64 + position as u64;
            place.experiment.clone_from(&job.plan.outline.experiment);
            records.push(record);
        }
    }
    let all = job.plan.cells().count() * job.plan.outline.blocks as usize;
    output::talk(&format!("{} of {all} runs are taken over from {}", records.len(), path.display()));
    Ok(Records::Ours(records))
}

/// Names of the cells that both experiments have, with the same settings, seeds and lock objects. Guests that run together are
/// not taken over.
fn same_cells<'a>(job: &'a Job, earlier: &Job, has_its_objects: bool) -> BTreeSet<&'a str> {
    let had: BTreeMap<&str, &Cell> = earlier.plan.cells().map(|cell| (cell.id.as_str(), cell)).collect();
    let is_of_file = |cell: &Cell| cell.run.ours().any(|asked| asked.ours.lock.starts_with(FILE_PREFIX));
    let is_same = |cell: &Cell| {
        had.get(cell.id.as_str()).is_some_and(|had| {
            (had.arm.as_str(), &had.setting) == (cell.arm.as_str(), &cell.setting) && had.run == cell.run
        })
    };
    let is_taken = |cell: &&Cell| {
        earlier.plan.seed == job.plan.seed
            && cell.run.guests.len() == 1
            && (has_its_objects || !is_of_file(cell))
            && is_same(cell)
    };
    job.plan.cells().filter(is_taken).map(|cell| cell.id.as_str()).collect()
}

/// The experiment that a manifest describes, as it would be planned now.
fn earlier(manifest: &Manifest, image: &ImageArgs) -> Result<Job> {
    let overrides = Overrides::from_arguments(&manifest.source.overrides)
        .map_err(|error| Failure::usage(format!("--reuse: options that are unknown ({})", error.kind())))?;
    let source = Source { origin: manifest.source.origin.clone(), text: manifest.source.text.clone() };
    Job::new(source, &overrides, Defaults::new(manifest.defaults.clone())?, image)
}
