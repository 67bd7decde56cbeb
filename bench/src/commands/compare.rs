//! `haltkick compare`: two directories, or two arms, cell by cell; a loss that is surely beyond the threshold is a
//! regression.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Serialize;

use crate::analysis::attempts;
use crate::analysis::holm;
use crate::analysis::likeness;
use crate::analysis::rate::{Rate, estimate_ratio};
use crate::analysis::summary::{Comparison, comparison, comparison_of};
use crate::cli::{CompareArgs, Format};
use crate::commands::report;
use crate::experiment::place::Role;
use crate::record::Record;
use crate::results::manifest::Manifest;
use crate::show::table;
use crate::text::exit::{Exit, Failure, Result};
use crate::text::nearest;
use crate::text::output;

/// What `compare --format json` prints.
#[derive(Debug, JsonSchema, Serialize)]
pub(crate) struct Compared {
    /// "haltkick.comparison".
    pub(crate) schema: String,
    /// 1.
    pub(crate) schema_version: u32,
    /// A slow-down beyond this share is a regression.
    pub(crate) threshold: f64,
    /// What stands between the two sides, where `--anyway` was given; else there is nothing.
    pub(crate) differences: Vec<String>,
    /// Throughput of B over that of A.
    pub(crate) cells: Vec<Comparison>,
    /// For each cell the chance of a ratio as low as this, or lower, if the loss were the threshold; null without figures.
    pub(crate) p_values: Vec<Option<f64>>,
    /// Whether there are enough runs for any cell to be called a regression, however much it had lost.
    pub(crate) can_tell: bool,
    /// Indices of the cells that regressed: those whose p-values Holm's procedure rejects, at 2.5 % for all together.
    pub(crate) regressions: Vec<usize>,
}

/// One side: a directory and perhaps one of its arms.
struct Side {
    path: PathBuf,
    arm: Option<String>,
    manifest: Manifest,
    records: Vec<Record>,
}

pub(crate) fn compare(args: &CompareArgs) -> Result<Exit> {
    let (a, b) = (side(&args.baseline)?, side(&args.candidate)?);
    check_same_experiment(&a, &b)?;
    let differences = differences(&a, &b, args.anyway)?;
    let compared = compare_sides(&a, &b, args.threshold, differences)?;
    show(&compared, args.format)?;
    Ok(match () {
        () if !compared.regressions.is_empty() => Exit::Regression,
        () if compared.can_tell => Exit::Done,
        // No all-clear: there could not have been an alarm.
        () => Exit::Untrusted,
    })
}

/// What stands between two directories: refused, unless it is to be compared anyway.
fn differences(a: &Side, b: &Side, anyway: bool) -> Result<Vec<String>> {
    if a.path == b.path {
        return Ok(vec![]);
    }
    let mut differences = likeness::differences(&a.records, &b.records);
    if a.arm.is_none() {
        differences.extend(likeness::cells_of_one(&a.records, &b.records));
    }
    let message = format!(
        "{} (first) and {} (second) cannot be compared: {}",
        a.path.display(),
        b.path.display(),
        differences.join("; ")
    );
    match differences.is_empty() {
        true => Ok(differences),
        false if anyway => {
            output::talk(&format!("warning: {}", message.replace("cannot be", "are")));
            Ok(differences)
        }
        false => Err(Failure::usage(format!("{message}; --anyway does"))),
    }
}

