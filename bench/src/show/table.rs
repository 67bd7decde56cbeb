//! Figures as a table of at most 100 columns.

mod below;
mod grid;
mod kernels;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};

use crate::analysis::holm;
use crate::analysis::prediction::{self, Prediction};
use crate::analysis::statistics::{Estimate, Verdict};
use crate::analysis::summary::{CheckOutcome, Comparison, Row, Summary};
use crate::experiment::place::Role;
use crate::text::pages::READING_A_TABLE;
use crate::text::quantity::{si, significant, time_ns};
use crate::text::wrap::wrap;

pub(crate) use below::{LOCK_COSTS, lock_costs as lock_cost_lines, trials};
pub(crate) use grid::{grid, signs};

const HEADING: Style = Style::new().bold();
const FAINT: Style = Style::new().dimmed();

/// One cell of the table.
struct Field {
    text: String,
    style: Style,
}

impl Field {
    fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), style: Style::new() }
    }
}

/// The whole summary: rows, comparisons, the A/A pair, warnings.
pub(crate) fn summary(summary: &Summary) -> String {
    let mut text = format!("{HEADING}{}{HEADING:#}\n", summary.outline.title);
    let _ = writeln!(text, "{}\n", extent_line(summary));
    text += &figures(summary);
    signs(summary).iter().for_each(|line| _ = writeln!(text, "{line}"));
    further_comparisons(summary).iter().for_each(|line| _ = writeln!(text, "{line}"));
    if !summary.lock_costs.is_empty() {
        _ = write!(text, "\n{}", lock_costs(summary));
    }
    trials(summary).iter().for_each(|line| _ = writeln!(text, "{line}"));
    control(summary).iter().for_each(|line| _ = writeln!(text, "{line}"));
    text += &checks(summary);
    for warning in &summary.warnings {
        let yellow = AnsiColor::Yellow.on_default();
        for line in wrap(&format!("warning: {warning}"), 2) {
            let _ = writeln!(text, "{yellow}{line}{yellow:#}");
        }
    }
    let _ = writeln!(text, "{FAINT}how to read this table: {READING_A_TABLE}{FAINT:#}");
    text
}

/// How much was measured, and how to read it.
pub(crate) fn extent_line(summary: &Summary) -> String {
    let extent = extent(summary);
    format!("{extent}; estimates are Hodges-Lehmann's, +- and (low to high) their 95 % intervals")
}

/// The A/A pair, where there is one.
fn control(summary: &Summary) -> Option<String> {
    let control = summary.control.as_ref()?;
    let ratio = control.ratio.as_ref().map_or("no figure".into(), Estimate::as_ratio);
    let (setting, word) = (of_setting(&control.setting), control.verdict.word(&control.of));
    Some(format!("A/A pair ({}{setting}): {ratio}, {word}", control.arm))
}

/// How much was measured, and where.
pub(crate) fn extent(summary: &Summary) -> String {
    let pcpus: Vec<String> = summary.pcpus().iter().map(usize::to_string).collect();
    format!("{} on {} pCPUs", summary.extent(), pcpus.join(" or "))
}

/// What the columns and signs mean that occur in this table.
fn legend_lines(summary: &Summary) -> Vec<String> {
    let rows = || summary.rows.iter().filter(|row| row.role != Role::Control);
    let fixed = has_fixed_work(summary);
    let mut lines = Vec::new();
    if !fixed && rows().any(|row| row.wait_half_of_time_ns.is_some()) {
        lines
            .push("long waits: half of all time spent waiting went into waits at least this long".to_owned());
    }
    if rows().any(|row| row.at_least.iter().any(|name| name == HALF_OF_TIME)) && !fixed {
        lines.push(
            ">: at least, since it is decided by waits that had not ended when the window closed".into(),
        );
    }
    if has_starved(summary) {
        lines.push("starved: vCPUs that completed nothing in the window, median over the runs".into());
    }
    if rows().any(|row| row.jain.is_none()) {
        lines.push("fairness -: too few sections per vCPU to tell".into());
    }
    if let Some(first) = summary.outline.comparisons.first() {
        let (better, worse) = first.of.words();
        lines.push(format!("after a ratio: + {better}, - {worse}, ~ no difference shown, ? too few blocks"));
    }
    lines
}

