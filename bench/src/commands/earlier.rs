//! Earlier findings of an experiment on this host: its newest results.

use std::fs;
use std::path::{Path, PathBuf};

use crate::analysis::consistency;
use crate::analysis::summary::trust;
use crate::analysis::summary::{Comparison, Summary};
use crate::experiment::outline::OutlineComparison;
use crate::experiment::plan::Plan;
use crate::host::identity::Host;
use crate::results::manifest::Manifest;
use crate::text::exit::Result;

/// Earlier results of an experiment.
pub(super) struct Earlier {
    pub(super) path: PathBuf,
    /// The comparison that is the headline of the plan, by setting.
    pub(super) headline: Vec<Comparison>,
    /// Whether the headline keeps its validity.
    pub(super) is_valid: bool,
}

/// The newest directory in `within` that has the headline of `plan` with an interval, measured on `host`, or simulated where
/// the plan is. A directory that cannot be read has none.
pub(super) fn newest(within: &Path, plan: &Plan, host: &Host) -> Option<Earlier> {
    let headline = plan.outline.comparisons.first()?;
    let entries = fs::read_dir(within).ok()?.flatten();
    let manifests = entries.filter_map(|entry| Some((Manifest::read(&entry.path()).ok()?, entry.path())));
    let of_experiment = manifests.filter(|(manifest, _)| {
        manifest.outline.experiment == plan.outline.experiment && manifest.host.identity() == host.identity()
    });
    let mut found: Vec<(Manifest, PathBuf)> = of_experiment.collect();
    found.sort_by(|(a, _), (b, _)| b.started.cmp(&a.started));
    let is_simulated = plan.cells().any(|cell| cell.run.engine.is_simulated());
    found
        .into_iter()
        .find_map(|(manifest, path)| read(&manifest, path, headline, is_simulated).ok().flatten())
}

fn read(
    manifest: &Manifest,
    path: PathBuf,
    of: &OutlineComparison,
    is_simulated: bool,
) -> Result<Option<Earlier>> {
    let records = consistency::last_attempts(&manifest.records(&path)?);
    if records.iter().any(|record| record.settings.is_simulated() != is_simulated) {
        return Ok(None);
    }
    let is_headline = |it: &Comparison| {
        (&it.arm, &it.baseline, &it.of) == (&of.arm, &of.baseline, &of.of)
            && it.ratio.as_ref().is_some_and(|ratio| ratio.interval.is_some())
    };
    let comparisons = Summary::new(&manifest.outline, &records).comparisons;
    let headline: Vec<Comparison> = comparisons.into_iter().filter(is_headline).collect();
    let is_valid = trust::lost(&manifest.outline, &records).is_empty();
    Ok((!headline.is_empty()).then_some(Earlier { path, headline, is_valid }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::synthetic::{Scratch, Shape, Sketch, World};
    use crate::results::directory::{self, Directory};
    use crate::text::output::to_indented_json;

    /// Leaves the results of an experiment of `blocks` blocks that began at this hour.
    fn leave(within: &Path, name: &str, hour: u32, blocks: u32, world: &World) {
        let plan = plan(blocks);
        let mut manifest = world.manifest(&plan);
        manifest.started = format!("2026-01-01T{hour:02}:00:00Z");
        let mut results = Directory::create(&within.join(name)).unwrap();
        results.write(directory::MANIFEST, &to_indented_json(&manifest).unwrap()).unwrap();
        results.append(&directory::lines(&world.records(&plan)).unwrap()).unwrap();
    }

    fn plan(blocks: u32) -> Plan {
        let arms = Sketch::two().axis("ratio", &["1", "8"]);
        arms.compared().plan(blocks)
    }

    #[test]
    fn the_newest_results_of_this_host_that_have_an_interval_are_found() {
        let scratch = Scratch::new("earlier");
        let within = scratch.path();
        let world = |seed| World::new(seed).shape(Shape::LogNormal(0.005));
        let host = Host { host_id: Some("host-a".into()), ..Host::default() };
        assert!(newest(&within.join("none"), &plan(8), &host).is_none());
        leave(within, "old", 1, 6, &world(1));
        leave(within, "new", 2, 6, &world(2).disturbed(|asked, _| asked.ours.lock == "tas"));
        leave(within, "one-block", 3, 1, &world(3));
        leave(within, "elsewhere", 4, 6, &world(4).host_id(Some("host-b")));
        fs::create_dir(within.join("empty")).unwrap();
        let found = newest(within, &plan(8), &host).unwrap();
        assert_eq!((found.path, found.is_valid, found.headline.len()), (within.join("new"), false, 2));
        fs::remove_dir_all(within.join("new")).unwrap();
        let found = newest(within, &plan(8), &host).unwrap();
        assert_eq!((found.path, found.is_valid), (within.join("old"), true));
    }
}
