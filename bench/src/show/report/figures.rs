//! The figures: the table that the terminal shows, all comparisons, uncontended costs, verdicts counted over trials.

use std::collections::BTreeMap;

use maud::{Markup, html};

use super::scrolled;
use crate::analysis::statistics::Estimate;
use crate::analysis::summary::{Comparison, Row, Summary};
use crate::analysis::verdict::Verdict;
use crate::experiment::place::Role;
use crate::show::table;
use crate::text::pages::READING_A_TABLE;
use crate::text::quantity::{si, time_ns};

/// As many rows of a table are shown as need no click.
const MOST_OPEN: usize = 24;

/// The table that the terminal shows.
pub(super) fn figures(summary: &Summary) -> Markup {
    html! {
        p {
            "Estimates are Hodges-Lehmann's, \u{b1} and (low to high) their 95 % intervals" (table::over_seeds(summary))
            ". How to read this table: "
            (READING_A_TABLE) " in Haltkick's source."
        }
        (scrolled("Figures", &table_of_figures(summary)))
        ul.signs { @for line in table::signs(summary) { li { (line) } } }
    }
}

/// The table that the terminal shows, where arms are kernels.
pub(super) fn of_kernels(summary: &Summary) -> Markup {
    let grid = table::grid(summary);
    let table = html! {
        table {
            thead {
                tr {
                    @for (at, title) in grid.header.iter().enumerate() {
                        th.name[at == grid.names_at || at == grid.names_at + 1] scope="col" { (title) }
                    }
                }
            }
            tbody {
                @for (fields, first) in grid.lines.iter().zip(&grid.begins_group) {
                    tr.first[*first] {
                        @for (at, field) in fields.iter().enumerate() {
                            @if at == grid.names_at {
                                th.name scope="row" { (field) }
                            } @else {
                                td.name[at == grid.names_at + 1] { (with_interval_apart(field)) }
                            }
                        }
                    }
                }
            }
        }
    };
    html! {
        p { "Estimates are Hodges-Lehmann's, \u{b1} and (low to high) their 95 % intervals" (table::over_seeds(summary)) ". What the guests print is their own word." }
        (scrolled("Figures", &table))
        ul.signs { @for line in table::signs(summary) { li { (line) } } }
    }
}

/// A row's values of what varies.
fn cells(summary: &Summary, setting: &BTreeMap<String, String>) -> Markup {
    html! { @for axis in &summary.outline.axes { td { (setting.get(&axis.key).map_or("", String::as_str)) } } }
}

/// Everything that was printed, compared or not.
pub(super) fn printed(summary: &Summary) -> Option<Markup> {
    let table = html! {
        table {
            thead {
                tr {
                    @for axis in &summary.outline.axes { th scope="col" { (axis.key) } }
                    th.name scope="col" { "kernel" }
                    th.name scope="col" { "figure" }
                    th scope="col" { "runs" }
                    th scope="col" { "least" }
                    th scope="col" { "most" }
                    th scope="col" { "estimate" }
                    th.name scope="col" { "unit" }
                }
            }
            tbody {
                @for row in summary.kernels.iter().filter(|row| row.role != Role::Control) {
                    @for (name, figure) in &row.figures {
                        tr {
                            (cells(summary, &row.setting))
                            th.name scope="row" { (row.arm) }
                            td.name { (name) }
                            td { (figure.runs) }
                            td { (si(figure.least)) }
                            td { (si(figure.most)) }
                            td { (figure.estimate.as_ref().map_or("\u{2013}".into(), |it| si(it.hodges_lehmann))) }
                            td.name { (figure.unit) }
                        }
                    }
                }
            }
        }
    };
    let any = summary.kernels.iter().any(|row| !row.figures.is_empty());
    any.then(|| scrolled("All that the kernels printed", &table))
}

/// A column of the table: one of the terminal's, or one for which the terminal has no room.
enum Column {
    Of(usize),
    Wait(&'static str, fn(&Row) -> Option<&Estimate>),
}

/// A line of the table: of an arm, or of all guests of an arm.
struct Line<'a> {
    setting: &'a BTreeMap<String, String>,
    arm: &'a str,
    vcpus: u32,
    role: Role,
    /// The arm's row; `None` for all guests.
    row: Option<&'a Row>,
}