fn compare_sides(a: &Side, b: &Side, threshold: f64, differences: Vec<String>) -> Result<Compared> {
    let cells = match (&a.arm, &b.arm) {
        (None, None) => arm_by_arm(a, b),
        (Some(_), Some(_)) => two_arms(a, b),
        _ => return Err(Failure::usage("name an arm on both sides (DIR:ARM), or on neither")),
    };
    if cells.is_empty() {
        let (a, b) = (a.path.display(), b.path.display());
        return Err(Failure::usage(format!("{a} and {b} have no cell in common: nothing to compare")));
    }
    let limit = 1.0 - threshold;
    let p_values: Vec<Option<f64>> = cells.iter().map(|cell| cell.values.p_value(limit)).collect();
    let least: Vec<Option<f64>> = cells.iter().map(|cell| cell.values.least_p_value(limit)).collect();
    Ok(Compared {
        schema: "haltkick.comparison".into(),
        schema_version: 1,
        threshold,
        differences,
        cells: cells.into_iter().map(|cell| cell.shown).collect(),
        can_tell: !holm::rejected(&least).is_empty(),
        regressions: holm::rejected(&p_values),
        p_values,
    })
}

fn side(text: &str) -> Result<Side> {
    let (path, arm) = match text.rsplit_once(':') {
        Some((path, arm)) if !Path::new(text).exists() => (PathBuf::from(path), Some(arm.to_owned())),
        _ => (PathBuf::from(text), None),
    };
    let (manifest, records) = report::read(&path)?;
    if let Some(arm) = &arm
        && !manifest.outline.arms.contains(arm)
    {
        let arms: Vec<&str> = manifest.outline.arms.iter().map(String::as_str).collect();
        return Err(Failure::usage(format!("{}: {}", path.display(), nearest::unknown("arm", arm, &arms))));
    }
    Ok(Side { path, arm, manifest, records: attempts::last(&records) })
}

fn check_same_experiment(a: &Side, b: &Side) -> Result<()> {
    let (x, y) = (&a.manifest.outline.experiment, &b.manifest.outline.experiment);
    if x == y {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "{} holds experiment '{x}' and {} holds '{y}': compare directories of the same experiment",
        a.path.display(),
        b.path.display()
    )))
}

/// A cell of both sides.
struct Cell {
    shown: Comparison,
    values: Values,
}

/// What a cell's comparison is made of.
enum Values {
    /// Ratios of runs of one block.
    Pairs(Vec<Rate>),
    /// Runs of B and of A.
    Groups(Vec<Rate>, Vec<Rate>),
}

impl Values {
    fn of_groups(above: &[Run], below: &[Run]) -> Self {
        let rates = |runs: &[Run]| runs.iter().map(|(_, rate)| *rate).collect();
        Self::Groups(rates(above), rates(below))
    }

    /// Within blocks, and on one host.
    fn of_pairs(above: &[Run], below: &[Run]) -> Self {
        let below: BTreeMap<&Pass, Rate> = below.iter().map(|(pass, rate)| (pass, *rate)).collect();
        Self::Pairs(above.iter().filter_map(|(pass, rate)| Some(rate.over(*below.get(pass)?))).collect())
    }

    fn cell(self, setting: &BTreeMap<String, String>, arm: &str, baseline: &str) -> Cell {
        let shown = match &self {
            Self::Pairs(ratios) => comparison("B/A", setting, arm, baseline, ratios),
            Self::Groups(above, below) => {
                comparison_of("B/A", setting, arm, baseline, estimate_ratio(above, below))
            }
        };
        Cell { shown, values: self }
    }

    /// The least that [`Self::p_value`] could have been with as many runs.
    fn least_p_value(&self, limit: f64) -> Option<f64> {
        self.p_value(limit)?;
        match self {
            Self::Pairs(ratios) => holm::least_p_of_pairs(ratios.len()),
            Self::Groups(above, below) => holm::least_p_of_groups(above.len(), below.len()),
        }
    }

    /// Of a loss as great as `limit` says; none where there is no figure either.
    fn p_value(&self, limit: f64) -> Option<f64> {
        let values = |rates: &[Rate]| rates.iter().map(|rate| rate.per_second).collect::<Vec<_>>();
        match self {
            Self::Pairs(ratios) => {
                crate::analysis::rate::estimate(ratios)?;
                holm::p_of_pairs(&values(ratios), limit)
            }
            Self::Groups(above, below) => {
                estimate_ratio(above, below)?;
                holm::p_of_groups(&values(above), &values(below), limit)
            }
        }
    }
}

