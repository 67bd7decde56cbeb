//! Explains rows and rare columns whose names do not say what they mean.

use crate::analysis::statistics::Verdict;
use crate::analysis::summary::Summary;
use crate::record::figures::JAIN;
use crate::record::place::{BESIDE, LOCK_FREE, Role};
use crate::show::table;

/// Explains the marks after ratios, those that occur.
fn marks(summary: &Summary) -> Option<String> {
    let first = summary.outline.comparisons.first()?;
    let of_it = || summary.comparisons.iter().filter(|it| it.name == first.name);
    let settings =
        of_it().filter(|it| !matches!(it.verdict, Verdict::NotValid | Verdict::TooFewBlocks)).count();
    let corrected = if settings > 1 { format!(" (Holm over {settings} settings)") } else { String::new() };
    let (better, worse) = first.of.words();
    let mut text = format!("after a ratio: + {better}, - {worse}{corrected}");
    if of_it().any(|it| it.verdict == Verdict::NoDifferenceShown) {
        text += ", ~6% no difference shown and none below 6 % could be";
    }
    for (verdict, meaning) in [
        (Verdict::TooFewBlocks, "too few blocks"),
        (Verdict::NotValid, "not valid, more than 29 % of its pairs have an invalid run"),
    ] {
        if summary.comparisons.iter().any(|it| it.verdict == verdict) {
            text += &format!(", {} {meaning}", verdict.mark());
        }
    }
    Some(text)
}

/// Explains signs, columns and rows whose names do not say what they mean: of columns those that are shown.
pub(crate) fn lines(summary: &Summary, columns: &[String]) -> Vec<String> {
    let mut lines = Vec::new();
    lines.extend(marks(summary));
    lines.extend(of_columns(summary, columns));
    lines.extend(of_rows(summary));
    lines
}

/// A line for each sign and column that needs one.
fn of_columns(summary: &Summary, columns: &[String]) -> Vec<String> {
    if !summary.together.is_empty() {
        return vec![];
    }
    let is_there = |heading: &str| columns.iter().any(|name| name == heading);
    let rows = || table::arms(summary).into_iter();
    let mut lines = Vec::new();
    for (figure, column) in table::shown(summary) {
        if is_there(column.heading)
            && !column.legend.is_empty()
            && rows().any(|row| row.figure(figure.name).is_some())
        {
            lines.push(format!("{}: {}", column.heading, column.legend));
        }
        if is_there(column.heading) && rows().any(|row| row.at_least.iter().any(|name| name == figure.name)) {
            lines.push(">: at least, since waits decide it that had not ended when the window closed".into());
        }
        if figure.name == JAIN && is_there(column.heading) && rows().any(|row| row.figure(JAIN).is_none()) {
            lines.push("fairness -: too few sections per vCPU to tell".into());
        }
    }
    lines
}

