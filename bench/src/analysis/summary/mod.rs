//! From records to figures: one row per setting and arm, ratios within blocks, and what speaks against them.

mod checks;
mod compared;
mod published;
mod robust;
mod rows;

use std::collections::{BTreeMap, BTreeSet};

use compared::{comparisons, control, settings};
use serde::{Deserialize, Serialize};

use crate::analysis::consistency;
use crate::analysis::statistics::{self, Estimate, Verdict};
use crate::experiment::measure::Measure;
use crate::experiment::outline::Outline;
use crate::host::noise::Noise;
use crate::record::Record;
use crate::record::figures::{ACQUISITIONS, CPU_BYTES, LOCK_BYTES, PAIRS, THROUGHPUT};
use crate::record::place::{LOCK_FREE, Role};

pub(crate) use checks::{Check, CheckOutcome};
pub(crate) use compared::{Placed, are_too_many, comparison, corrected, first_of, too_many_of};
pub(crate) use published::Reproduced;
pub(crate) use robust::{Robustness, Sensitivity};
pub(crate) use rows::{Row, Told};

pub(crate) const SCHEMA: &str = "haltkick.summary";
pub(crate) const SCHEMA_VERSION: u32 = 2;

/// The figures of an experiment.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Summary {
    /// "haltkick.summary".
    pub(crate) schema: String,
    /// 2.
    pub(crate) schema_version: u32,
    /// Order of the figures.
    pub(crate) outline: Outline,
    /// Runs that went in.
    pub(crate) runs: usize,
    /// Number of these runs that are invalid: see their warnings.
    #[serde(default)]
    pub(crate) invalid_runs: usize,
    /// Whether any of them was simulated: intervals are over seeds then, and the model's own error is not in them.
    #[serde(default)]
    pub(crate) simulated: bool,
    /// Runs that did not, since they were disturbed and made again.
    #[serde(default)]
    pub(crate) replaced: usize,
    /// Blocks that went in; some perhaps incomplete, and those beyond the planned ones only of what was vague.
    pub(crate) blocks: u32,
    /// One row per setting and arm, in the outline's order.
    pub(crate) rows: Vec<Row>,
    /// One row per setting and arm for all guests that ran at once, where their number varies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) together: Vec<Row>,
    /// Whether arms are kernels.
    pub(crate) of_kernels: bool,
    /// Ratios within blocks, per setting.
    pub(crate) comparisons: Vec<Comparison>,
    /// Uncontended costs, one per arm; empty unless the experiment asks for them.
    pub(crate) lock_costs: Vec<ArmCost>,
    /// The A/A pair as a ratio: should show no difference.
    pub(crate) control: Option<Comparison>,
    /// Published figures next to ours.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) published: Vec<Reproduced>,
    /// Verdicts counted over trials, where the experiment has trials.
    pub(crate) trials: Vec<Trials>,
    /// Speed of the lock-free runs, in the order of the runs: 1 is the median of the same cell on the same host. Cells of different
    /// settings, and hosts, differ by design; only what changes within one cell says something of its host.
    pub(crate) calibration: Vec<f64>,
    /// Checks before the figures are to be believed, and those that could not be made.
    #[serde(default)]
    pub(crate) checks: Vec<Check>,
    /// Other load meanwhile, over all runs together.
    #[serde(default)]
    pub(crate) noise: Noise,
    /// Warnings about the figures.
    pub(crate) warnings: Vec<String>,
    /// Headlines that are not valid, and why.
    #[serde(skip)]
    pub(crate) lost: Vec<String>,
}

/// Cost of an arm's lock without contention, over all runs.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct ArmCost {
    /// The arm.
    pub(crate) arm: String,
    /// Costs by name: `pair_patched_tsc_cycles` and its kin, `lock_bytes`, `cpu_bytes`.
    pub(crate) figures: BTreeMap<String, Told>,
}

/// Throughput of one arm over that of another, within blocks.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Comparison {
    /// Name of the comparison.
    pub(crate) name: String,
    /// Settings that vary.
    pub(crate) setting: BTreeMap<String, String>,
    /// Measure that was compared.
    #[serde(default)]
    pub(crate) of: Measure,
    /// The arm above the line.
    pub(crate) arm: String,
    /// The arm below the line.
    pub(crate) baseline: String,
    /// The ratio; null if half of the runs or more completed no section.
    pub(crate) ratio: Option<Estimate>,
    /// The plain word. In a summary it is corrected for the number of settings, by Holm's procedure.
    pub(crate) verdict: Verdict,
    /// Pairs of which a run is invalid; null where that was not counted.
    #[serde(default)]
    pub(crate) invalid_pairs: Option<usize>,
    /// Whether it depends on what is guessed of the machine; null where that was not asked.
    #[serde(default)]
    pub(crate) sensitivity: Option<Sensitivity>,
    /// The ratio of each block; a run that completed no section counts as half of one.
    pub(crate) per_block: Vec<f64>,
}

