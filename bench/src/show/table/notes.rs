//! Lines below a table: legend, A/A pair, checks and warnings.
//!
//! A table that is followed by a screen of footnotes is not read. So a terminal shows at most [`MOST_LINES`] of them, the
//! warnings that matter most among them; the report and `--verbose` have all.

use anstyle::{AnsiColor, Style};

use super::{FAINT, control};
use crate::analysis::summary::{CheckOutcome, Summary};
use crate::show::table::legend;
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

/// The lines, in their colours.
pub(super) fn notes(summary: &Summary, columns: &[String], detail: Detail) -> Vec<String> {
    let signs = legend::lines(summary, columns);
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
    lines.extend(control(summary).map(|words| words.join(", ")));
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
    // A mark says the same as its words, which are left out where there is no room.
    let pair = control(summary).map(|words| match words.join(", ") {
        whole if whole.chars().count() <= WIDTH => whole,
        _ => clipped(wrap(&words[0], 2), 1).concat(),
    });
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
    let more = |warnings: usize| match warnings {
        1 => "1 warning: --verbose".to_owned(),
        more => format!("{more} warnings: --verbose"),
    };
    match (summary.invalid_runs, summary.warnings.len()) {
        (_, 0) => vec![],
        (0, warnings) => vec![format!("a first look, not a measurement; {}", more(warnings))],
        (invalid, warnings) => vec![format!(
            "{invalid} of {} runs are invalid: a first look, not a measurement; {}",
            summary.runs,
            more(warnings)
        )],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::synthetic::{Sketch, World, plain};
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
            record.figures.set("overtaken_most", 7.0);
        }
        Summary::new(&plan.outline, &records)
    }

    fn of(summary: &Summary, detail: Detail) -> Vec<String> {
        let (columns, _) = table::figures(summary, detail);
        notes(summary, &columns, detail)
    }

    fn plain_lines(lines: &[String]) -> Vec<String> {
        lines.iter().map(|line| plain(line)).collect()
    }

    #[test]
    fn a_terminal_shows_at_most_six_lines_below_a_table() {
        let summary = disturbed();
        assert!(summary.warnings.len() > 2, "{:?}", summary.warnings);
        for detail in [Detail::Brief, Detail::Quick] {
            let notes = plain_lines(&of(&summary, detail));
            assert!(notes.len() <= MOST_LINES, "{notes:#?}");
            assert!(notes.iter().all(|line| line.chars().count() <= WIDTH), "{notes:#?}");
            let shown = plain(&table::summary(&summary, detail));
            assert!(shown.trim_end().ends_with(&notes.join("\n")), "{shown}");
        }
        let brief = plain_lines(&of(&summary, Detail::Brief)).join("\n");
        assert!(brief.contains("warning: the headline") && brief.contains("A/A pair"), "{brief}");
        assert!(brief.contains("+ faster") && brief.contains("more warnings: --verbose"), "{brief}");
        let quick = plain_lines(&of(&summary, Detail::Quick)).join("\n");
        assert!(!quick.contains("warning: ") && quick.matches("note: ").count() == 1, "{quick}");
        assert!(quick.contains("runs are invalid: a first look"), "{quick}");
    }

    #[test]
    fn all_of_it_is_shown_on_request() {
        let summary = disturbed();
        let all = plain_lines(&of(&summary, Detail::Verbose)).join(" ");
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
    fn a_quiet_first_look_has_no_note() {
        let plan = Sketch::two().compared().plan(6);
        let summary = World::new(1).summary(&plan);
        let quick = plain_lines(&of(&summary, Detail::Quick)).join("\n");
        assert!(!quick.contains("note: ") && quick.contains("checks passed: --verbose"), "{quick}");
    }
}