/// What the host was checked for, and what it could not be checked for.
fn checks(summary: &Summary) -> String {
    let mut text = String::new();
    for (outcome, title) in [(CheckOutcome::Passed, "checked"), (CheckOutcome::NotChecked, "not checked")] {
        let of = summary.checks.iter().filter(|check| check.outcome == outcome && check.name != "control");
        let found: Vec<&str> = of.map(|check| check.text.as_str()).collect();
        if !found.is_empty() {
            for line in wrap(&format!("{title}: {}", found.join("; ")), 2) {
                let _ = writeln!(text, "{FAINT}{line}{FAINT:#}");
            }
        }
    }
    text
}

/// The table proper: per setting and arm.
fn figures(summary: &Summary) -> String {
    let groups = groups(summary);
    // A line between settings, unless each is a single line.
    let separated = summary.outline.arms.len() > 1;
    let mut lines: Vec<Vec<Field>> = vec![];
    for group in groups {
        if separated && !lines.is_empty() {
            lines.push(vec![]);
        }
        lines.extend(group);
    }
    layout(&header(summary), &lines, names_at(summary))
}

/// Columns that say the setting stand before the arm's name.
fn names_at(summary: &Summary) -> usize {
    summary.outline.axes.len() + usize::from(shows_vcpus(summary))
}

fn header(summary: &Summary) -> Vec<String> {
    let mut header: Vec<String> = summary.outline.axes.iter().map(|axis| axis.key.clone()).collect();
    if shows_vcpus(summary) {
        header.push("vCPUs".into());
    }
    if summary.is_of_kernels() {
        header.extend(kernels::HEADER.map(String::from));
        header.extend(summary.outline.comparisons.first().map(|it| it.name.clone()));
        return header;
    }
    header.push("lock".into());
    header.extend(if has_fixed_work(summary) { FIXED_WORK } else { WINDOW }.map(String::from));
    if has_starved(summary) {
        header.insert(header.len() - 1, "starved".into());
    }
    if summary.counts_overtaking() {
        header.push("overtaken".into());
    }
    header.extend(summary.outline.comparisons.first().map(|it| it.name.clone()));
    header
}

/// The lines of each setting.
fn groups(summary: &Summary) -> Vec<Vec<Vec<Field>>> {
    if summary.is_of_kernels() {
        return kernels::groups(summary);
    }
    let first_comparison = summary.outline.comparisons.first().map(|it| it.name.as_str());
    let mut groups: Vec<Vec<Vec<Field>>> = vec![];
    let mut last: Option<&BTreeMap<String, String>> = None;
    for row in summary.rows.iter().filter(|row| row.role != Role::Control) {
        let new_setting = last != Some(&row.setting);
        last = Some(&row.setting);
        let is_of_row = |it: &&Comparison| {
            Some(it.name.as_str()) == first_comparison && it.arm == row.arm && it.setting == row.setting
        };
        let comparison = first_comparison.map(|_| summary.comparisons.iter().find(is_of_row));
        let line = line(summary, row, new_setting, comparison);
        match groups.last_mut().filter(|_| !new_setting) {
            Some(group) => group.push(line),
            None => groups.push(vec![line]),
        }
    }
    groups
}

/// Columns of an experiment that counts what fits into a window.
const WINDOW: [&str; 4] = ["throughput", "efficiency", "fairness", "long waits"];
/// Columns of one that waits until a fixed amount of work is done.
const FIXED_WORK: [&str; 4] = ["completion", "efficiency", "fairness", "in locks"];

/// The figure of the column "long waits".
const HALF_OF_TIME: &str = "wait_half_of_time_ns";

/// Whether the number of vCPUs is not told by the ratio beside it.
fn shows_vcpus(summary: &Summary) -> bool {
    summary.outline.axes.iter().all(|axis| axis.key != "ratio" && axis.key != "vcpus")
}

fn has_starved(summary: &Summary) -> bool {
    summary.rows.iter().any(|row| row.starved_vcpus.is_some_and(|starved| starved > 0.0))
}