/// Verdicts over many trials of the same comparison.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Trials {
    /// The comparison.
    pub(crate) name: String,
    /// Settings that vary.
    pub(crate) setting: BTreeMap<String, String>,
    /// Blocks per trial.
    pub(crate) blocks_per_trial: u32,
    /// Trials.
    pub(crate) trials: usize,
    /// Trials that said faster.
    pub(crate) faster: usize,
    /// Trials that said slower.
    pub(crate) slower: usize,
    /// Share of the trials that said either.
    pub(crate) share: f64,
    /// Lower end of its 95 % interval (Wilson's).
    pub(crate) share_low: f64,
    /// Upper end.
    pub(crate) share_high: f64,
}

impl Comparison {
    pub(crate) fn as_ratio(&self) -> String {
        self.ratio.as_ref().map_or("no figure".into(), Estimate::as_ratio)
    }

    /// Whether it flips, or is undetermined.
    pub(crate) fn depends_on_guesses(&self) -> bool {
        self.sensitivity.as_ref().is_some_and(|it| it.robustness != Robustness::Robust)
    }
}

impl Summary {
    pub(crate) fn new(outline: &Outline, records: &[Record]) -> Self {
        if let Some((own, rest, likes)) = robust::apart(outline, records) {
            let mut summary = Self::new(&own, &rest);
            robust::tell(&mut summary, outline, &rest, &likes);
            return summary;
        }
        let placed = &Placed::sort(records);
        let settings = &settings(outline, placed);
        let comparisons = comparisons(outline, settings, placed);
        let mut summary = Self {
            schema: SCHEMA.into(),
            schema_version: SCHEMA_VERSION,
            outline: outline.clone(),
            runs: records.len(),
            invalid_runs: records.iter().filter(|record| !record.trusted).count(),
            simulated: records.iter().any(|record| record.settings.is_simulated()),
            replaced: consistency::replaced(records).len(),
            blocks: placed.cells.keys().map(|(.., block)| block + 1).max().unwrap_or(0),
            rows: rows::rows(outline, settings, placed),
            together: rows::together(outline, settings, placed),
            of_kernels: records.iter().any(Record::is_linux),
            trials: compared::trials(outline, &comparisons, placed),
            comparisons,
            published: vec![],
            lock_costs: lock_costs(outline, records),
            control: control(outline, placed),
            calibration: calibration(records).into_iter().map(|(_, speed)| speed).collect(),
            checks: vec![],
            noise: checks::over_all(records),
            warnings: vec![],
            lost: compared::lost(outline, settings, placed),
        };
        summary.published = published::published(&summary, placed);
        summary.checks = checks::checks(&summary, records);
        summary.warnings = warnings(&summary, records, compared::torn_pairs(outline, settings, placed));
        summary
    }

    pub(crate) fn pcpus(&self) -> BTreeSet<usize> {
        self.rows.iter().map(|row| row.pcpus).collect()
    }

    /// Runs of the cell that has the fewest.
    fn fewest_runs(&self) -> usize {
        self.rows.iter().map(|row| row.runs).min().unwrap_or(0)
    }

    /// Lists the arms, with their settings, whose interval on either side is wider than `target`, or missing. The
    /// intervals are those of the requested ratios, or without any those of the throughputs. Left out is an arm of which no more
    /// can be known, as `is_lost` says of setting and arm, and any arm that is compared with it only.
    pub(crate) fn vaguer_than(
        &self,
        target: f64,
        is_lost: impl Fn(&Setting, &str) -> bool,
    ) -> Vec<(&Setting, &str)> {
        let is_vague = |estimate: Option<&Estimate>| {
            estimate.and_then(Estimate::half_width).is_none_or(|half| half > target)
        };
        if self.comparisons.is_empty() {
            let rows = self.rows.iter().filter(|row| row.role == Role::Arm);
            let vague =
                rows.filter(|row| is_vague(row.estimate(THROUGHPUT)) && !is_lost(&row.setting, &row.arm));
            return vague.map(|row| (&row.setting, row.arm.as_str())).collect();
        }
        let is_known =
            |it: &&Comparison| ![&it.arm, &it.baseline].iter().any(|arm| is_lost(&it.setting, arm));
        let compared = self.comparisons.iter().chain(&self.control).filter(is_known);
        let vague = compared.filter(|comparison| is_vague(comparison.ratio.as_ref()));
        vague.flat_map(|it| [&it.arm, &it.baseline].map(|arm| (&it.setting, arm.as_str()))).collect()
    }

