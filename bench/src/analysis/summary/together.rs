//! One row per setting and arm for all guests that run at once, where their number varies.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Setting;
use super::placed::Placed;
use super::rows::{arms, role};
use crate::analysis::rate::{self, Rate};
use crate::analysis::statistics::Estimate;
use crate::experiment::measure::Measure;
use crate::experiment::outline::Outline;
use crate::experiment::place::Role;
use crate::record::Record;

/// All guests of one arm at one setting.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Together {
    /// Settings that vary.
    pub(crate) setting: BTreeMap<String, String>,
    /// The arm.
    pub(crate) arm: String,
    /// Role of the runs in the experiment.
    pub(crate) role: Role,
    /// vCPUs of all guests.
    pub(crate) vcpus: u32,
    /// Runs.
    pub(crate) runs: usize,
    /// Sections per second of all guests; null if half of the runs or more had none.
    pub(crate) per_second: Option<Estimate>,
    /// Sections per second of the slowest guest of each run.
    pub(crate) slowest_guest_per_second: Option<Estimate>,
    /// Sections per second of the slowest vCPU of each run.
    pub(crate) slowest_vcpu_per_second: Option<Estimate>,
    /// 99th percentile of the time to get the lock, in the guest of each run where it is longest.
    pub(crate) wait_p99_ns: Option<Estimate>,
}

pub(super) fn rows(outline: &Outline, settings: &[Setting], placed: &Placed<'_, Record>) -> Vec<Together> {
    if !outline.varies_guests() {
        return vec![];
    }
    let mut rows = Vec::new();
    for setting in settings {
        let firsts = |arm: &&str| !arm.contains(crate::experiment::names::BESIDE);
        for arm in arms(outline, setting, placed).filter(firsts) {
            rows.extend(row(placed, setting, arm));
        }
    }
    rows
}

fn row(placed: &Placed<'_, Record>, setting: &Setting, arm: &str) -> Option<Together> {
    let firsts: Vec<&Record> = placed.of(setting, arm, false).map(|(_, record)| record).collect();
    let first = firsts.first()?;
    let estimate = |measure| {
        let rates: Option<Vec<Rate>> = firsts.iter().map(|record| placed.rate(&measure, record)).collect();
        rate::estimate(&rates?)
    };
    let longest = |record: &&&Record| {
        placed.guests(record).iter().filter_map(|guest| guest.wait_ns.p99).reduce(f64::max)
    };
    let p99: Vec<f64> = firsts.iter().filter_map(|record| longest(&record)).collect();
    Some(Together {
        setting: setting.clone(),
        arm: arm.into(),
        role: role(first)?,
        vcpus: placed.guests(first).iter().map(|guest| guest.config.vcpus).sum(),
        runs: firsts.len(),
        per_second: estimate(Measure::AllGuests),
        slowest_guest_per_second: estimate(Measure::SlowestGuest),
        slowest_vcpu_per_second: estimate(Measure::SlowestVcpu),
        wait_p99_ns: if 2 * p99.len() > firsts.len() { Estimate::of_positive(&p99) } else { None },
    })
}

#[cfg(test)]
mod tests {
    use crate::analysis::summary::Summary;
    use crate::measure::synthetic::{Sketch, World};

    #[test]
    fn guests_that_run_at_once_have_a_row_together() {
        let sketch = Sketch::new().axis("guests", &["1", "3"]).arm("a", "tas").arm("b", "ticket");
        let plan = sketch.plan(4);
        let world = World::new(1).truth(|asked| if asked.index == 1 { 1e5 } else { 1e6 });
        let summary = Summary::new(&plan.outline, &world.records(&plan));
        let of_three = |arm: &str| {
            let is_it = |row: &&super::Together| row.arm == arm && row.setting["guests"] == "3";
            let row = summary.together.iter().find(is_it).expect("a row for each arm");
            let of = |it: &Option<crate::analysis::statistics::Estimate>| {
                it.as_ref().map(|it| (it.hodges_lehmann / 1e5).round())
            };
            (row.runs, of(&row.per_second), of(&row.slowest_guest_per_second))
        };
        for arm in ["a", "b"] {
            assert_eq!(of_three(arm), (4, Some(21.0), Some(1.0)));
        }
        // Two arms and the lock-free cell, at two settings.
        assert_eq!(summary.together.len(), 6);
    }
}
