//! Sentences of a report: differences that are shown, with their intervals, at how many settings.
//!
//! A difference is told where the table marks one: both have the words of [`corrected`](crate::analysis::summary::corrected).

use crate::analysis::statistics::{Interval, Verdict};
use crate::analysis::summary::{Comparison, Row, Setting, Summary, are_too_many};
use crate::experiment::outline::OutlineComparison;
use crate::record::figures::EFFICIENCY;
use crate::record::place::Role;
use crate::text::quantity::significant;

#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) text: String,
    /// Whether few enough of the runs behind it are invalid.
    pub(crate) is_valid: bool,
}

pub(crate) fn findings(summary: &Summary) -> Vec<Finding> {
    let of_comparisons = summary.outline.comparisons.iter().filter_map(|asked| {
        let of_it = summary.comparisons.iter().filter(|comparison| comparison.name == asked.name);
        sentence(summary, asked, &of_it.collect::<Vec<_>>())
    });
    of_comparisons.chain(most_efficient(summary)).chain(control(summary)).chain(over_seeds(summary)).collect()
}

/// The largest difference that is shown in each direction, or that none is; and where too few runs are valid.
fn sentence(summary: &Summary, asked: &OutlineComparison, of_it: &[&Comparison]) -> Option<Finding> {
    let settings = of_it.len();
    let invalid = of_it.iter().filter(|it| it.verdict == Verdict::NotValid).count();
    let finding = |text: String| {
        Some(Finding { text: format!("{}: {text}.", asked.name), is_valid: invalid < settings })
    };
    if settings == 0 {
        return None;
    }
    if invalid == settings {
        let of_all =
            if settings == 1 { "its setting".into() } else { format!("each of its {settings} settings") };
        return finding(format!("no finding, too many of the pairs at {of_all} have an invalid run"));
    }
    let differ = of_it.iter().copied().filter(|it| it.verdict.is_difference());
    let (guessed, shown): (Vec<&Comparison>, Vec<_>) = differ.partition(|it| it.depends_on_guesses());
    let mut left_out = String::new();
    if invalid > 0 {
        left_out += &format!("; not valid at {invalid}, which are left out");
    }
    left_out += &match guessed.len() {
        0 => String::new(),
        1 => "; 1 flips or is undetermined on machines like it, and is left out".into(),
        many => format!("; {many} flip or are undetermined on machines like theirs, and are left out"),
    };
    let corrected = if settings - invalid > 1 { ", by Holm's correction" } else { "" };
    if shown.is_empty() {
        let tail = format!("{corrected}{}{left_out}", taken_back(of_it));
        return finding(format!("no difference is shown at any of {settings} settings{tail}"));
    }
    let log = |it: &Comparison| it.ratio.as_ref().map_or(0.0, |ratio| ratio.hodges_lehmann.ln().abs());
    let farthest = |(verdict, to): (Verdict, &str)| {
        let such = shown.iter().filter(|it| it.verdict == verdict);
        let it = such.max_by(|a, b| log(a).total_cmp(&log(b)))?;
        let (word, at) = (verdict.word(&asked.of), setting_name(summary, &it.setting));
        Some(format!("{word}, {to} {} at {at}", it.as_ratio()))
    };
    let parts = [(Verdict::Faster, "up to"), (Verdict::Slower, "down to")];
    let parts: Vec<String> = parts.into_iter().filter_map(farthest).collect();
    let extent = if settings == 1 && guessed.is_empty() {
        String::new()
    } else {
        let told = shown.len();
        format!(" (a difference is shown at {told} of {settings} settings{corrected}{left_out})")
    };
    finding(format!("{}{extent}", parts.join("; ")))
}

/// How many intervals by themselves exclude 1 where the correction leaves no difference.
fn taken_back(of_it: &[&Comparison]) -> String {
    let excludes = |it: &Comparison| it.ratio.as_ref().is_some_and(|ratio| ratio.verdict().is_difference());
    let taken_back = of_it.iter().filter(|it| it.verdict == Verdict::NoDifferenceShown && excludes(it));
    match taken_back.count() {
        0 => String::new(),
        several => format!(
            " (1 is outside of the interval of {several}: more --blocks, or fewer settings, may tell)"
        ),
    }
}

/// The arm nearest to the ideal at the last setting, and those that cannot be told from it.
fn most_efficient(summary: &Summary) -> Option<Finding> {
    let setting = &summary.rows.last()?.setting;
    let rows = summary.rows.iter().filter(|row| row.role == Role::Arm && row.setting == *setting);
    let known = rows.filter_map(|row| {
        let efficiency = row.estimate(EFFICIENCY)?;
        Some((row, efficiency.hodges_lehmann, efficiency.interval?))
    });
    let mut known: Vec<(&Row, f64, Interval)> = known.collect();
    known.sort_by(|a, b| b.1.total_cmp(&a.1));
    let ((best, efficiency, interval), rest) = known.split_first().filter(|(_, rest)| !rest.is_empty())?;
    let alike = rest.iter().filter(|(.., other)| other.high >= interval.low);
    let besides = match &alike.map(|(row, ..)| row.arm.as_str()).collect::<Vec<_>>()[..] {
        [] => String::new(),
        alike => format!("; by these intervals it cannot be told from {}", alike.join(", ")),
    };
    let is_valid = !known.iter().any(|(row, ..)| are_too_many(row.invalid_runs, row.runs));
    let text = format!(
        "At {} the arm {} has the highest efficiency, {} of the ideal ({} to {}){besides}.",
        setting_name(summary, setting),
        best.arm,
        significant(*efficiency),
        significant(interval.low),
        significant(interval.high)
    );
    Some(Finding { text, is_valid })
}

