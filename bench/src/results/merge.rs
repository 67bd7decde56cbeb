//! Records of several directories as one experiment.
//!
//! Directories that hold different cells of the same blocks are put together as they are. Directories
//! that hold the same cells of the same blocks, such as two whole runs, are repetitions: the later one's blocks are
//! renumbered to follow the earlier one's. Hosts may differ, since ratios are made of runs of one host only; settings may
//! not, unless that is asked for: a setting that varies then has the values of all directories.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::analysis::consistency;
use crate::experiment::outline::OutlineAxis;
use crate::record::Record;
use crate::record::place::Role;
use crate::results::manifest::{KernelFiles, Manifest};
use crate::text::exit::{Failure, Result};
use crate::text::output;

pub(crate) fn merge(
    paths: &[PathBuf],
    parts: Vec<(Manifest, Vec<Record>)>,
    anyway: bool,
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
        if let Some(difference) = KernelFiles::first_difference(&manifest.kernels, &other.kernels) {
            return Err(Failure::usage(format!(
                "{} was measured with other kernels than {}: {difference}",
                path.display(),
                first_path.display()
            )));
        }
        let mut differences = consistency::of_settings(&records, &added);
        differences.extend(unite_axes(&mut manifest.outline.axes, &other.outline.axes));
        if !differences.is_empty() {
            let (path, differences) = (path.display(), differences.join("; "));
            let message =
                format!("{path} was measured with other settings than those before it: {differences}");
            if !anyway {
                return Err(Failure::usage(format!("{message}; --anyway merges them all the same")));
            }
            output::talk(&format!("warning: {message}"));
        }
        let known: BTreeSet<String> = records.iter().map(|record| record.run_id.to_owned()).collect();
        let mut added: Vec<Record> =
            added.into_iter().filter(|record| !known.contains(&record.run_id)).collect();
        let mut failed = other.failed;
        if overlap(&records, &added) {
            failed.iter_mut().for_each(|run| run.block += blocks(&records));
            renumber(&records, &mut added);
        }
        manifest.files.extend(other.files);
        records.append(&mut added);
        manifest.note_failed(failed, &records);
    }
    manifest.outline.blocks = blocks(&records);
    Ok((manifest, records))
}

/// Whether results of the two can stand in one table.
fn same_cells(a: &Manifest, b: &Manifest) -> bool {
    let (a, b) = (&a.outline, &b.outline);
    let keys = |axes: &[OutlineAxis]| axes.iter().map(|axis| axis.key.clone()).collect::<Vec<_>>();
    a.experiment == b.experiment
        && keys(&a.axes) == keys(&b.axes)
        && a.arms == b.arms
        && a.comparisons == b.comparisons
}

/// Gives `axes` the values that only `others` have, which are settings of the same names; one phrase for each that differs.
fn unite_axes(axes: &mut [OutlineAxis], others: &[OutlineAxis]) -> Vec<String> {
    let mut differences = Vec::new();
    for (axis, other) in axes.iter_mut().zip(others).filter(|(axis, other)| axis.values != other.values) {
        differences.push(format!("{} {} and {}", axis.key, axis.values.join(", "), other.values.join(", ")));
        let added: Vec<String> =
            other.values.iter().filter(|value| !axis.values.contains(value)).cloned().collect();
        axis.values.extend(added);
    }
    differences
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::summary::Summary;
    use crate::measure::synthetic::{Sketch, World};

    type Part = (Manifest, Vec<Record>);

    fn part(world: &World, sketch: &Sketch, blocks: u32) -> Part {
        let plan = sketch.plan(blocks);
        (world.manifest(&plan), world.records(&plan))
    }

    fn merged(parts: &[Part], anyway: bool) -> Result<Part> {
        merge(&["one", "two"].map(PathBuf::from), parts.to_vec(), anyway)
    }

    #[test]
    fn parts_that_differ_are_merged_only_if_that_is_insisted_on() {
        let part = |seed, ratios: &[&str]| {
            part(&World::new(seed), &Sketch::two().compared().axis("ratio", ratios), 2)
        };
        let first = part(1, &["1", "8"]);
        let (mut slices, ratios) = (part(2, &["1", "8"]), part(2, &["8", "2"]));
        slices.1.iter_mut().for_each(|record| record.settings.set("slice_ns", 500_000));
        for (second, expected, values, blocks) in [
            (slices, "slice_ns 1000000 and 500000 in 6 cells", &["1", "8"][..], &[4_usize, 4][..]),
            (ratios, "ratio 1, 8 and 8, 2", &["1", "8", "2"], &[2, 4, 2]),
        ] {
            let parts = [first.clone(), second];
            let refused = merged(&parts, false).unwrap_err().message;
            assert!(
                refused.starts_with("two was measured with other settings than those before"),
                "{refused}"
            );
            assert!(refused.contains(&format!("{expected}; --anyway")), "{refused}");
            let (manifest, records) = merged(&parts, true).unwrap();
            assert_eq!(manifest.outline.axes[0].values, values);
            let summary = Summary::new(&manifest.outline, &records);
            let of =
                |ratio: &&str| summary.comparisons.iter().find(|it| it.setting["ratio"] == **ratio).unwrap();
            let found: Vec<usize> = values.iter().map(|ratio| of(ratio).per_block.len()).collect();
            assert_eq!(found, blocks);
        }
        let other = self::part(&World::new(2), &Sketch::new().arm("a", "tas").axis("ratio", &["1", "8"]), 2);
        let refused = merged(&[first, other], true).unwrap_err().message;
        assert!(refused.contains("two holds another experiment than one"), "{refused}");
    }

    #[test]
    fn runs_of_two_hosts_are_merged_and_never_paired_across_hosts() {
        let (sketch, second_host) = (Sketch::two().compared(), World::new(2).host_id(Some("host-b")));
        let [first, second] = [&World::new(1), &second_host].map(|world| part(world, &sketch, 3));
        let (manifest, records) = merged(&[first.clone(), second.clone()], false).unwrap();
        let summary = Summary::new(&manifest.outline, &records);
        assert_eq!((summary.blocks, summary.comparisons[0].per_block.len()), (6, 6));

        let only = |(manifest, records): &Part, arm: &str| {
            let of_arm = records.iter().filter(|record| record.placed().arm == arm);
            (manifest.clone(), of_arm.cloned().collect::<Vec<_>>())
        };
        let (manifest, records) = merged(&[only(&first, "a"), only(&second, "b")], false).unwrap();
        assert_eq!(records.len(), 6);
        let summary = Summary::new(&manifest.outline, &records);
        assert!(summary.comparisons.is_empty(), "{:?}", summary.comparisons);
        let warnings = summary.warnings.concat();
        assert!(warnings.contains("on different hosts"), "{warnings}");
    }
}