    /// How many runs in how many blocks, in words.
    pub(crate) fn extent(&self) -> String {
        let fewest = self.fewest_runs();
        let fewest = if fewest < self.blocks as usize { format!("{fewest} to ") } else { String::new() };
        let again = match self.replaced {
            0 => String::new(),
            replaced => format!(" ({replaced} more were disturbed and made again)"),
        };
        format!("{} runs in {fewest}{} blocks{again}", self.runs, self.blocks)
    }

    pub(crate) fn comparison(&self, name: &str, setting: &Setting) -> Option<&Comparison> {
        self.comparisons.iter().find(|it| it.name == name && it.setting == *setting)
    }

    pub(crate) fn row(&self, setting: &Setting, arm: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.role != Role::Control && row.arm == arm && row.setting == *setting)
    }
}

/// Settings that vary, with their values.
pub(crate) type Setting = BTreeMap<String, String>;

/// `ratio 8, slice 1ms` behind `before`, or nothing where nothing varies.
pub(crate) fn words(before: &str, setting: &Setting) -> String {
    let words: Vec<String> = setting.iter().map(|(key, value)| format!("{key} {value}")).collect();
    if words.is_empty() { String::new() } else { format!("{before}{}", words.join(", ")) }
}

fn lock_costs(outline: &Outline, records: &[Record]) -> Vec<ArmCost> {
    if !outline.lock_costs {
        return vec![];
    }
    let of_arm = |arm: &String| {
        let is_of_arm = |record: &&Record| record.place.as_ref().is_some_and(|place| place.arm == *arm);
        let of_arm: Vec<_> = records.iter().filter(is_of_arm).map(|record| (0, record)).collect();
        let names = PAIRS.into_iter().chain([LOCK_BYTES, CPU_BYTES]);
        let figures =
            names.filter_map(|name| Some((name.to_owned(), rows::figure(name, &of_arm)?))).collect();
        (!of_arm.is_empty()).then(|| ArmCost { arm: arm.clone(), figures })
    };
    std::iter::once(&LOCK_FREE.to_owned()).chain(&outline.arms).filter_map(of_arm).collect()
}

/// Host of each lock-free run, and its throughput over the median of its cell there.
fn calibration(records: &[Record]) -> Vec<(String, f64)> {
    let ideal = |record: &Record| {
        let place = record.place.as_ref().filter(|place| place.role == Role::Ideal)?;
        let cell = (record.host.identity(), place.cell_id.clone());
        Some((place.order_index, cell, record.figure(THROUGHPUT)?))
    };
    let mut ideals: Vec<(u64, (String, String), f64)> = records.iter().filter_map(ideal).collect();
    ideals.sort_by_key(|(index, ..)| *index);
    let mut of_cells: BTreeMap<&(String, String), Vec<f64>> = BTreeMap::new();
    ideals.iter().for_each(|(_, cell, speed)| of_cells.entry(cell).or_default().push(*speed));
    let usual: BTreeMap<_, f64> =
        of_cells.into_iter().map(|(cell, speeds)| (cell, statistics::median(&speeds))).collect();
    let known = ideals.iter().filter(|(_, cell, _)| usual[cell] > 0.0);
    known.map(|(_, cell, speed)| (cell.0.clone(), speed / usual[cell])).collect()
}

/// Returns the findings of the checks, and other facts that a reader must know.
fn warnings(summary: &Summary, records: &[Record], torn: usize) -> Vec<String> {
    let mut warnings = summary.lost.clone();
    warnings.extend(checks::lost_time(&summary.noise));
    warnings.extend(consistency::warnings(records));
    if torn > 0 {
        warnings.push(format!(
            "{torn} pairs have their runs on different hosts and are left out: run all cells of a block on one host"
        ));
    }
    let failed =
        summary.checks.iter().filter(|check| check.outcome == CheckOutcome::Failed && !check.is_told());
    warnings.extend(failed.map(|check| check.text.clone()));
    warnings.extend(idle(records));
    if summary.fewest_runs() == 1 {
        warnings.push("only one block: no intervals; run more blocks".into());
    }
    warnings
}

/// Runs that completed nothing, in words.
fn idle(records: &[Record]) -> Option<String> {
    let idle = records.iter().filter(|record| record.figure(ACQUISITIONS) == Some(0.0)).count();
    (idle > 0).then(|| {
        format!(
            "{idle} of {} runs completed no section and count as half of one: a longer --window shows what they do",
            records.len()
        )
    })
}