/// Each arm of B against the same arm of A. The runs are not paired: the two ran at different times.
fn arm_by_arm(a: &Side, b: &Side) -> Vec<Cell> {
    let (below, above) = (throughputs(a, None), throughputs(b, None));
    let cell = |(key, above): (&Key, &Vec<Run>)| {
        Some(Values::of_groups(above, below.get(key)?).cell(&key.0, &key.1, &key.1))
    };
    in_order(a, above.iter().filter_map(cell).collect())
}

/// One arm of B against one of A: within blocks if both are in one directory.
fn two_arms(a: &Side, b: &Side) -> Vec<Cell> {
    let (below, above) = (throughputs(a, a.arm.as_deref()), throughputs(b, b.arm.as_deref()));
    let mut cells = Vec::new();
    for ((setting, arm), above) in &above {
        let Some(((_, baseline), below)) = below.iter().find(|((other, _), _)| other == setting) else {
            continue;
        };
        let values = if a.path == b.path { Values::of_pairs } else { Values::of_groups };
        cells.push(values(above, below).cell(setting, arm, baseline));
    }
    in_order(a, cells)
}

/// Setting and arm.
type Key = (BTreeMap<String, String>, String);
/// Block and host.
type Pass = (u32, String);
/// When and where, and the throughput.
type Run = (Pass, Rate);
type Cells = BTreeMap<Key, Vec<Run>>;

/// Throughput of each run, by setting and arm.
fn throughputs(side: &Side, only: Option<&str>) -> Cells {
    let mut cells = Cells::new();
    for record in &side.records {
        let Some(place) = record.place.as_ref().filter(|place| place.role == Role::Arm) else { continue };
        if only.is_none_or(|arm| arm == place.arm) {
            let runs = cells.entry((place.setting.clone(), place.arm.clone())).or_default();
            runs.push(((place.block, record.host.identity()), Rate::of(record)));
        }
    }
    cells
}

/// Cells in the order of the experiment file.
fn in_order(side: &Side, mut cells: Vec<Cell>) -> Vec<Cell> {
    let outline = &side.manifest.outline;
    cells.sort_by_key(|Cell { shown, .. }| {
        (outline.rank(&shown.setting), outline.arms.iter().position(|arm| *arm == shown.arm))
    });
    cells
}