/// A line for each kind of row that needs one.
fn of_rows(summary: &Summary) -> Vec<String> {
    let mut lines = Vec::new();
    let rows = || summary.rows.iter();
    let numbered = rows().find(|row| {
        row.role == Role::Ideal && row.arm.strip_prefix(LOCK_FREE).is_some_and(|rest| rest.starts_with(' '))
    });
    if let Some(row) = numbered.filter(|row| !row.arm.contains(BESIDE)) {
        lines.push(format!(
            "{}: arms that differ in more than the lock have an ideal each, {LOCK_FREE} for the first of them",
            row.arm
        ));
    }
    let beside = rows().filter(|row| row.role == Role::Beside).find_map(|row| row.arm.split_once(BESIDE));
    if let Some((arm, guest)) = beside {
        lines
            .push(format!("{arm}{BESIDE}{guest}: guest {guest}, which ran next to the first guest of {arm}"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::synthetic::{Shape, Sketch, World};
    use crate::record::Record;
    use crate::record::figures::EFFICIENCY;
    use crate::show::table::Detail;

    fn shown(sketch: &Sketch) -> String {
        let plan = sketch.plan(2);
        table::summary(&World::new(1).summary(&plan), Detail::Verbose)
    }

    #[test]
    fn only_a_second_ideal_and_a_second_guest_are_explained() {
        let plain = Sketch::new().arm("a", "tas");
        assert!(!shown(&plain).contains("ideal each") && !shown(&plain).contains("next to"));
        let longer = plain.clone().arm_with("longer", "lock = \"tas\"\nhold = \"5us\"");
        assert!(
            shown(&longer).contains("lock-free 2: arms that differ in more than the lock"),
            "{}",
            shown(&longer)
        );
        let beside = plain.arm_with("pair", "vm = \"lock=tas; name=b,lock=ticket\"");
        let expected = "pair / b: guest b, which ran next to the first guest of pair";
        assert!(shown(&beside).contains(expected), "{}", shown(&beside));
    }

    #[test]
    fn a_lock_free_rate_that_no_lock_allows_has_no_efficiency() {
        let has_one = |sketch: &Sketch| {
            let plan = sketch.plan(2);
            let rows = World::new(1).summary(&plan).rows;
            rows.iter().any(|row| row.role == Role::Ideal && row.estimate(EFFICIENCY).is_some())
        };
        // Two pCPUs at once, which no lock allows.
        let overlapping = Sketch::new().arm_with("a", "lock = \"tas\"\nthink = \"0ns\"");
        assert!(has_one(&Sketch::new().arm("a", "tas")) && !has_one(&overlapping));
        let overlapping = shown(&overlapping);
        let of_arm = overlapping.lines().find(|line| line.trim_start().starts_with("a ")).expect("its line");
        assert_eq!(of_arm.matches(" +- ").count(), 2, "throughput and efficiency have intervals: {of_arm}");
    }

    #[test]
    fn marks_are_explained_where_they_occur() {
        let sketch = Sketch::new().axis("ratio", &["1", "8"]).arm("a", "tas").arm("b", "tas").compared();
        let shown = shown(&sketch.clone());
        assert!(
            shown.contains(
                "after a ratio: + faster, - slower (Holm over 2 settings), ~6% no difference shown"
            ),
            "{shown}"
        );
        let plan = sketch.plan(3);
        let records = World::new(1)
            .shape(Shape::LogNormal(0.02))
            .disturbed(|asked, _| asked.guest.vcpus > 2)
            .records(&plan);
        let shown = table::summary(&Summary::new(&plan.outline, &records), Detail::Verbose);
        assert!(shown.contains(", ! not valid, more than 29 % of its pairs have an invalid run"), "{shown}");
        assert!(shown.contains(" !") && !shown.contains("Holm"), "only one setting is looked at: {shown}");
    }

    #[test]
    fn the_worst_overtaking_is_a_column_where_it_is_counted() {
        let plan = Sketch::new().arm("a", "tas").arm("b", "tas").plan(3);
        let mut records = World::new(1).records(&plan);
        let none = table::summary(&Summary::new(&plan.outline, &records), Detail::Verbose);
        assert!(!none.contains("overtaken"), "{none}");
        let of_a = |record: &&mut Record| record.place.as_ref().is_some_and(|place| place.arm == "a");
        for (record, most) in records.iter_mut().filter(of_a).zip([5, 17385, 12]) {
            record.figures.set("overtaken_most", f64::from(most));
        }
        let shown = table::summary(&Summary::new(&plan.outline, &records), Detail::Verbose);
        let line_of = |arm: &str| {
            shown
                .lines()
                .find(|line| line.split_whitespace().any(|word| word == arm))
                .expect("a line for each arm")
        };
        assert!(line_of("a").contains("17385") && line_of("b").trim_end().ends_with('-'), "{shown}");
        assert!(shown.contains("overtaken: sections that others began"), "{shown}");
    }
}
