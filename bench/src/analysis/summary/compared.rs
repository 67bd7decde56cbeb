//! Records sorted by where they belong, ratios of arms within blocks, and the verdicts of trials of a few blocks each.

use std::collections::{BTreeMap, HashMap};

use super::{Comparison, Setting, Trials, words};
use crate::analysis::rate::{self, Rate};
use crate::analysis::significance::{LEVEL_OF_BOTH_SIDES, holm};
use crate::analysis::statistics::{self, Estimate, Verdict};
use crate::experiment::measure::Measure;
use crate::experiment::outline::{Outline, OutlineComparison};
use crate::host::noise::OTHERS_SHARE_LIMIT;
use crate::record::Record;
use crate::record::place::Role;

/// Two runs of a block that are compared.
pub(crate) struct Pair {
    /// Rates of the arm and of the baseline; `None` if either run lacks the figure.
    pub(crate) rates: Option<(Rate, Rate)>,
    /// Whether nothing spoiled either, and there are rates.
    pub(crate) is_valid: bool,
}

impl Pair {
    pub(super) fn ratio(&self) -> Option<Rate> {
        self.rates.map(|(above, below)| above.over(below))
    }
}

/// Setting, arm, and whether it is the second half of the A/A pair.
type Cell<'a> = (&'a Setting, &'a str, bool);

/// Records by setting, arm, role and block.
pub(crate) struct Placed<'a> {
    pub(super) cells: BTreeMap<(&'a Setting, &'a str, bool, u32), &'a Record>,
    /// Records of the guests of each run, by its id.
    runs: HashMap<&'a str, Vec<&'a Record>>,
}

