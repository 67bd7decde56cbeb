//! The pictures of an experiment, each a file of its own and a part of the report.

mod activity;
mod curves;
mod distribution;
mod fairness;

use std::collections::BTreeMap;

use curves::Panel;

use crate::analysis::summary::Summary;
use crate::experiment::place::Role;
use crate::record::Record;
use crate::show::svg::Svg;

/// A picture with what to say about it.
pub(crate) struct Picture {
    /// File name without its ending.
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) caption: String,
    /// `None`: it cannot be drawn from these records, and the caption says why.
    pub(crate) svg: Option<Svg>,
}

/// What the pictures are drawn from.
pub(crate) struct Data<'a> {
    pub(crate) summary: &'a Summary,
    /// Records of arms, by setting and arm.
    runs: BTreeMap<&'a Setting, BTreeMap<&'a str, Vec<&'a Record>>>,
}

pub(crate) type Setting = BTreeMap<String, String>;

/// Width of every picture.
const WIDTH: f64 = 960.0;

impl<'a> Data<'a> {
    pub(crate) fn new(summary: &'a Summary, records: &'a [Record]) -> Self {
        let mut runs: BTreeMap<&Setting, BTreeMap<&str, Vec<&Record>>> = BTreeMap::new();
        for record in records {
            if let Some(place) = record.place.as_ref().filter(|place| place.role == Role::Arm) {
                runs.entry(&place.setting).or_default().entry(&place.arm).or_default().push(record);
            }
        }
        Self { summary, runs }
    }

    fn runs(&self, setting: &Setting, arm: &str) -> &[&'a Record] {
        self.runs.get(setting).and_then(|arms| arms.get(arm)).map_or(&[], Vec::as_slice)
    }

    /// Settings in the order of the file.
    fn settings(&self) -> Vec<&'a Setting> {
        let mut settings: Vec<&Setting> = self.runs.keys().copied().collect();
        settings.sort_by_key(|setting| self.summary.outline.rank(setting));
        settings
    }

    fn arms(&self) -> &'a [String] {
        &self.summary.outline.arms
    }

    /// "ratio 8, hold 5us".
    fn name(&self, setting: &Setting) -> String {
        let axes = self.summary.outline.axes.iter();
        let parts = axes.filter_map(|axis| Some(format!("{} {}", axis.key, setting.get(&axis.key)?)));
        parts.collect::<Vec<_>>().join(", ")
    }
}

/// Colour and marker of an arm: grey 0 is for what is no arm.
fn series(arm: usize) -> usize {
    arm + 1
}

/// All pictures that the data are enough for.
pub(crate) fn pictures(data: &Data<'_>) -> Vec<Picture> {
    let panels = curves::panels(data);
    let over = |draw: fn(&Data<'_>, &Panel<'_>) -> Option<Picture>| {
        panels.iter().map(move |panel| draw(data, panel))
    };
    let curves = over(curves::throughput).chain(over(curves::efficiency)).chain(over(curves::comparison));
    let others = [
        distribution::waits(data),
        activity::time(data),
        activity::preemptions(data),
        fairness::strips(data),
        curves::calibration(data),
    ];
    curves.chain(others).flatten().collect()
}
