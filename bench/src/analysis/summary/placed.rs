//! Records, sorted by where they belong.

use std::collections::{BTreeMap, HashMap};

use super::Setting;
use crate::analysis::rate::Rate;
use crate::experiment::measure::Measure;
use crate::experiment::outline::Outline;
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

    /// Records of all guests of the run of `record`.
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

    /// Whether nothing spoiled what `measure` measures in the run of `record`.
    fn is_trusted(&self, measure: &Measure, record: &Record) -> bool {
        match measure.is_of_all_guests() {
            true => self.guests(record).iter().all(|it| it.trusted),
            false => record.trusted,
        }
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

    /// `arm` over `baseline` in each block that has both, on one host.
    pub(in crate::analysis) fn pairs(
        &self,
        measure: &Measure,
        setting: &Setting,
        arm: (&str, bool),
        baseline: (&str, bool),
    ) -> Vec<Pair> {
        let runs = |(arm, control)| {
            let records = self.of(setting, arm, control);
            let pass = |block, record: &Record| (block, record.host.identity());
            let run = move |record: &Record| (self.rate(measure, record), self.is_trusted(measure, record));
            records.map(move |(block, record)| (pass(block, record), run(record)))
        };
        let below: BTreeMap<(u32, String), (Option<Rate>, bool)> = runs(baseline).collect();
        let pair = |(pass, (above, is_valid)): (_, (Option<Rate>, bool))| {
            let (baseline, is_baseline_valid) = *below.get(&pass)?;
            let ratio = above.zip(baseline).map(|(above, baseline)| above.over(baseline));
            Some(Pair { ratio, is_valid: is_valid && is_baseline_valid && ratio.is_some() })
        };
        runs(arm).filter_map(pair).collect()
    }
}

/// The settings that occur, in the outline's order.
pub(in crate::analysis) fn settings(outline: &Outline, placed: &Placed<'_>) -> Vec<Setting> {
    let mut settings: Vec<Setting> = placed.cells.keys().map(|(setting, ..)| (*setting).clone()).collect();
    settings.dedup();
    settings.sort_by_key(|setting| outline.rank(setting));
    settings
}
