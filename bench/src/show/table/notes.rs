//! Lines below a table: legend, A/A pair, checks and warnings.
//!
//! A table that is followed by a screen of footnotes is not read. So a terminal shows at most [`MOST_LINES`] of them, the
//! warnings that matter most among them; the report and `--verbose` have all.

use anstyle::{AnsiColor, Style};

use super::{FAINT, arms, control, shown};
use crate::analysis::statistics::Verdict;
use crate::analysis::summary::{CheckOutcome, Row, Summary};
use crate::record::figures::{Figure, JAIN};
use crate::record::place::{BESIDE, LOCK_FREE, Role};
use crate::text::pages::READING_A_TABLE;
use crate::text::wrap::{WIDTH, wrap};

/// How much a terminal shows below a table.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Detail {
    /// A few lines; the report has the rest.
    Brief,
    /// A few lines after a first look, whose validity is a note.
    Quick,
    /// Everything.
    Verbose,
}

/// Most lines below a table, unless all are asked for.
pub(super) const MOST_LINES: usize = 6;

pub(super) fn notes(summary: &Summary, columns: &[String], detail: Detail) -> Vec<String> {
    let signs = self::signs(summary, columns);
    match detail {
        Detail::Verbose => all(summary, &signs),
        Detail::Brief => brief(summary, &signs, ("warning: ", &summary.warnings)),
        Detail::Quick => brief(summary, &signs, ("note: ", &first_look(summary))),
    }
}

fn coloured(style: Style, line: &str) -> String {
    format!("{style}{line}{style:#}")
}

fn warning(line: &str) -> String {
    coloured(AnsiColor::Yellow.on_default(), line)
}

fn all(summary: &Summary, signs: &[String]) -> Vec<String> {
    let mut lines: Vec<String> = signs.iter().flat_map(|sign| wrap(sign, 2)).collect();
    lines.extend(control(summary));
    lines.extend(checks(summary).iter().map(|line| coloured(FAINT, line)));
    for text in &summary.warnings {
        lines.extend(wrap(&format!("warning: {text}"), 2).iter().map(|line| warning(line)));
    }
    lines.push(coloured(FAINT, &format!("how to read this table: {READING_A_TABLE}")));
    lines
}

/// Checks of the host that were made, and those that could not be made.
fn checks(summary: &Summary) -> Vec<String> {
    let told = |outcome: CheckOutcome, title: &str| {
        let checks =
            summary.checks.iter().filter(|check| check.outcome == outcome && check.name != "control");
        let found: Vec<&str> = checks.map(|check| check.text.as_str()).collect();
        let text = format!("{title}: {}", found.join("; "));
        if found.is_empty() { vec![] } else { wrap(&text, 2) }
    };
    [told(CheckOutcome::Passed, "checked"), told(CheckOutcome::NotChecked, "not checked")].concat()
}

fn brief(summary: &Summary, signs: &[String], (word, warnings): (&str, &[String])) -> Vec<String> {
    // The words, at the end, say the same as the mark.
    let pair = control(summary).map(|pair| clipped(wrap(&pair, 2), 1).concat());
    let least = usize::from(pair.is_some()) + usize::from(!warnings.is_empty()) + 1;
    let legend = legend(signs, MOST_LINES - least);
    let room = MOST_LINES - legend.len() - usize::from(pair.is_some()) - 1;
    let (told, untold) = fitting(warnings, word, room);
    let told = told.iter().map(|line| warning(line));
    let last = coloured(FAINT, &pointer(summary, untold));
    legend.into_iter().chain(pair).chain(told).chain([last]).collect()
}

/// As many signs as there are lines for, one behind the other.
fn legend(signs: &[String], most: usize) -> Vec<String> {
    let mut legend: Vec<&str> = vec![];
    for sign in signs {
        let with = [&legend[..], &[sign.as_str()]].concat();
        if wrap(&with.join("; "), 2).len() <= most {
            legend = with;
        }
    }
    wrap(&legend.join("; "), 2).into_iter().filter(|line| !line.is_empty()).collect()
}