fn has_fixed_work(summary: &Summary) -> bool {
    summary.rows.iter().any(|row| row.completion_ns.is_some())
}

fn line(
    summary: &Summary,
    row: &Row,
    new_setting: bool,
    comparison: Option<Option<&Comparison>>,
) -> Vec<Field> {
    let shown = |text: String| if new_setting { text } else { String::new() };
    let mut fields: Vec<Field> = summary
        .outline
        .axes
        .iter()
        .map(|axis| Field::new(shown(row.setting.get(&axis.key).cloned().unwrap_or_default())))
        .collect();
    if shows_vcpus(summary) {
        fields.push(Field::new(shown(row.vcpus.to_string())));
    }
    let named = fields.len();
    fields.push(Field::new(row.arm.as_str()));
    let throughput = |it: &Estimate| format!("{}/s{}", si(it.hodges_lehmann), plus_minus(it));
    let without_interval = || format!("{}/s        ", si(row.mean_per_second));
    let plain = |estimate: &Option<Estimate>, show: fn(f64) -> String| {
        Field::new(estimate.as_ref().map_or("-".into(), |it| show(it.hodges_lehmann)))
    };
    if has_fixed_work(summary) {
        let completion = |it: &Estimate| format!("{}{}", time_ns(it.hodges_lehmann), plus_minus(it));
        let completion = row.completion_ns.as_ref().map_or("not done".into(), completion);
        fields.push(Field::new(completion));
    } else {
        let throughput = row.acquisitions_per_second.as_ref().map_or_else(without_interval, throughput);
        fields.push(Field::new(throughput));
    }
    fields.push(plain(&row.efficiency, significant));
    fields.push(plain(&row.jain, significant));
    if has_starved(summary) {
        fields.push(Field::new(starved(row)));
    }
    fields.push(if has_fixed_work(summary) {
        plain(&row.lock_cpu_share, |share| format!("{} %", significant(share * 100.0)))
    } else {
        Field::new(long_waits(row))
    });
    if summary.counts_overtaking() {
        fields.push(Field::new(overtaken(row)));
    }
    if row.role == Role::Ideal {
        for field in &mut fields[named..] {
            field.style = FAINT;
        }
    }
    fields.extend(comparison.map(|comparison| comparison.map_or(Field::new(""), of_comparison)));
    fields
}

/// `23/46`: vCPUs that completed nothing.
pub(crate) fn starved(row: &Row) -> String {
    row.starved_vcpus.map_or("-".into(), |starved| match starved {
        0.0 => "0".into(),
        starved => format!("{}/{}", significant_count(starved), row.vcpus),
    })
}

/// Sections that others began in the worst wait.
pub(crate) fn overtaken(row: &Row) -> String {
    row.overtaken_most.map_or("-".into(), |most| most.to_string())
}

/// A median of counts: whole, or a half.
fn significant_count(count: f64) -> String {
    if count.fract() == 0.0 { format!("{count:.0}") } else { format!("{count:.1}") }
}

/// Half of all time spent waiting went into waits at least this long.
pub(crate) fn long_waits(row: &Row) -> String {
    if row.role == Role::Ideal {
        // Nobody waits: what looks like it is a slice that ends between two stamps.
        return "-".into();
    }
    let at_least = if row.at_least.iter().any(|name| name == HALF_OF_TIME) { "> " } else { "" };
    row.wait_half_of_time_ns
        .as_ref()
        .map_or("-".into(), |it| format!("{at_least}{}", time_ns(it.hodges_lehmann)))
}

fn of_comparison(comparison: &Comparison) -> Field {
    let text = comparison.ratio.as_ref().map_or("no figure".into(), Estimate::as_ratio);
    Field { text: format!("{text} {}", comparison.verdict.mark()), style: verdict_style(comparison.verdict) }
}

fn verdict_style(verdict: Verdict) -> Style {
    match verdict {
        Verdict::Faster => AnsiColor::Green.on_default(),
        Verdict::Slower => AnsiColor::Red.on_default(),
        Verdict::NoDifferenceShown | Verdict::TooFewBlocks => Style::new(),
    }
}