impl<'a> Placed<'a> {
    pub(crate) fn sort(records: &'a [Record]) -> Self {
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

    /// The rate of each run of an arm by `measure`, and whether it is known and nothing spoiled it. Neighbours above the limit of the
    /// measure do.
    pub(crate) fn rates(&self, measure: &Measure, setting: &Setting, arm: &str) -> Vec<(Option<Rate>, bool)> {
        let run = |(_, record): (u32, &Record)| {
            let (rate, share) = (self.rate(measure, record), self.neighbours_share(measure, record));
            let is_quiet = share.is_some_and(|share| share <= measure.neighbours_limit());
            (rate, rate.is_some() && record.trusted && is_quiet)
        };
        self.of(setting, arm, false).map(run).collect()
    }

    /// Pairs of the first cell's runs over the second's, one for each block that has both on one host.
    ///
    /// Neighbours that use as much of both runs leave their ratio alone, within [`Measure::neighbours_limit`].
    pub(crate) fn pairs(&self, measure: &Measure, cells: [Cell<'_>; 2]) -> Vec<Pair> {
        let [above, below] = cells.map(|(setting, arm, control)| {
            let run = |(block, record): (u32, &Record)| {
                let pass = (block, record.host.identity());
                (pass, (self.rate(measure, record), self.neighbours_share(measure, record)))
            };
            self.of(setting, arm, control).map(run).collect::<BTreeMap<_, _>>()
        });
        let limit = measure.neighbours_limit();
        let are_alike = |(above, below): (f64, f64)| {
            above.max(below) <= limit && (above - below).abs() <= OTHERS_SHARE_LIMIT
        };
        let pair = |(pass, (above, share)): (_, (Option<Rate>, Option<f64>))| {
            let (baseline, baseline_share) = *below.get(&pass)?;
            let rates = above.zip(baseline);
            let is_valid = rates.is_some() && share.zip(baseline_share).is_some_and(are_alike);
            Some(Pair { rates, is_valid })
        };
        above.into_iter().filter_map(pair).collect()
    }
}

/// The settings that occur, in the outline's order.
pub(super) fn settings(outline: &Outline, placed: &Placed<'_>) -> Vec<Setting> {
    let mut settings: Vec<Setting> = placed.cells.keys().map(|(setting, ..)| (*setting).clone()).collect();
    settings.dedup();
    settings.sort_by_key(|setting| outline.rank(setting));
    settings
}

/// Pairs of compared arms that one block has both of, but on different hosts.
pub(super) fn torn_pairs(outline: &Outline, settings: &[Setting], placed: &Placed<'_>) -> usize {
    let torn = |asked: &OutlineComparison, setting: &Setting| {
        let is_torn = |(block, here): &(u32, &Record)| {
            let there = placed.cells.get(&(setting, asked.baseline.as_str(), false, *block));
            there.is_some_and(|there| there.host.identity() != here.host.identity())
        };
        placed.of(setting, &asked.arm, false).filter(is_torn).count()
    };
    outline.comparisons.iter().flat_map(|asked| settings.iter().map(move |it| torn(asked, it))).sum()
}

/// Share of pairs that may have an invalid run: Hodges and Lehmann's estimate bears this share of values that are
/// anything at all.
const BORNE: f64 = 0.29;

/// Whether too many are invalid for an estimate of all of them to be valid.
pub(crate) fn are_too_many(invalid: usize, of: usize) -> bool {
    invalid as f64 > BORNE * of as f64
}

/// A warning for each headline that is not valid, although single runs of it are: the first comparison of the file, at all its settings; of
/// an experiment that compares nothing, each arm. It is not valid if at some setting too many of its pairs, or of the arm's runs, have an
/// invalid run.
pub(super) fn lost(outline: &Outline, settings: &[Setting], placed: &Placed<'_>) -> Vec<String> {
    if let Some(OutlineComparison { of, name, arm, baseline }) = outline.comparisons.first() {
        let are_valid = |setting: &Setting| {
            let pairs = placed.pairs(of, [arm, baseline].map(|arm| (setting, arm.as_str(), false)));
            pairs.iter().map(|pair| pair.is_valid).collect()
        };
        let what = format!("the headline comparison '{name}'");
        return warning(&what, "pairs", settings, are_valid).into_iter().collect();
    }
    let of_arm = |arm: &String| {
        let are_valid =
            |setting: &Setting| placed.of(setting, arm, false).map(|(_, record)| record.trusted).collect();
        warning(&format!("arm '{arm}'"), "runs", settings, are_valid)
    };
    outline.arms.iter().filter_map(of_arm).collect()
}

/// Number of invalid runs, or pairs, as `3 of 8`; none if the estimate of them all bears that number.
pub(crate) fn too_many_of(valid: &[bool]) -> Option<String> {
    let spoiled = valid.iter().filter(|is_valid| !**is_valid).count();
    are_too_many(spoiled, valid.len()).then(|| format!("{spoiled} of {}", valid.len()))
}

/// The first few of what was lost, and how many more there are.
pub(crate) fn first_of(lost: &[String]) -> String {
    const MOST_NAMED: usize = 3;
    let named = lost.iter().take(MOST_NAMED).cloned().collect::<Vec<_>>().join("; ");
    match lost.len().saturating_sub(MOST_NAMED) {
        0 => named,
        more => format!("{named}; and {more} more"),
    }
}

/// One warning with the settings at which too many are spoiled, if there are any, or if nothing is known at any.
fn warning(
    what: &str,
    unit: &str,
    settings: &[Setting],
    are_valid: impl Fn(&Setting) -> Vec<bool>,
) -> Option<String> {
    let known = settings.iter().map(|setting| (setting, are_valid(setting)));
    let known: Vec<_> = known.filter(|(_, valid)| !valid.is_empty()).collect();
    if known.is_empty() {
        return Some(format!("{what} has no {unit}: nothing is known of it"));
    }
    let lost =
        known.iter().filter_map(|(setting, valid)| Some(too_many_of(valid)? + &words(" at ", setting)));
    let lost: Vec<String> = lost.collect();
    (!lost.is_empty()).then(|| {
        format!("{what} is not valid, more than 29 % of its {unit} being invalid: {}", first_of(&lost))
    })
}

/// All comparisons at all settings, with words that are corrected for the number of settings.
pub(super) fn comparisons(outline: &Outline, settings: &[Setting], placed: &Placed<'_>) -> Vec<Comparison> {
    let at = |asked: &OutlineComparison, setting: &Setting| {
        let pairs =
            placed.pairs(&asked.of, [&asked.arm, &asked.baseline].map(|arm| (setting, arm.as_str(), false)));
        is_measured(&pairs).then(|| comparison_of_pairs(asked, setting, &pairs))
    };
    let at_all = |asked| settings.iter().filter_map(move |it| at(asked, it));
    corrected(outline.comparisons.iter().flat_map(at_all).collect())
}

/// Comparisons at their settings, with corrected verdicts: a difference that does not withstand the correction is none. Each comes with
/// the p-value of its difference. Those of two arms by one figure, at however many settings, are corrected together; settings that are not
/// valid are not looked at. Every command takes its word for a difference from here.
pub(crate) fn corrected(found: Vec<(Comparison, Option<f64>)>) -> Vec<Comparison> {
    let (mut comparisons, p_values): (Vec<Comparison>, Vec<Option<f64>>) = found.into_iter().unzip();
    let mut families: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (at, it) in comparisons.iter().enumerate().filter(|(_, it)| it.verdict != Verdict::NotValid) {
        let family = [it.name.clone(), it.arm.clone(), it.baseline.clone(), String::from(it.of.clone())];
        families.entry(family).or_default().push(at);
    }
    for family in families.into_values() {
        let p_values: Vec<Option<f64>> = family.iter().map(|at| p_values[*at]).collect();
        let withstand = holm(&p_values, LEVEL_OF_BOTH_SIDES);
        let is_one_of_many = p_values.iter().flatten().count() > 1;
        for (_, at) in family.into_iter().enumerate().filter(|(place, _)| !withstand.contains(place)) {
            if is_one_of_many && comparisons[at].verdict.is_difference() {
                comparisons[at].verdict = Verdict::NoDifferenceShown;
            }
        }
    }
    comparisons
}

/// A comparison within blocks, of runs that may be invalid, and the p-value of its difference.
fn comparison_of_pairs(
    asked: &OutlineComparison,
    setting: &Setting,
    pairs: &[Pair],
) -> (Comparison, Option<f64>) {
    let ratios: Vec<Rate> = pairs.iter().filter_map(Pair::ratio).collect();
    let invalid_pairs = pairs.iter().filter(|pair| !pair.is_valid).count();
    let arms = [asked.arm.as_str(), &asked.baseline];
    let found = comparison(&asked.name, setting, arms, rate::estimate(&ratios), rate::values(&ratios));
    let is_lost = are_too_many(invalid_pairs, pairs.len());
    let verdict = if is_lost { Verdict::NotValid } else { found.verdict };
    let found = Comparison { of: asked.of.clone(), invalid_pairs: Some(invalid_pairs), verdict, ..found };
    (found, rate::p_of_difference(&ratios))
}

/// A comparison by this ratio, and by those of each block if it was made within blocks.
pub(crate) fn comparison(
    name: &str,
    setting: &Setting,
    [arm, baseline]: [&str; 2],
    ratio: Option<Estimate>,
    per_block: Vec<f64>,
) -> Comparison {
    Comparison {
        name: name.into(),
        setting: setting.clone(),
        of: Measure::Throughput,
        arm: arm.into(),
        baseline: baseline.into(),
        verdict: ratio.as_ref().map_or(Verdict::TooFewBlocks, Estimate::verdict),
        ratio,
        invalid_pairs: None,
        sensitivity: None,
        per_block,
    }
}

pub(super) fn control(outline: &Outline, placed: &Placed<'_>) -> Option<Comparison> {
    let control = outline.control.as_ref()?;
    // Kernels have no throughput: the headline says what they are compared by.
    let headline = outline.comparisons.first().map(|it| &it.of).filter(|of| of.figure().is_some());
    let of = headline.cloned().unwrap_or_default();
    let pairs =
        placed.pairs(&of, [true, false].map(|second| (&control.setting, control.arm.as_str(), second)));
    let arm = || control.arm.clone();
    let asked = OutlineComparison { of, name: "A/A".into(), arm: arm(), baseline: arm() };
    is_measured(&pairs).then(|| comparison_of_pairs(&asked, &control.setting, &pairs).0)
}

fn is_measured(pairs: &[Pair]) -> bool {
    pairs.iter().any(|pair| pair.rates.is_some())
}

/// Cuts the blocks of each comparison into trials and counts the verdicts.
pub(super) fn trials(outline: &Outline, comparisons: &[Comparison], placed: &Placed<'_>) -> Vec<Trials> {
    let Some(blocks_per_trial) = outline.trial_blocks else { return vec![] };
    let trials = |comparison: &Comparison| {
        let Comparison { of, setting, arm, baseline, .. } = comparison;
        let pairs = placed.pairs(of, [arm, baseline].map(|arm| (setting, arm.as_str(), false)));
        // With what counting tells: the ratios alone would have intervals without it.
        let rates: Vec<Rate> = pairs.iter().filter_map(Pair::ratio).collect();
        let verdicts: Vec<Verdict> = rates
            .chunks_exact(blocks_per_trial as usize)
            .map(|rates| rate::estimate(rates).map_or(Verdict::TooFewBlocks, |it| it.verdict()))
            .collect();
        let count = |wanted| verdicts.iter().filter(|verdict| **verdict == wanted).count();
        let (faster, slower) = (count(Verdict::Faster), count(Verdict::Slower));
        let interval = statistics::share_interval(faster + slower, verdicts.len());
        Trials {
            name: comparison.name.clone(),
            setting: setting.clone(),
            blocks_per_trial,
            trials: verdicts.len(),
            faster,
            slower,
            share: (faster + slower) as f64 / verdicts.len().max(1) as f64,
            share_low: interval.low,
            share_high: interval.high,
        }
    };
    comparisons.iter().map(trials).collect()
}

#[cfg(test)]
mod tests {
    use crate::analysis::summary::Summary;
    use crate::experiment::measure::Measure;
    use crate::host::noise::{BUSY_NEIGHBOUR, OTHERS_SHARE_LIMIT};
    use crate::measure::synthetic::{Sketch, World};
    use crate::record::figures::{ACQUISITIONS, THROUGHPUT, WINDOW};
    use crate::record::place::Role;

    #[test]
    fn trials_of_few_sections_show_no_difference_that_counting_hides() {
        let sketch = Sketch::two().compared();
        let plan = sketch.head("trial-blocks = 3").plan(6);
        let of_trials = |sections: u64| {
            let mut records = World::new(1).records(&plan);
            for record in &mut records {
                let is_b = record.placed().arm == "b";
                let sections = if is_b { 2 * sections } else { 3 * sections } as f64;
                record.figures.set(ACQUISITIONS, sections);
                let per_second = sections / (record.amount(WINDOW) / 1e9);
                record.figures.set(THROUGHPUT, per_second);
            }
            let trials = Summary::new(&plan.outline, &records).trials;
            (trials[0].trials, trials[0].faster, trials[0].slower)
        };
        assert_eq!(of_trials(1), (2, 0, 0));
        assert_eq!(of_trials(1000), (2, 0, 2));
    }

    #[test]
    fn only_the_headline_becomes_invalid_above_29_percent() {
        let plain = Sketch::two().axis("ratio", &["1", "8"]).arm("c", "mcs").control("a");
        let compared = plain.clone().compared().compare("c/a", "c", "a");
        for (sketch, arm, spoiled, expected) in [
            (&compared, "a", 2, None),
            (&compared, "a", 3, Some(("the headline comparison 'b/a'", "pairs"))),
            (&compared, "b", 3, Some(("the headline comparison 'b/a'", "pairs"))),
            (&compared, "c", 8, None),
            // Without comparisons every arm is the headline.
            (&plain, "c", 2, None),
            (&plain, "c", 3, Some(("arm 'c'", "runs"))),
        ] {
            let told = |(what, unit): (&str, &str)| {
                format!("{what} is not valid, more than 29 % of its {unit} being invalid: 3 of 8 at ratio 8")
            };
            let expected: Vec<String> = expected.map(told).into_iter().collect();
            let (plan, mut records) = sketch.measured(8);
            for record in &mut records {
                let place = record.placed();
                let is_early = place.block < spoiled && place.setting["ratio"] == "8";
                record.trusted = !(place.arm == arm && is_early);
            }
            assert_eq!(Summary::new(&plan.outline, &records).lost, expected, "{spoiled} of {arm}");
        }
        let (plan, mut records) = compared.measured(2);
        records.retain(|record| record.placed().arm != "a");
        let none = "the headline comparison 'b/a' has no pairs: nothing is known of it";
        assert_eq!(Summary::new(&plan.outline, &records).lost, [none]);
    }

    #[test]
    fn a_headline_of_all_guests_is_lost_with_the_guests_beside() {
        let two = |lock: &str| format!("vm = \"lock={lock}; name=second,lock=ticket\"");
        let sketch = Sketch::new().arm_with("a", &two("tas")).arm_with("b", &two("mcs"));
        let (mut plan, mut records) = sketch.compared().measured(8);
        for record in &mut records {
            record.trusted = record.placed().role != Role::Beside;
        }
        assert_eq!(Summary::new(&plan.outline, &records).lost, [""; 0], "the first guests are valid");
        for measure in [Measure::AllGuests, Measure::SlowestGuest] {
            plan.outline.comparisons[0].of = measure;
            let expected = "the headline comparison 'b/a' is not valid, more than 29 % of its pairs being invalid: 8 of 8";
            assert_eq!(Summary::new(&plan.outline, &records).lost, [expected]);
        }
    }

    #[test]
    fn neighbours_of_both_arms_spoil_ratios_only_beyond_their_measures_limit() {
        for (of, shares, is_valid) in [
            ("throughput", [0.09, 0.07], true),
            ("throughput", [0.11, 0.09], false),
            ("throughput", [0.09, 0.03], false),
            ("hold_p99_ns", [0.19, 0.16], true),
            ("hold_p99_ns", [0.21, 0.19], false),
            ("wait_p99_ns", [0.019, 0.0], true),
            ("wait_p99_ns", [0.021, 0.021], false),
            ("wait_p50_ns", [0.03, 0.03], true),
            ("lock-cpu", [0.051, 0.04], false),
        ] {
            let mut plan = Sketch::two().compared().plan(8);
            let measure = Measure::try_from(of.to_owned()).unwrap();
            assert_eq!(String::from(measure.clone()), of, "it is written as it is read");
            plan.outline.comparisons[0].of = measure;
            let mut records = World::new(1).records(&plan);
            for record in &mut records {
                let share = shares[usize::from(record.placed().arm == "a")];
                record.noise.run_delay_share = Some(share);
                if share > OTHERS_SHARE_LIMIT {
                    record.warn(BUSY_NEIGHBOUR, "somebody".into());
                }
                for figure in ["hold_p99_ns", "wait_p99_ns", "wait_p50_ns"] {
                    record.figures.set(figure, 1000.0);
                }
            }
            assert_eq!(Summary::new(&plan.outline, &records).lost.is_empty(), is_valid, "{of} {shares:?}");
            records.iter_mut().for_each(|record| record.warn("host-steal", "the outer host".into()));
            assert_ne!(Summary::new(&plan.outline, &records).lost, [""; 0], "{of}: for another reason");
        }
    }
}