/// Warnings in at most `room` lines, the first of them in any case, and how many are left out.
fn fitting(warnings: &[String], word: &str, room: usize) -> (Vec<String>, usize) {
    let mut lines: Vec<String> = vec![];
    let mut told = 0;
    for text in warnings {
        let wrapped = wrap(&format!("{word}{text}"), 2);
        if told > 0 && lines.len() + wrapped.len() > room {
            break;
        }
        lines.extend(clipped(wrapped, room));
        told += 1;
    }
    (lines, warnings.len() - told)
}

/// The first lines, with dots where there are more.
fn clipped(mut lines: Vec<String>, most: usize) -> Vec<String> {
    const DOTS: &str = " ...";
    if lines.len() > most {
        lines.truncate(most);
        if let Some(last) = lines.last_mut() {
            let kept: Vec<char> = last.chars().take(WIDTH - DOTS.len()).collect();
            *last = kept.into_iter().collect::<String>() + DOTS;
        }
    }
    lines
}

/// Says how much is left out, and where it is.
fn pointer(summary: &Summary, warnings: usize) -> String {
    let passed = summary.checks.iter().filter(|check| check.outcome == CheckOutcome::Passed).count();
    let more = match warnings {
        0 => String::new(),
        1 => ", 1 more warning".into(),
        more => format!(", {more} more warnings"),
    };
    let all = summary.checks.len();
    format!("{passed} of {all} checks passed{more}: --verbose, report.html; how to read: {READING_A_TABLE}")
}

/// Notes of a first look on its own validity.
fn first_look(summary: &Summary) -> Vec<String> {
    let warnings = match summary.warnings.len() {
        0 => return vec![],
        1 => "1 warning".to_owned(),
        more => format!("{more} warnings"),
    };
    let invalid = match summary.invalid_runs {
        0 => String::new(),
        invalid => format!("{invalid} of {} runs are invalid: ", summary.runs),
    };
    vec![format!("{invalid}a first look, not a measurement; {warnings}: --verbose")]
}

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
pub(super) fn signs(summary: &Summary, columns: &[String]) -> Vec<String> {
    let mut lines = Vec::new();
    lines.extend(marks(summary));
    lines.extend(of_columns(summary, columns));
    lines.extend(of_rows(summary));
    lines
}