impl<'a> Line<'a> {
    fn of_arm(row: &'a Row) -> Self {
        let Row { setting, arm, vcpus, role, .. } = row;
        Self { setting, arm, vcpus: *vcpus, role: *role, row: Some(row) }
    }
}

/// The lines, in the terminal's order.
fn lines(summary: &Summary) -> Vec<Line<'_>> {
    let of_all = summary.together.iter().map(|it| Line {
        setting: &it.setting,
        arm: &it.arm,
        vcpus: it.vcpus,
        role: it.role,
        row: None,
    });
    match summary.together.is_empty() {
        true => summary.rows.iter().filter(|row| row.role != Role::Control).map(Line::of_arm).collect(),
        false => of_all.collect(),
    }
}

/// The terminal's columns with the ratio next to the figure that it is made of, where narrow windows show it, too.
fn columns(summary: &Summary, header: &[String], names_at: usize) -> Vec<Column> {
    let has_ratio = !summary.outline.comparisons.is_empty();
    let ratio = has_ratio.then_some(header.len() - 1);
    let rest = (names_at + 2..header.len()).filter(|at| Some(*at) != ratio);
    let of_terminal = (0..names_at + 2).chain(ratio).chain(rest).map(Column::Of);
    let waits = [
        Column::Wait("wait_p50_ns", |row| row.wait_p50_ns.as_ref()),
        Column::Wait("wait_p99_ns", |row| row.wait_p99_ns.as_ref()),
    ];
    of_terminal.chain(waits.into_iter().filter(|_| summary.together.is_empty())).collect()
}

fn table_of_figures(summary: &Summary) -> Markup {
    let grid = table::grid(summary);
    let columns = columns(summary, &grid.header, grid.names_at);
    let title = |column: &Column| match column {
        Column::Of(at) => grid.header[*at].clone(),
        Column::Wait(name, _) => name.replace('_', " ").replace(" ns", ""),
    };
    html! {
        table {
            thead {
                tr {
                    @for column in &columns {
                        @let is_name = matches!(column, Column::Of(at) if *at == grid.names_at);
                        th.name[is_name] scope="col" { (title(column)) }
                    }
                }
            }
            tbody {
                @for ((line, fields), first) in lines(summary).iter().zip(&grid.lines).zip(&grid.begins_group) {
                    tr.ideal[line.role == Role::Ideal].first[*first] {
                        @for column in &columns { (cell(summary, line, fields, column, grid.names_at)) }
                    }
                }
            }
        }
    }
}

fn cell(summary: &Summary, line: &Line<'_>, fields: &[String], column: &Column, names_at: usize) -> Markup {
    let at = match column {
        Column::Of(at) => *at,
        Column::Wait(name, of) => {
            return html! { td { @if let Some(row) = line.row { (wait(row, name, of(row))) } } };
        }
    };
    if at == names_at {
        return html! { th.name scope="row" { (line.arm) } };
    }
    if at == fields.len() - 1
        && let Some(asked) = summary.outline.comparisons.first()
    {
        return ratio(summary, line, &asked.name);
    }
    let axis = summary.outline.axes.get(at);
    let of_setting = axis.and_then(|axis| line.setting.get(&axis.key));
    match of_setting {
        // The terminal leaves out what the line above says; here that may be out of sight.
        Some(value) => html! { td { (value) } },
        None if at < names_at => html! { td { (line.vcpus) } },
        None => html! { td { (with_interval_apart(&fields[at])) } },
    }
}

/// `603 k/s +- 1.7 %`, with what follows the figure as a part of its own.
fn with_interval_apart(text: &str) -> Markup {
    match text.split_once(" +- ").or_else(|| text.split_once(" +-")) {
        Some((figure, half)) => html! { (figure) " " small { "\u{b1} " (half) } },
        None => html! { (text) },
    }
}

fn wait(row: &Row, name: &str, estimate: Option<&Estimate>) -> String {
    let at_least = if row.at_least.iter().any(|figure| figure == name) { "> " } else { "" };
    estimate.map_or("\u{2013}".into(), |it| format!("{at_least}{}", time_ns(it.hodges_lehmann)))
}

