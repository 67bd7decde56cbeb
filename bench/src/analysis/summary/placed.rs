//! Records, sorted by where they belong.

use std::collections::{BTreeMap, HashMap};

use super::Setting;
use crate::analysis::rate::Rate;
use crate::analysis::recorded::Recorded;
use crate::experiment::measure::Measure;
use crate::experiment::outline::Outline;
use crate::experiment::place::Role;

/// Two runs of a block that are compared.
pub(super) struct Pair {
    /// Ratio of the arm over the baseline; `None` if either run lacks the figure.
    pub(super) ratio: Option<Rate>,
    /// Whether nothing spoiled either, and there is a ratio.
    pub(super) is_valid: bool,
}

/// Records by setting, arm, role and block.
pub(super) struct Placed<'a, R> {
    pub(super) cells: BTreeMap<(&'a Setting, &'a str, bool, u32), &'a R>,
    /// Records of the guests of each run, by its id.
    runs: HashMap<&'a str, Vec<&'a R>>,
}

impl<'a, R: Recorded> Placed<'a, R> {
    pub(super) fn sort(records: &'a [R]) -> Self {
        let keyed = records.iter().filter_map(|record| {
            let place = record.place()?;
            Some(((&place.setting, place.arm.as_str(), place.role == Role::Control, place.block), record))
        });
        let mut runs: HashMap<&str, Vec<&R>> = HashMap::new();
        records.iter().for_each(|record| runs.entry(record.run_id()).or_default().push(record));
        Self { cells: keyed.collect(), runs }
    }

    /// Records of all guests of the run of `record`.
    pub(super) fn guests(&self, record: &R) -> &[&'a R] {
        &self.runs[record.run_id()]
    }

    /// The rate that `measure` measures in the run of `record`; `None` where it does not tell.
    pub(super) fn rate(&self, measure: &Measure, record: &R) -> Option<Rate> {
        if !measure.is_of_all_guests() {
            return record.rate(measure);
        }
        let each: Option<Vec<Rate>> = self.guests(record).iter().map(|it| it.rate(measure)).collect();
        Rate::of_guests(measure, each?.into_iter())
    }

    /// Whether nothing spoiled what `measure` measures in the run of `record`.
    fn is_trusted(&self, measure: &Measure, record: &R) -> bool {
        match measure.is_of_all_guests() {
            true => self.guests(record).iter().all(|it| it.is_trusted()),
            false => record.is_trusted(),
        }
    }

    /// Records of one arm at one setting with their block.
    pub(super) fn of<'s>(
        &'s self,
        setting: &'s Setting,
        arm: &'s str,
        control: bool,
    ) -> impl Iterator<Item = (u32, &'a R)> + 's {
        let range = (setting, arm, control, 0)..=(setting, arm, control, u32::MAX);
        self.cells
            .range::<(&Setting, &str, bool, u32), _>(range)
            .map(|((.., block), record)| (*block, *record))
    }

    /// `arm` over `baseline` in each block that has both, on one host.
    pub(super) fn pairs(
        &self,
        measure: &Measure,
        setting: &Setting,
        arm: (&str, bool),
        baseline: (&str, bool),
    ) -> Vec<Pair> {
        let runs = |(arm, control)| {
            let records = self.of(setting, arm, control);
            let pass = |block, record: &R| (block, record.host().identity());
            let run = move |record: &R| (self.rate(measure, record), self.is_trusted(measure, record));
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
pub(super) fn settings<R>(outline: &Outline, placed: &Placed<'_, R>) -> Vec<Setting> {
    let mut settings: Vec<Setting> = placed.cells.keys().map(|(setting, ..)| (*setting).clone()).collect();
    settings.dedup();
    settings.sort_by_key(|setting| outline.rank(setting));
    settings
}
