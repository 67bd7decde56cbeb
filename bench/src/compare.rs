//! `haltkick compare`: two directories, or two arms, cell by cell; a loss beyond the threshold is a regression.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Serialize;

use crate::cli::{CompareArgs, Format};
use crate::exit::{Exit, Failure, Result};
use crate::manifest::Manifest;
use crate::nearest;
use crate::output;
use crate::rate::{Rate, estimate_ratio};
use crate::record::{Record, Role};
use crate::results;
use crate::summary::{Comparison, comparison, comparison_of};
use crate::table;

/// What `compare --format json` prints.
#[derive(Debug, JsonSchema, Serialize)]
pub(crate) struct Compared {
    /// "haltkick.comparison".
    pub(crate) schema: String,
    /// 1.
    pub(crate) schema_version: u32,
    /// A slow-down beyond this share is a regression.
    pub(crate) threshold: f64,
    /// Throughput of B over that of A.
    pub(crate) cells: Vec<Comparison>,
    /// Indices of the cells that regressed.
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
    let cells = match (&a.arm, &b.arm) {
        (None, None) => arm_by_arm(&a, &b),
        (Some(_), Some(_)) => two_arms(&a, &b),
        _ => return Err(Failure::usage("name an arm on both sides (DIR:ARM), or on neither")),
    };
    if cells.is_empty() {
        let (a, b) = (a.path.display(), b.path.display());
        return Err(Failure::usage(format!("{a} and {b} have no cell in common: nothing to compare")));
    }
    let is_regression = |cell: &Comparison| {
        let lost = cell.ratio.as_ref().is_some_and(|ratio| ratio.hodges_lehmann < 1.0 - args.threshold);
        lost && cell.verdict == crate::statistics::Verdict::Slower
    };
    let regressions = (0..cells.len()).filter(|i| is_regression(&cells[*i])).collect();
    let compared = Compared {
        schema: "haltkick.comparison".into(),
        schema_version: 1,
        threshold: args.threshold,
        cells,
        regressions,
    };
    show(&compared, args.format)?;
    Ok(if compared.regressions.is_empty() { Exit::Done } else { Exit::Regression })
}

fn side(text: &str) -> Result<Side> {
    let (path, arm) = match text.rsplit_once(':') {
        Some((path, arm)) if !Path::new(text).exists() => (PathBuf::from(path), Some(arm.to_owned())),
        _ => (PathBuf::from(text), None),
    };
    let (manifest, records) = results::read(&path)?;
    if let Some(arm) = &arm
        && !manifest.outline.arms.contains(arm)
    {
        let arms: Vec<&str> = manifest.outline.arms.iter().map(String::as_str).collect();
        return Err(Failure::usage(format!("{}: {}", path.display(), nearest::unknown("arm", arm, &arms))));
    }
    Ok(Side { path, arm, manifest, records })
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

/// Each arm of B against the same arm of A. The runs are not paired: the two ran at different times.
fn arm_by_arm(a: &Side, b: &Side) -> Vec<Comparison> {
    let (below, above) = (throughputs(a, None), throughputs(b, None));
    let cell = |(key, above): (&Key, &Vec<Run>)| {
        let below = below.get(key)?;
        let values = |runs: &[Run]| runs.iter().map(|(_, rate)| *rate).collect::<Vec<_>>();
        let ratio = estimate_ratio(&values(above), &values(below));
        Some(comparison_of("B/A", &key.0, &key.1, &key.1, ratio))
    };
    in_order(a, above.iter().filter_map(cell).collect())
}

/// One arm of B against one of A: within blocks if both are in one directory.
fn two_arms(a: &Side, b: &Side) -> Vec<Comparison> {
    let (below, above) = (throughputs(a, a.arm.as_deref()), throughputs(b, b.arm.as_deref()));
    let mut cells = Vec::new();
    for ((setting, arm), above) in &above {
        let Some(((_, baseline), below)) = below.iter().find(|((other, _), _)| other == setting) else {
            continue;
        };
        cells.push(if a.path == b.path {
            let below: BTreeMap<u32, Rate> = below.iter().copied().collect();
            let ratios = above.iter().filter_map(|(block, rate)| Some(rate.over(*below.get(block)?)));
            comparison("B/A", setting, arm, baseline, &ratios.collect::<Vec<_>>())
        } else {
            let values = |runs: &[Run]| runs.iter().map(|(_, rate)| *rate).collect::<Vec<_>>();
            comparison_of("B/A", setting, arm, baseline, estimate_ratio(&values(above), &values(below)))
        });
    }
    in_order(a, cells)
}

/// Setting and arm.
type Key = (BTreeMap<String, String>, String);
/// Block and throughput.
type Run = (u32, Rate);
type Cells = BTreeMap<Key, Vec<Run>>;

/// Block and throughput of each run, by setting and arm.
fn throughputs(side: &Side, only: Option<&str>) -> Cells {
    let mut cells = Cells::new();
    for record in &side.records {
        let Some(place) = record.place.as_ref().filter(|place| place.role == Role::Arm) else { continue };
        if only.is_none_or(|arm| arm == place.arm) {
            let runs = cells.entry((place.setting.clone(), place.arm.clone())).or_default();
            runs.push((place.block, Rate::of(record)));
        }
    }
    cells
}

/// Cells in the order of the experiment file.
fn in_order(side: &Side, mut cells: Vec<Comparison>) -> Vec<Comparison> {
    let outline = &side.manifest.outline;
    cells.sort_by_key(|cell| {
        (outline.rank(&cell.setting), outline.arms.iter().position(|arm| *arm == cell.arm))
    });
    cells
}

fn show(compared: &Compared, format: Format) -> Result<()> {
    match format {
        Format::Table => {
            output::data(&table::comparisons(&compared.cells, &compared.regressions, compared.threshold))
        }
        Format::Json => {
            let json = serde_json::to_string_pretty(compared)
                .map_err(|error| Failure::internal(format!("the comparison as JSON: {error}")))?;
            output::data(&format!("{json}\n"))
        }
    }
}