fn control(summary: &Summary) -> Option<Finding> {
    let control = summary.control.as_ref()?;
    let ratio = control.as_ratio();
    let word = control.verdict.word(&control.of);
    Some(Finding {
        text: format!("A/A pair, the same cell twice in every block: {ratio}, {word}."),
        is_valid: control.verdict != Verdict::NotValid,
    })
}

fn over_seeds(summary: &Summary) -> Option<Finding> {
    const TEXT: &str =
        "Simulated: intervals are over seeds only; the error of the machine's model is not in them.";
    summary.simulated.then(|| Finding { text: TEXT.into(), is_valid: true })
}

/// "ratio 8, slice 1ms".
pub(crate) fn setting_name(summary: &Summary, setting: &Setting) -> String {
    let name = summary.outline.name(setting);
    if name.is_empty() { "the only setting".into() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::plan::Plan;
    use crate::measure::synthetic::{Shape, Sketch, World, assert_has};
    use crate::record::Record;

    const RATIOS: [&str; 12] = ["1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12"];

    fn plan() -> Plan {
        Sketch::two().axis("ratio", &RATIOS).compared().plan(7)
    }

    /// Records whose lock-free runs scatter too far are marked; this is about what is valid.
    fn valid(mut records: Vec<Record>) -> Vec<Record> {
        records.iter_mut().for_each(|record| record.trusted = true);
        records
    }

    /// A host on which the ticket lock is twice as fast.
    fn twice() -> World {
        World::new(1).truth(|asked| if asked.ours.lock == "tas" { 1e5 } else { 2e5 })
    }

    fn summary(slower_at_12: f64) -> Summary {
        let plan = plan();
        let world = World::new(1).shape(Shape::LogNormal(0.05)).truth(move |asked| {
            let is_slow =
                asked.ours.lock == "ticket" && asked.guest.vcpus == 12 * asked.run.cpus.len() as u32;
            if is_slow { 1e5 * slower_at_12 } else { 1e5 }
        });
        Summary::new(&plan.outline, &valid(world.records(&plan)))
    }

    #[test]
    fn differences_are_told_with_intervals_and_what_the_correction_took_back() {
        let text = findings(&summary(0.5)).remove(0).text;
        assert!(text.starts_with("b/a: slower, down to 0."), "{text}");
        assert_has(&text, &[" to ", "at ratio 12", "at 1 of 12 settings"]);
        let few = Sketch::two().axis("ratio", &RATIOS).compared().plan(3);
        let records = valid(twice().shape(Shape::LogNormal(0.2)).records(&few));
        let summary = Summary::new(&few.outline, &records);
        let text = findings(&summary).remove(0).text;
        let excludes =
            |it: &&Comparison| it.ratio.as_ref().is_some_and(|ratio| ratio.verdict().is_difference());
        let several = summary.comparisons.iter().filter(excludes).count();
        let expected = format!("by Holm's correction (1 is outside of the interval of {several}: ");
        assert!(text.contains(&expected), "{expected}: {text}");
    }

    #[test]
    fn the_most_efficient_arm_is_named_with_its_equals() {
        let sentence = |slower_at_12: f64| {
            let mut findings = findings(&summary(slower_at_12)).into_iter();
            findings.find(|it| it.text.contains("highest efficiency")).unwrap().text
        };
        let (equal, best) = (sentence(1.0), sentence(0.5));
        assert!(equal.contains("cannot be told from") && equal.contains(" to "), "{equal}");
        assert!(best.contains("arm a has") && !best.contains("cannot be told"), "{best}");
    }

    #[test]
    fn a_finding_of_mostly_invalid_runs_is_none() {
        let plan = plan();
        let mut records = twice().records(&plan);
        let mut told = |invalid: u32, setting: &str| {
            for record in &mut records {
                let place = record.placed();
                let is_there = setting == "all" || place.setting["ratio"] == setting;
                record.trusted &= place.arm != "b" || place.block >= invalid || !is_there;
            }
            findings(&Summary::new(&plan.outline, &records)).remove(0)
        };
        let few = told(2, "all");
        assert!(few.is_valid && few.text.contains("at 12 of 12 settings"), "{few:?}");
        let one = told(3, "12");
        assert!(one.is_valid && one.text.contains("not valid at 1"), "{one:?}");
        assert!(one.text.contains("at 11 of 12 settings, by Holm's correction"), "{one:?}");
        // Holm's correction changes nothing where one setting is left.
        RATIOS[2..11].iter().for_each(|setting| drop(told(3, setting)));
        let last = told(3, RATIOS[1]);
        assert!(last.text.contains("at 1 of 12 settings; not valid at 11"), "{last:?}");
        let all = told(7, "all");
        assert!(!all.is_valid && all.text.starts_with("b/a: no finding, "), "{all:?}");
    }
}
