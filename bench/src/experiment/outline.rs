//! Order of results: the part of an experiment that its manifest keeps.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use haltkick_vmm::Span;

use super::measure::Measure;
use super::published::Published;
use crate::settings::table;

/// Order of results, as the manifest keeps it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Outline {
    /// Name of the experiment.
    pub(crate) experiment: String,
    /// Its title.
    pub(crate) title: String,
    /// Passes over all cells that are planned.
    pub(crate) blocks: u32,
    /// Blocks per trial, where verdicts are counted over many trials.
    pub(crate) trial_blocks: Option<u32>,
    /// Whether uncontended costs are reported.
    #[serde(default)]
    pub(crate) lock_costs: bool,
    /// Settings that vary, each with its values, in order.
    pub(crate) axes: Vec<OutlineAxis>,
    /// Arms in order.
    pub(crate) arms: Vec<String>,
    /// Ratios to report.
    pub(crate) comparisons: Vec<OutlineComparison>,
    /// The A/A pair.
    pub(crate) control: Option<OutlineControl>,
    /// Published figures to put next to ours.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) published: Vec<Published>,
}

impl Outline {
    /// Returns the place of a setting in the order of the file.
    pub(crate) fn rank(&self, setting: &BTreeMap<String, String>) -> Vec<usize> {
        let of_axis = |axis: &OutlineAxis| {
            let value = setting.get(&axis.key)?;
            axis.values.iter().position(|each| each == value)
        };
        self.axes.iter().map(|axis| of_axis(axis).unwrap_or(usize::MAX)).collect()
    }

    /// Names of the columns of exports for the settings that vary: of each its value as written, then of each time its
    /// nanoseconds.
    pub(crate) fn setting_columns(&self) -> Vec<String> {
        // The machine that ran has a column `host` of its own.
        let written = self.axes.iter().map(|axis| match axis.key.as_str() {
            "host" => "setting_host".to_owned(),
            key => key.to_owned(),
        });
        written.chain(self.times().map(|axis| format!("{}_ns", axis.key.replace('-', "_")))).collect()
    }

    /// The values in these columns at a setting; empty where a value is a word. What stands behind a slash is no part of a time.
    pub(crate) fn setting_values(&self, setting: &BTreeMap<String, String>) -> Vec<String> {
        let value = |axis: &OutlineAxis| setting.get(&axis.key).map_or("", String::as_str);
        let nanoseconds = |axis: &OutlineAxis| {
            let time = value(axis).split('/').next().and_then(|time| time.parse::<Span>().ok());
            time.map_or(String::new(), |time| time.0.as_nanos().to_string())
        };
        self.axes.iter().map(|axis| value(axis).to_owned()).chain(self.times().map(nanoseconds)).collect()
    }

    /// Settings that are times.
    fn times(&self) -> impl Iterator<Item = &OutlineAxis> {
        self.axes.iter().filter(|axis| table::find(&axis.key).is_some_and(|it| it.is_time()))
    }

    /// "ratio 8, slice 1ms": a setting in words, in the order of the file.
    pub(crate) fn name(&self, setting: &BTreeMap<String, String>) -> String {
        let parts = self.axes.iter().filter_map(|it| Some(format!("{} {}", it.key, setting.get(&it.key)?)));
        parts.collect::<Vec<_>>().join(", ")
    }

    /// Whether a setting tells the number of vCPUs.
    pub(crate) fn tells_vcpus(&self) -> bool {
        self.axes.iter().any(|axis| axis.key == "ratio" || axis.key == "vcpus")
    }
}

/// A setting that varies.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct OutlineAxis {
    /// Name of the setting.
    pub(crate) key: String,
    /// Its values, in order.
    pub(crate) values: Vec<String>,
}

/// A ratio to report.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct OutlineComparison {
    /// Measure that is compared.
    #[serde(default)]
    pub(crate) of: Measure,
    /// Name of the comparison.
    pub(crate) name: String,
    /// The arm above the line.
    pub(crate) arm: String,
    /// The arm below the line.
    pub(crate) baseline: String,
}

/// The cell that runs twice in every block.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct OutlineControl {
    /// Its arm.
    pub(crate) arm: String,
    /// Its setting.
    pub(crate) setting: BTreeMap<String, String>,
}