/// The comparison called `name`, if this line stands above its line.
fn ratio(summary: &Summary, line: &Line<'_>, name: &str) -> Markup {
    let is_it = |it: &&Comparison| it.name == name && it.arm == line.arm && it.setting == *line.setting;
    let found = summary.comparisons.iter().find(is_it);
    found.map_or(html! { td {} }, |found| html! { td class=[class(found.verdict)] { (as_ratio(found)) } })
}

fn class(verdict: Verdict) -> Option<&'static str> {
    match verdict {
        Verdict::Faster => Some("faster"),
        Verdict::Slower => Some("slower"),
        Verdict::NoDifferenceShown | Verdict::TooFewBlocks => None,
        Verdict::NotValid => Some("invalid"),
    }
}

fn as_ratio(comparison: &Comparison) -> Markup {
    let text = comparison.as_ratio();
    let (figure, interval) = text.split_once(' ').unwrap_or((&text, ""));
    html! { (figure) " " (table::mark(comparison)) " " small { (interval) } }
}

/// Every ratio of the experiment in words: what the pictures of ratios show.
pub(super) fn comparisons(summary: &Summary) -> Option<Markup> {
    let names = summary.outline.comparisons.iter().map(|asked| asked.name.as_str());
    let of = |name: &str| summary.comparisons.iter().filter(|it| it.name == name).collect::<Vec<_>>();
    let tables: Vec<(&str, Vec<&Comparison>)> =
        names.map(|name| (name, of(name))).filter(|(_, rows)| !rows.is_empty()).collect();
    let all: usize = tables.iter().map(|(_, rows)| rows.len()).sum();
    let content = html! {
        p {
            "One arm over another within blocks; above 1 the arm does better. An interval that contains 1 shows no difference."
        }
        @for (name, rows) in &tables {
            details open[all <= MOST_OPEN] {
                summary { (name) }
                (scrolled(name, &comparison_table(summary, rows)))
            }
        }
        @if let Some(control) = &summary.control {
            p {
                "A/A pair (" (control.arm) @for (key, value) in &control.setting { ", " (key) " " (value) } "): "
                (control.as_ratio()) " " (table::mark(control)) ", "
                (control.verdict.word(&control.of))
            }
        }
    };
    (!tables.is_empty()).then_some(content)
}

fn comparison_table(summary: &Summary, rows: &[&Comparison]) -> Markup {
    html! {
        table {
            thead {
                tr {
                    @for axis in &summary.outline.axes { th scope="col" { (axis.key) } }
                    th.name scope="col" { "arm" }
                    th.name scope="col" { "over" }
                    th scope="col" { "ratio" }
                    th.name scope="col" { "in words" }
                }
            }
            tbody {
                @for row in rows {
                    tr {
                        (cells(summary, &row.setting))
                        th.name scope="row" { (row.arm) }
                        td.name { (row.baseline) }
                        td class=[class(row.verdict)] { (as_ratio(row)) }
                        td.name {
                            (row.verdict.word(&row.of))
                            @if let Some(sensitivity) = &row.sensitivity { ", " (sensitivity.word()) }
                        }
                    }
                }
            }
        }
    }
}

/// The uncontended cost of each lock, if that is asked for.
pub(super) fn lock_costs(summary: &Summary) -> Option<Markup> {
    let lines = table::lock_cost_lines(&summary.lock_costs);
    let table = html! {
        table {
            thead {
                tr {
                    @for (at, title) in table::LOCK_COSTS.iter().enumerate() {
                        th.name[at == 0] scope="col" { (title) }
                    }
                }
            }
            tbody {
                @for line in &lines {
                    tr {
                        th.name scope="row" { (line[0]) }
                        @for field in &line[1..] { td { (field) } }
                    }
                }
            }
        }
    };
    (!lines.is_empty()).then(|| scrolled("Uncontended costs", &table))
}

/// How often trials of the same comparison show a difference, if the experiment has trials.
pub(super) fn trials(summary: &Summary) -> Option<Markup> {
    let lines = table::trials(summary);
    let content = html! {
        p { "Each trial is judged as an experiment of its own." }
        ul { @for line in &lines { li { (line) } } }
    };
    (!lines.is_empty()).then_some(content)
}
