//! One row per setting and kernel: the figures that its guests printed.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::Setting;
use super::placed::Placed;
use crate::analysis::statistics::Estimate;
use crate::experiment::outline::Outline;
use crate::experiment::place::Role;
use crate::record::linux::LinuxRecord;

/// One kernel at one setting.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct KernelRow {
    /// Settings that vary.
    pub(crate) setting: BTreeMap<String, String>,
    /// The arm.
    pub(crate) arm: String,
    /// Purpose of the row.
    pub(crate) role: Role,
    /// vCPUs.
    pub(crate) vcpus: u32,
    /// pCPUs.
    pub(crate) pcpus: usize,
    /// Runs.
    pub(crate) runs: usize,
    /// Figures that the guests printed, by name; events of the kernel's locks with `lock_event.` before it.
    pub(crate) figures: BTreeMap<String, FigureRow>,
}

/// A figure over all runs.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct FigureRow {
    /// Its unit, as the guests wrote it.
    pub(crate) unit: String,
    /// Runs that printed it.
    pub(crate) runs: usize,
    /// The least.
    pub(crate) least: f64,
    /// The most.
    pub(crate) most: f64,
    /// Estimate over all runs; null if some did not print it, or not all values are positive.
    pub(crate) estimate: Option<Estimate>,
}

pub(super) fn rows(
    outline: &Outline,
    settings: &[Setting],
    placed: &Placed<'_, LinuxRecord>,
) -> Vec<KernelRow> {
    let mut rows = Vec::new();
    for setting in settings {
        for arm in &outline.arms {
            for control in [false, true] {
                let records: Vec<&LinuxRecord> =
                    placed.of(setting, arm, control).map(|(_, record)| record).collect();
                rows.extend(row(setting, arm, &records));
            }
        }
    }
    rows
}

fn row(setting: &Setting, arm: &str, records: &[&LinuxRecord]) -> Option<KernelRow> {
    let first = records.first()?;
    let names: BTreeSet<String> = records.iter().flat_map(|record| record.named().into_keys()).collect();
    let figures = names.into_iter().filter_map(|name| Some((figure(&name, records)?, name)));
    Some(KernelRow {
        setting: setting.clone(),
        arm: arm.into(),
        role: first.place.as_ref()?.role,
        vcpus: first.config.vcpus,
        pcpus: first.config.cpus.len(),
        runs: records.len(),
        figures: figures.map(|(figure, name)| (name, figure)).collect(),
    })
}

fn figure(name: &str, records: &[&LinuxRecord]) -> Option<FigureRow> {
    let told: Vec<(f64, String)> = records.iter().filter_map(|record| record.named().remove(name)).collect();
    let values: Vec<f64> = told.iter().map(|(value, _)| *value).collect();
    let (_, unit) = told.last()?;
    Some(FigureRow {
        unit: unit.clone(),
        runs: values.len(),
        least: values.iter().copied().fold(f64::INFINITY, f64::min),
        most: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        estimate: if values.len() == records.len() { Estimate::of_positive(&values) } else { None },
    })
}
