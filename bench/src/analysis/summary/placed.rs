//! Records, sorted by where they belong.

use std::collections::{BTreeMap, HashMap};

use super::Setting;
use crate::analysis::rate::Rate;
use crate::experiment::measure::Measure;
use crate::experiment::outline::Outline;
use crate::host::noise::OTHERS_SHARE_LIMIT;
use crate::record::Record;
use crate::record::place::Role;

/// Two runs of a block that are compared.
pub(in crate::analysis) struct Pair {
    /// Ratio of the arm over the baseline; `None` if either run lacks the figure.
    pub(super) ratio: Option<Rate>,
    /// Whether nothing spoiled either, and there is a ratio.
    pub(in crate::analysis) is_valid: bool,
}

/// Records by setting, arm, role and block.
pub(in crate::analysis) struct Placed<'a> {
    pub(super) cells: BTreeMap<(&'a Setting, &'a str, bool, u32), &'a Record>,
    /// Records of the guests of each run, by its id.
    runs: HashMap<&'a str, Vec<&'a Record>>,
}

impl<'a> Placed<'a> {
    pub(in crate::analysis) fn sort(records: &'a [Record]) -> Self {
        let keyed = records.iter().filter_map(|record| {
            let place = record.place.as_ref()?;
            Some(((&place.setting, place.arm.as_str(), place.role == Role::Control, place.block), record))
        });
        let mut runs: HashMap<&str, Vec<&Record>> = HashMap::new();
        records.iter().for_each(|record| runs.entry(&record.run_id).or_default().push(record));
        Self { cells: keyed.collect(), runs }
    }

    pub(super) fn guests(&self, record: &Record) -> &[&'a Record] {
        &self.runs[record.run_id.as_str()]
    }

    /// The rate that `measure` measures in the run of `record`; `None` where it does not tell.
    pub(super) fn rate(&self, measure: &Measure, record: &Record) -> Option<Rate> {
        if !measure.is_of_all_guests() {
            return Rate::by(measure, record);
        }
        let each: Option<Vec<Rate>> = self.guests(record).iter().map(|it| Rate::by(measure, it)).collect();
        Rate::of_guests(measure, each?.into_iter())
    }

    /// The share that others used in the run of `record`, if nothing else spoiled what `measure` measures in it.
    fn neighbours_share(&self, measure: &Measure, record: &Record) -> Option<f64> {
        if !measure.is_of_all_guests() {
            return record.neighbours_share();
        }
        let of_each: Option<Vec<f64>> = self.guests(record).iter().map(|it| it.neighbours_share()).collect();
        of_each?.into_iter().reduce(f64::max)
    }

    /// Records of one arm at one setting with their block.
    pub(super) fn of<'s>(
        &'s self,
        setting: &'s Setting,
        arm: &'s str,
        control: bool,
    ) -> impl Iterator<Item = (u32, &'a Record)> + 's {
        let range = (setting, arm, control, 0)..=(setting, arm, control, u32::MAX);
        self.cells
            .range::<(&Setting, &str, bool, u32), _>(range)
            .map(|((.., block), record)| (*block, *record))
    }

    /// `arm` over `baseline` in each block that has both, on one host; `of_control`: the arm's runs are those of the A/A pair's second half.
    ///
    /// Neighbours that use as much of both runs leave their ratio alone, within [`Measure::neighbours_limit`].
    pub(in crate::analysis) fn pairs(
        &self,
        measure: &Measure,
        setting: &Setting,
        arm: &str,
        baseline: &str,
        of_control: bool,
    ) -> Vec<Pair> {
        let run = |(block, record): (u32, &Record)| {
            let pass = (block, record.host.identity());
            (pass, (self.rate(measure, record), self.neighbours_share(measure, record)))
        };
        let below: BTreeMap<(u32, String), (Option<Rate>, Option<f64>)> =
            self.of(setting, baseline, false).map(run).collect();
        let limit = measure.neighbours_limit();
        let are_alike = |(above, below): (f64, f64)| {
            above.max(below) <= limit && (above - below).abs() <= OTHERS_SHARE_LIMIT
        };
        let pair = |(pass, (above, share)): (_, (Option<Rate>, Option<f64>))| {
            let (baseline, baseline_share) = *below.get(&pass)?;
            let ratio = above.zip(baseline).map(|(above, baseline)| above.over(baseline));
            let is_valid = ratio.is_some() && share.zip(baseline_share).is_some_and(are_alike);
            Some(Pair { ratio, is_valid })
        };
        self.of(setting, arm, of_control).map(run).filter_map(pair).collect()
    }
}

/// The settings that occur, in the outline's order.
pub(in crate::analysis) fn settings(outline: &Outline, placed: &Placed<'_>) -> Vec<Setting> {
    let mut settings: Vec<Setting> = placed.cells.keys().map(|(setting, ..)| (*setting).clone()).collect();
    settings.dedup();
    settings.sort_by_key(|setting| outline.rank(setting));
    settings
}