/// A line for each sign and column that needs one.
fn of_columns(summary: &Summary, columns: &[String]) -> Vec<String> {
    let rows = arms(summary);
    let any = |is: &dyn Fn(&Row) -> bool| rows.iter().any(|row| is(row));
    let mut lines = Vec::new();
    let is_there = |figure: &&Figure| columns.iter().any(|name| name == figure.column.heading);
    for figure in shown(summary).into_iter().filter(is_there) {
        let column = figure.column;
        if !column.legend.is_empty() && any(&|row| row.figure(figure.name).is_some()) {
            lines.push(format!("{}: {}", column.heading, column.legend));
        }
        if any(&|row| row.at_least.iter().any(|name| name == figure.name)) {
            lines.push(">: at least, since waits decide it that had not ended when the window closed".into());
        }
        if figure.name == JAIN && any(&|row| row.figure(JAIN).is_none()) {
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
    use crate::measure::synthetic::{Shape, Sketch, World, plain};
    use crate::record::figures::EFFICIENCY;
    use crate::show::table;

    /// A table with every column and sign, of which nothing is to be believed.
    fn disturbed() -> Summary {
        let sketch = Sketch::two().axis("ratio", &["1", "8"]).control("a");
        let plan = sketch.arm_with("longer", "lock = \"tas\"\nhold = \"5us\"").compared().plan(10);
        let mut records = World::new(1).disturbed(|_, run| run % 2 == 0).records(&plan);
        for record in &mut records {
            record.figures.set("starved_vcpus", 1.0);
            record.figures.set("jain", None);
            record.at_least = vec!["wait_half_of_time_ns".into()];
            let most = if record.placed().block == 4 { 17385.0 } else { 7.0 };
            record.figures.set("overtaken_most", most);
        }
        Summary::new(&plan.outline, &records)
    }

    fn of(summary: &Summary, detail: Detail) -> Vec<String> {
        let (columns, _) = table::figures(summary, detail);
        notes(summary, &columns, detail).iter().map(|line| plain(line)).collect()
    }

    #[test]
    fn a_terminal_shows_at_most_six_lines_below_a_table() {
        let summary = disturbed();
        assert!(summary.warnings.len() > 2, "{:?}", summary.warnings);
        for detail in [Detail::Brief, Detail::Quick] {
            let notes = of(&summary, detail);
            assert!(notes.len() <= MOST_LINES, "{notes:#?}");
            assert!(notes.iter().all(|line| line.chars().count() <= WIDTH), "{notes:#?}");
            let shown = plain(&table::summary(&summary, detail));
            assert!(shown.trim_end().ends_with(&notes.join("\n")), "{shown}");
            assert!(shown.contains(" 17385"), "the worst of all runs: {shown}");
        }
        let brief = of(&summary, Detail::Brief).join("\n");
        assert!(brief.contains("warning: the headline") && brief.contains("A/A pair"), "{brief}");
        assert!(brief.contains("+ faster") && brief.contains("more warnings: --verbose"), "{brief}");
        let quick = of(&summary, Detail::Quick).join("\n");
        assert!(!quick.contains("warning: ") && quick.matches("note: ").count() == 1, "{quick}");
        assert!(quick.contains("runs are invalid: a first look"), "{quick}");
        let quiet = World::new(1).summary(&Sketch::two().compared().plan(6));
        let quick = of(&quiet, Detail::Quick).join("\n");
        assert!(!quick.contains("note: ") && quick.contains("checks passed: --verbose"), "{quick}");
    }

    #[test]
    fn all_of_it_is_shown_on_request() {
        let summary = disturbed();
        let all = of(&summary, Detail::Verbose).join(" ");
        let all = all.split_whitespace().collect::<Vec<_>>().join(" ");
        // Failed checks and the control are left out: warnings say the same.
        let made = summary
            .checks
            .iter()
            .filter(|check| check.outcome != CheckOutcome::Failed && check.name != "control");
        let signs = table::signs(&summary);
        for text in summary.warnings.iter().chain(made.map(|check| &check.text)).chain(&signs) {
            assert!(all.contains(text.as_str()), "{text} is not in {all}");
        }
    }

    #[test]
    fn only_marks_and_rows_that_occur_are_explained() {
        let plain = Sketch::new().arm("a", "tas");
        let longer = plain.clone().arm_with("longer", "lock = \"tas\"\nhold = \"5us\"");
        let beside = plain.clone().arm_with("pair", "vm = \"lock=tas; name=b,lock=ticket\"");
        let ratios = plain.clone().axis("ratio", &["1", "8"]).arm("b", "tas").compared();
        let spoiled = World::new(1).shape(Shape::LogNormal(0.02)).disturbed(|asked, _| asked.guest.vcpus > 2);
        let [ideal, guest, settings, invalid] = [
            "lock-free 2: arms that differ in more than the lock",
            "pair / b: guest b, which ran next to the first guest of pair",
            "after a ratio: + faster, - slower (Holm over 2 settings), ~6% no difference shown",
            ", ! not valid",
        ];
        let of = |sketch: &Sketch| World::new(1).summary(&sketch.plan(2));
        for (summary, told, not_told) in [
            (of(&plain), "A sketch", &["ideal each", "next to", "overtaken", "after a ratio"][..]),
            (of(&longer), ideal, &[guest]),
            (of(&beside), guest, &["overtaken"]),
            (of(&ratios), settings, &[invalid]),
            // Only one setting is looked at.
            (spoiled.summary(&ratios.plan(8)), invalid, &["Holm"]),
        ] {
            let shown = table::summary(&summary, Detail::Verbose);
            assert!(shown.contains(told) && !not_told.iter().any(|it| shown.contains(it)), "{shown}");
        }
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
        let summary = World::new(1).summary(&overlapping.plan(2));
        let overlapping = table::summary(&summary, Detail::Verbose);
        let of_arm = overlapping.lines().find(|line| line.trim_start().starts_with("a ")).expect("its line");
        assert_eq!(of_arm.matches(" +- ").count(), 2, "throughput and efficiency have intervals: {of_arm}");
    }
}