/// Comparisons beyond the first, which has a column of its own.
fn further_comparisons(summary: &Summary) -> Vec<String> {
    let first = summary.outline.comparisons.first().map(|it| it.name.as_str());
    let further = summary.comparisons.iter().filter(|it| Some(it.name.as_str()) != first);
    let line = |comparison: &Comparison| {
        let ratio = comparison.ratio.as_ref().map_or("no figure".into(), Estimate::as_ratio);
        let word = comparison.verdict.word(&comparison.of);
        format!("{}{}: {ratio}, {word}", comparison.name, of_setting(&comparison.setting))
    };
    further.map(line).collect()
}

/// What each lock costs when nobody contends for it.
fn lock_costs(summary: &Summary) -> String {
    let fields = |cells: Vec<String>| cells.into_iter().map(Field::new).collect();
    let lines: Vec<Vec<Field>> = lock_cost_lines(&summary.lock_costs).into_iter().map(fields).collect();
    layout(&LOCK_COSTS.map(String::from), &lines, 0)
}

/// What `haltkick compare` found, cell by cell.
pub(crate) fn comparisons(
    cells: &[Comparison],
    (can_tell, told, regressions): (bool, usize, &[usize]),
    threshold: f64,
) -> String {
    let has_figures = cells.iter().any(|cell| cell.of.figure().is_some());
    let figure = has_figures.then_some("figure");
    let header = ["setting", "arm (B)", "baseline (A)"].into_iter().chain(figure).chain(["B/A", "verdict"]);
    let line = |cell: &Comparison| {
        let baseline = if cell.baseline == cell.arm { "same" } else { cell.baseline.as_str() };
        let mut fields = vec![
            Field::new(setting_words(&cell.setting)),
            Field::new(cell.arm.as_str()),
            Field::new(baseline),
        ];
        fields.extend(cell.of.figure().map(Field::new));
        fields.push(of_comparison(cell));
        fields.push(Field { text: cell.verdict.word(&cell.of).into(), style: verdict_style(cell.verdict) });
        fields
    };
    let header: Vec<String> = header.map(String::from).collect();
    let lines: Vec<Vec<Field>> = cells.iter().map(line).collect();
    let mut text = layout(&header, &lines, 1);
    if told < cells.len() {
        let _ = writeln!(
            text,
            "{} of {} cells are no regressions, whatever they are: only of rates (a unit that ends in /s) and of times (ns, us, \
             ms, s) it is known whether more is better",
            cells.len() - told,
            cells.len()
        );
    }
    let percent = significant(threshold * 100.0);
    let _ = match regressions.len() {
        0 if told == 0 => Ok(()),
        0 if !can_tell => {
            let below = |cell: &&Comparison| {
                let interval = cell.ratio.as_ref().and_then(|ratio| ratio.interval.as_ref());
                interval.is_some_and(|interval| interval.high < 1.0 - threshold)
            };
            writeln!(
                text,
                "too few runs to say that nothing regressed: of {} cells {} have intervals below {}, and none of so many can be \
                 called sure with fewer than {} blocks on either side",
                cells.len(),
                cells.iter().filter(below).count(),
                significant(1.0 - threshold),
                holm::runs_to_tell(cells.len())
            )
        }
        0 => writeln!(text, "no regression beyond {percent} %"),
        count => writeln!(text, "{count} of {} cells lost more than {percent} %", cells.len()),
    };
    text
}

