//! Validity of an experiment's headline, although single runs of it are invalid.
//!
//! The headline is the first comparison of the file, at all its settings; of an experiment that compares nothing, each arm at
//! each setting. It is not valid if at some setting more than 29 % of its pairs (or of the arm's runs) have an invalid
//! run: the Hodges-Lehmann estimate tolerates up to 29 % of arbitrary values.

use super::compared::{Placed, are_too_many, settings};
use super::{Setting, words};
use crate::experiment::outline::{Outline, OutlineComparison};
use crate::record::Record;

/// A warning for each headline that is not valid.
pub(crate) fn lost(outline: &Outline, records: &[Record]) -> Vec<String> {
    let placed = Placed::sort(records);
    let settings = settings(outline, &placed);
    if let Some(OutlineComparison { of, name, arm, baseline }) = outline.comparisons.first() {
        let are_valid = |setting: &Setting| {
            let pairs = placed.pairs(of, [arm, baseline].map(|arm| (setting, arm.as_str(), false)));
            pairs.iter().map(|pair| pair.is_valid).collect()
        };
        let what = format!("the headline comparison '{name}'");
        return warning(&what, "pairs", &settings, are_valid).into_iter().collect();
    }
    let of_arm = |arm: &String| {
        let are_valid =
            |setting: &Setting| placed.of(setting, arm, false).map(|(_, record)| record.trusted).collect();
        warning(&format!("arm '{arm}'"), "runs", &settings, are_valid)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::measure::Measure;
    use crate::host::noise::{BUSY_NEIGHBOUR, OTHERS_SHARE_LIMIT};
    use crate::measure::synthetic::{Sketch, World};
    use crate::record::place::Role;

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
            assert_eq!(lost(&plan.outline, &records), expected, "{spoiled} of {arm}");
        }
        let (plan, mut records) = compared.measured(2);
        records.retain(|record| record.placed().arm != "a");
        let none = "the headline comparison 'b/a' has no pairs: nothing is known of it";
        assert_eq!(lost(&plan.outline, &records), [none]);
    }

    #[test]
    fn a_headline_of_all_guests_is_lost_with_the_guests_beside() {
        let two = |lock: &str| format!("vm = \"lock={lock}; name=second,lock=ticket\"");
        let sketch = Sketch::new().arm_with("a", &two("tas")).arm_with("b", &two("mcs"));
        let (mut plan, mut records) = sketch.compared().measured(8);
        for record in &mut records {
            record.trusted = record.placed().role != Role::Beside;
        }
        assert_eq!(lost(&plan.outline, &records), [""; 0], "the first guests are valid");
        for measure in [Measure::AllGuests, Measure::SlowestGuest] {
            plan.outline.comparisons[0].of = measure;
            let expected = "the headline comparison 'b/a' is not valid, more than 29 % of its pairs being invalid: 8 of 8";
            assert_eq!(lost(&plan.outline, &records), [expected]);
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
            assert_eq!(lost(&plan.outline, &records).is_empty(), is_valid, "{of} {shares:?}");
            records.iter_mut().for_each(|record| record.warn("host-steal", "the outer host".into()));
            assert_ne!(lost(&plan.outline, &records), [""; 0], "{of}: for another reason");
        }
    }
}