fn show(compared: &Compared, format: Format) -> Result<()> {
    match format {
        Format::Table => {
            let found = (compared.can_tell, &compared.regressions[..]);
            output::data(&table::comparisons(&compared.cells, found, compared.threshold))
        }
        Format::Json => {
            let json = serde_json::to_string_pretty(compared)
                .map_err(|error| Failure::internal(format!("the comparison as JSON: {error}")))?;
            output::data(&format!("{json}\n"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::synthetic::{Shape, Sketch, World};

    fn sketch() -> Sketch {
        let ratios: Vec<String> = (1..=20).map(|ratio| ratio.to_string()).collect();
        let ratios: Vec<&str> = ratios.iter().map(String::as_str).collect();
        Sketch::new().axis("ratio", &ratios).arm("a", "tas").arm("b", "ticket")
    }

    fn side(path: &str, sketch: &Sketch, blocks: u32, world: &World) -> Side {
        let plan = sketch.plan(blocks);
        let records = world.records(&plan);
        Side { path: path.into(), arm: None, manifest: world.manifest(&plan), records }
    }

    #[test]
    fn directories_with_other_settings_or_from_another_host_are_compared_only_if_that_is_insisted_on() {
        let world = || World::new(1);
        let before = side("before", &sketch(), 1, &world());
        let longer = sketch().arm_with("c", "lock = \"mcs\"").head("# longer");
        let after = side("after", &longer, 1, &world().host_id(Some("host-b")));
        let refused = differences(&before, &after, false).unwrap_err();
        assert_eq!(refused.exit, Exit::Usage);
        assert!(
            refused.message.contains("host host-a and host-b; only the second has c, ratio 1"),
            "{refused}"
        );
        assert!(refused.message.ends_with("--anyway does"), "{refused}");
        let insisted = differences(&before, &after, true).unwrap();
        assert_eq!(insisted.len(), 2);
        assert_eq!(compare_sides(&before, &after, 0.05, insisted.clone()).unwrap().differences, insisted);
    }

    #[test]
    fn arms_are_paired_within_a_block_only_where_they_ran_on_one_host() {
        let mut both = side("both", &Sketch::new().arm("a", "tas").arm("b", "ticket"), 8, &World::new(1));
        for record in &mut both.records {
            let place = record.place.as_ref().unwrap();
            if place.arm == "b" && place.block < 2 {
                record.host.host_id = Some("host-b".into());
            }
        }
        let side = |arm: &str| Side {
            path: both.path.clone(),
            arm: Some(arm.into()),
            manifest: both.manifest.clone(),
            records: both.records.clone(),
        };
        let compared = compare_sides(&side("a"), &side("b"), 0.05, vec![]).unwrap();
        assert_eq!(compared.cells[0].per_block.len(), 6);
    }

    #[test]
    fn a_loss_that_may_be_within_the_threshold_is_no_regression() {
        // Seven per cent are lost, and the noise leaves it open whether 5 % may be all of it.
        let world =
            |seed, factor: f64| World::new(seed).truth(move |_| 1e6 * factor).shape(Shape::LogNormal(0.02));
        let few = Sketch::new().arm("a", "tas");
        let before = side("before", &few, 8, &world(1, 1.0));
        let after = side("after", &few, 8, &world(2, 0.93));
        let compared = compare_sides(&before, &after, 0.05, vec![]).unwrap();
        let ratio = compared.cells[0].ratio.clone().unwrap();
        assert!(ratio.hodges_lehmann < 0.95 && ratio.interval.unwrap().high > 0.95, "{ratio:?}");
        assert_eq!(compared.regressions, [0; 0]);
        let lost = side("lost", &few, 8, &world(2, 0.85));
        assert_eq!(compare_sides(&before, &lost, 0.05, vec![]).unwrap().regressions, [0]);
    }

    #[test]
    fn where_no_loss_could_be_told_there_is_no_all_clear() {
        let sketch = sketch();
        let world =
            |seed, factor: f64| World::new(seed).truth(move |_| 1e6 * factor).shape(Shape::LogNormal(0.02));
        for (blocks, can_tell) in [(5, false), (7, true)] {
            // Nine tenths are lost.
            let before = side("before", &sketch, blocks, &world(1, 1.0));
            let after = side("after", &sketch, blocks, &world(2, 0.1));
            let compared = compare_sides(&before, &after, 0.05, vec![]).unwrap();
            assert_eq!(compared.cells.len(), 40);
            assert_eq!(
                (compared.can_tell, compared.regressions.len()),
                (can_tell, if can_tell { 40 } else { 0 })
            );
            assert_eq!(blocks as usize >= holm::runs_to_tell(40), can_tell);
        }
    }

    #[test]
    fn of_forty_cells_that_lost_just_the_threshold_hardly_ever_one_is_called_a_regression() {
        let sketch = sketch();
        let mut alarms = 0;
        for seed in 0..20 {
            let world = |seed, factor: f64| {
                World::new(seed).truth(move |_| 1e6 * factor).shape(Shape::LogNormal(0.02))
            };
            let before = side("before", &sketch, 8, &world(seed, 1.0));
            let after = side("after", &sketch, 8, &world(1000 + seed, 0.95));
            let compared = compare_sides(&before, &after, 0.05, vec![]).unwrap();
            assert_eq!(compared.cells.len(), 40);
            alarms += u32::from(!compared.regressions.is_empty());
        }
        assert!(alarms <= 3, "{alarms} of 20 comparisons raised a false alarm");
    }
}