/// What `haltkick predict` found: misses first, then the order of the arms at each setting. All cells, or those that are off
/// by more than 25 %.
pub(crate) fn prediction(prediction: &Prediction, all: bool) -> String {
    let header = ["setting", "arm", "measured", "predicted", "predicted/measured"].map(String::from);
    let line = |cell: &prediction::Cell| {
        vec![
            Field::new(setting_words(&cell.setting)),
            Field::new(cell.arm.as_str()),
            Field::new(format!(
                "{}{}",
                significant(cell.measured.hodges_lehmann),
                plus_minus(&cell.measured)
            )),
            Field::new(significant(cell.predicted)),
            Field::new(significant(cell.factor)),
        ]
    };
    let shown = prediction.cells.iter().filter(|cell| all || !cell.is_near);
    let lines: Vec<Vec<Field>> = shown.map(line).collect();
    let mut text = format!("{HEADING}Efficiency, measured and predicted, farthest off first{HEADING:#}\n");
    text += &layout(&header, &lines, 1);
    let header = ["setting", "arms", "tau", "of runs", "host", "told apart", "of those", "near", "factor"];
    let figure = |value: Option<f64>| Field::new(value.map_or("-".into(), |value| format!("{value:.2}")));
    let line = |order: &prediction::Order| {
        vec![
            Field::new(setting_words(&order.setting)),
            Field::new(order.arms.to_string()),
            figure(order.tau),
            figure(order.tau_of_runs),
            figure(order.tau_of_measured_runs),
            Field::new(format!("{} pairs", order.told_apart)),
            figure(order.tau_told_apart),
            Field::new(order.near.to_string()),
            figure(Some(order.median_factor)),
        ]
    };
    let lines: Vec<Vec<Field>> = prediction.orders.iter().map(line).collect();
    let _ = write!(text, "\n{HEADING}The order of the arms at each setting{HEADING:#}\n");
    text += &layout(&header.map(String::from), &lines, 0);
    let near = prediction.cells.iter().filter(|cell| cell.is_near).count();
    let share = significant(prediction.near_share.unwrap_or(0.0) * 100.0);
    let _ = writeln!(text, "\n{near} of {} cells ({share} %) are within 25 %", prediction.cells.len());
    if let Some(least) = prediction.least_tau {
        let _ = writeln!(text, "the least tau of a setting is {least:.2}");
    }
    if prediction.without_figure > 0 {
        let _ = writeln!(text, "{} more cells have no efficiency on one side", prediction.without_figure);
    }
    text += "tau: Kendall's tau-b of measured and predicted estimates, 1 if both put the arms into the same order;\n\
             of runs: of single blocks of either side (mean); host: of two measured blocks (mean), which is what\n\
             'of runs' would be for a second host of the same kind; told apart: pairs of arms whose measured 95 %\n\
             intervals do not overlap; near: arms within 25 %; factor: median of predicted over measured.\n\
             Efficiency: throughput over that of lock-free runs.\n";
    text
}

fn setting_words(setting: &BTreeMap<String, String>) -> String {
    let words: Vec<String> = setting.iter().map(|(key, value)| format!("{key} {value}")).collect();
    words.join(", ")
}

fn of_setting(setting: &BTreeMap<String, String>) -> String {
    setting.iter().map(|(key, value)| format!(", {key} {value}")).collect()
}

fn plus_minus(estimate: &Estimate) -> String {
    estimate.half_width().map_or(String::new(), |half| format!(" +-{:>4} %", short_percent(half)))
}

fn short_percent(share: f64) -> String {
    let percent = share * 100.0;
    // Too few blocks, or a host too noisy, to say anything: the digits would say as little.
    if percent > 999.0 {
        return ">999".into();
    }
    if percent < 9.95 { format!("{percent:.1}") } else { format!("{percent:.0}") }
}

/// Columns as wide as their widest field; the first `left` and the one after are set to the left.
fn layout(header: &[String], lines: &[Vec<Field>], names_at: usize) -> String {
    let mut widths: Vec<usize> = header.iter().map(|name| name.chars().count()).collect();
    for line in lines {
        for (width, field) in widths.iter_mut().zip(line) {
            *width = (*width).max(field.text.chars().count());
        }
    }
    let mut text = String::new();
    let header: Vec<Field> = header.iter().map(|name| Field { text: name.clone(), style: HEADING }).collect();
    for line in std::iter::once(&header).chain(lines) {
        let mut columns = Vec::new();
        for (i, (field, width)) in line.iter().zip(&widths).enumerate() {
            let padded = if i == names_at {
                format!("{:<width$}", field.text)
            } else {
                format!("{:>width$}", field.text)
            };
            columns.push(format!("{style}{padded}{style:#}", style = field.style));
        }
        let _ = writeln!(text, "{}", columns.join("  ").trim_end());
    }
    text.push('\n');
    text
}
