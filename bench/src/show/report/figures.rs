//! The figures: the table that the terminal shows, all comparisons, uncontended costs, verdicts counted over trials, lock events.

use std::collections::BTreeSet;

use maud::{Markup, PreEscaped, html};

use super::headed;
use crate::analysis::findings::setting_name;
use crate::analysis::summary::{Comparison, Row, Setting, Summary};
use crate::record::Record;
use crate::record::figures::{ACQUISITIONS, FIGURES, Figure, Shown};
use crate::record::place::{Place, Role};
use crate::show::published;
use crate::show::table;
use crate::text::pages::READING_A_TABLE;
use crate::text::quantity::{event, si};

/// As many rows of a table are shown as need no click.
const MOST_OPEN: usize = 24;

/// The table that the terminal shows.
pub(super) fn figures(summary: &Summary) -> Markup {
    let (of_kernels, grid) = (summary.of_kernels, table::grid(summary));
    let table = if of_kernels {
        let named = [grid.names_at, grid.names_at + 1];
        fields("Figures", &grid.header, &named, &grid.lines, &grid.begins_group)
    } else {
        table_of_figures(summary, &grid)
    };
    html! {
        p {
            "Estimates are Hodges-Lehmann's, \u{b1} and (low to high) their 95 % intervals" (table::over_seeds(summary))
            @if of_kernels { ". What the guests print is their own word." }
            @else { ". How to read this table: " (READING_A_TABLE) " in Haltkick's source." }
        }
        (table)
        ul.signs { @for line in table::signs(summary) { li { (line) } } }
    }
}

/// A table of fields: the first of the columns `named` says what a row is about, and the others of them hold words.
fn fields(
    name: &str,
    header: &[String],
    named: &[usize],
    lines: &[Vec<String>],
    begins_group: &[bool],
) -> Markup {
    let heads = html! {
        @for (at, title) in header.iter().enumerate() { th.name[named.contains(&at)] scope="col" { (title) } }
    };
    let rows = html! {
        @for (row, fields) in lines.iter().enumerate() {
            tr.first[begins_group.get(row) == Some(&true)] {
                @for (at, field) in fields.iter().enumerate() {
                    @if at == named[0] {
                        th.name scope="row" { (field) }
                    } @else {
                        td.name[named.contains(&at)] { (with_interval_apart(field)) }
                    }
                }
            }
        }
    };
    headed(name, &heads, &rows)
}

/// Everything that was printed, compared or not.
pub(super) fn printed(summary: &Summary) -> Option<Markup> {
    let axes = || summary.outline.axes.iter();
    let figures = ["kernel", "figure", "runs", "least", "most", "estimate", "unit"].map(String::from);
    let header: Vec<String> = axes().map(|axis| axis.key.clone()).chain(figures).collect();
    let mut lines = vec![];
    for row in table::arms(summary) {
        for (name, figure) in &row.figures {
            let setting = axes().map(|axis| row.setting.get(&axis.key).cloned().unwrap_or_default());
            let estimate = figure.estimate.as_ref();
            let figures = [
                row.arm.clone(),
                name.clone(),
                figure.runs.to_string(),
                si(figure.least),
                si(figure.most),
                estimate.map_or("\u{2013}".into(), |it| si(it.hodges_lehmann)),
                figure.unit.clone(),
            ];
            lines.push(setting.chain(figures).collect::<Vec<String>>());
        }
    }
    let at = summary.outline.axes.len();
    let table = || fields("All that the kernels printed", &header, &[at, at + 1, at + 6], &lines, &[]);
    (summary.of_kernels && !lines.is_empty()).then(table)
}

enum Column {
    /// One of the terminal's that says the setting, the arm or the ratio, by its place.
    Of(usize),
    /// A figure, and whether it is shown before a reader picks it.
    Figure(&'static Figure, bool),
}

/// The terminal's columns with the ratio next to the arm that it is made of, where narrow windows show it, too; then all figures that
/// the summary has, of which a reader picks some.
fn columns(summary: &Summary, header: &[String], names_at: usize) -> Vec<Column> {
    if !summary.together.is_empty() {
        return (0..header.len()).map(Column::Of).collect();
    }
    let shown = table::shown(summary);
    let mut figures: Vec<Column> = shown.iter().map(|it| Column::Figure(*it, true)).collect();
    if !summary.outline.comparisons.is_empty() {
        figures.insert(figures.len().min(1), Column::Of(header.len() - 1));
    }
    let any = |name: &str| summary.rows.iter().any(|row| row.figure(name).is_some());
    let is_other = |it: &&Figure| {
        it.center.is_some() && any(it.name) && !shown.iter().any(|figure| figure.name == it.name)
    };
    let others = FIGURES.iter().filter(is_other);
    let others = others.map(|it| Column::Figure(it, it.column.shown == Shown::InReport));
    (0..=names_at).map(Column::Of).chain(figures).chain(others).collect()
}

/// Boxes that show and hide the columns of figures, and the rules by which they do: the page has no program.
fn picker(columns: &[Column]) -> Markup {
    let figures = columns.iter().filter_map(|column| match column {
        Column::Figure(figure, is_open) => Some((figure.name, figure.column.heading, *is_open)),
        Column::Of(_) => None,
    });
    let figures: Vec<_> = figures.collect();
    let rule = |name: &str| format!("section:has(#pick-{name}:not(:checked)) .of-{name}{{display:none}}");
    let rules: String = figures.iter().map(|(name, ..)| rule(name)).collect();
    html! {
        style { (PreEscaped(rules)) }
        details.picker {
            summary { "Columns" }
            @for (name, heading, is_open) in &figures {
                label { input type="checkbox" id={ "pick-" (name) } checked[*is_open]; " " (heading) }
            }
        }
    }
}

fn table_of_figures(summary: &Summary, grid: &table::Grid) -> Markup {
    let columns = columns(summary, &grid.header, grid.names_at);
    let heads = html! {
        @for column in &columns {
            @match column {
                Column::Of(at) => th.name[*at == grid.names_at] scope="col" { (grid.header[*at]) },
                Column::Figure(figure, _) => {
                    th class={ "of-" (figure.name) } scope="col" title=(figure.about) { (figure.column.heading) }
                }
            }
        }
    };
    let rows = html! {
        @for ((row, fields), first) in table::arms(summary).iter().zip(&grid.lines).zip(&grid.begins_group) {
            tr.ideal[row.role == Role::Ideal].first[*first] {
                @for column in &columns { (cell(summary, row, fields, column, grid.names_at)) }
            }
        }
    };
    html! {
        @if summary.together.is_empty() { (picker(&columns)) }
        (headed("Figures", &heads, &rows))
    }
}

fn cell(summary: &Summary, row: &Row, fields: &[String], column: &Column, names_at: usize) -> Markup {
    let at = match column {
        Column::Of(at) => *at,
        Column::Figure(it, _) => {
            return html! { td class={ "of-" (it.name) } { (with_interval_apart(table::value(row, it).trim())) } };
        }
    };
    if at == names_at {
        return html! { th.name scope="row" { (row.arm) } };
    }
    if at == fields.len() - 1
        && let Some(asked) = summary.outline.comparisons.first()
    {
        return ratio(summary, row, &asked.name);
    }
    let axis = summary.outline.axes.get(at);
    match axis.and_then(|axis| row.setting.get(&axis.key)) {
        // The terminal leaves out what the line above says; here that may be out of sight.
        Some(value) => html! { td { (value) } },
        None if at < names_at => html! { td { (row.vcpus) } },
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

/// The comparison called `name`, if this line stands above its line.
fn ratio(summary: &Summary, line: &Row, name: &str) -> Markup {
    let is_it = |it: &&Comparison| it.name == name && it.arm == line.arm && it.setting == line.setting;
    let found = summary.comparisons.iter().find(is_it);
    found.map_or(
        html! { td {} },
        |found| html! { td class=[table::look(found.verdict).1] { (as_ratio(found)) } },
    )
}

fn as_ratio(comparison: &Comparison) -> Markup {
    let text = comparison.as_ratio();
    let (figure, interval) = text.split_once(' ').unwrap_or((&text, ""));
    html! { (figure) " " (table::mark(comparison)) " " small { (interval) } }
}

/// Every ratio of the experiment in words: what the pictures of ratios show.
pub(super) fn comparisons(summary: &Summary) -> Option<Markup> {
    let names = summary.outline.comparisons.iter().map(|asked| asked.name.as_str());
    let named = |name: &str| summary.comparisons.iter().filter(|it| it.name == name).collect::<Vec<_>>();
    let tables: Vec<(&str, Vec<&Comparison>)> =
        names.map(|name| (name, named(name))).filter(|(_, rows)| !rows.is_empty()).collect();
    let all: usize = tables.iter().map(|(_, rows)| rows.len()).sum();
    let content = html! {
        p {
            "One arm over another within blocks; above 1 the arm does better. An interval that contains 1 shows no difference."
        }
        @for (name, rows) in &tables {
            details open[all <= MOST_OPEN] {
                summary { (name) }
                (comparison_table(summary, name, rows))
            }
        }
        @if let Some(words) = table::control(summary) { p { (words.join(", ")) } }
    };
    (!tables.is_empty()).then_some(content)
}

/// Published figures next to ours, with the reasons.
pub(super) fn published(summary: &Summary) -> Option<Markup> {
    let content = html! {
        @for row in &summary.published {
            @let [there, here] = published::figures(row);
            details {
                summary { (row.published.name) ": published " (there) ", ours " (here) ": " strong { (row.agreement.word()) } }
                p { (published::reasons(&summary.outline.experiment, row)) }
                p { "Control: " (published::control(row)) }
            }
        }
    };
    (!summary.published.is_empty()).then_some(content)
}

fn comparison_table(summary: &Summary, name: &str, compared: &[&Comparison]) -> Markup {
    let heads = html! {
        @for axis in &summary.outline.axes { th scope="col" { (axis.key) } }
        th.name scope="col" { "arm" }
        th.name scope="col" { "over" }
        th scope="col" { "ratio" }
        th.name scope="col" { "in words" }
    };
    let rows = html! {
        @for row in compared {
            tr {
                @for axis in &summary.outline.axes { td { (row.setting.get(&axis.key).map_or("", String::as_str)) } }
                th.name scope="row" { (row.arm) }
                td.name { (row.baseline) }
                td class=[table::look(row.verdict).1] { (as_ratio(row)) }
                td.name {
                    (row.verdict.word(&row.of))
                    @if let Some(sensitivity) = &row.sensitivity { ", " (sensitivity.word()) }
                }
            }
        }
    };
    headed(name, &heads, &rows)
}

pub(super) fn lock_costs(summary: &Summary) -> Option<Markup> {
    let lines = table::lock_cost_lines(&summary.lock_costs);
    let header = table::LOCK_COSTS.map(String::from);
    (!lines.is_empty()).then(|| fields("Uncontended costs", &header, &[0], &lines, &[]))
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

/// Lock events per thousand acquisitions: a table per arm, a column per setting.
pub(super) fn events(summary: &Summary, records: &[Record]) -> Option<Markup> {
    let tables: Vec<Markup> =
        summary.outline.arms.iter().filter_map(|arm| events_table(summary, arm, records)).collect();
    let content = html! {
        p {
            "Counts since boot, per thousand acquisitions in the window (and so a little too high by what happened in the \
             warm-up). Names are Linux's; latencies are sums of time."
        }
        @for table in &tables { (table) }
    };
    (!tables.is_empty()).then_some(content)
}

/// `None`: nothing happened.
fn events_table(summary: &Summary, arm: &str, records: &[Record]) -> Option<Markup> {
    let is_of_arm = |place: &Place| place.role == Role::Arm && place.arm == arm;
    let records: Vec<&Record> =
        records.iter().filter(|record| record.place.as_ref().is_some_and(is_of_arm)).collect();
    let events = records.iter().flat_map(|record| record.lock_events.iter());
    let any = events.filter(|(_, count)| count.is_some_and(|count| count > 0.0));
    let names: BTreeSet<&str> = any.map(|(name, _)| name).collect();
    let mut settings: Vec<&Setting> =
        records.iter().filter_map(|record| Some(&record.place.as_ref()?.setting)).collect();
    settings.sort_by_key(|setting| summary.outline.rank(setting));
    settings.dedup();
    let at = settings.iter().map(|setting| setting_name(summary, setting));
    let header: Vec<String> = std::iter::once("event".into()).chain(at).collect();
    let line = |name: &&str| {
        let at = settings.iter().map(|setting| events_at(&records, setting, name));
        std::iter::once((*name).to_owned()).chain(at).collect::<Vec<String>>()
    };
    let lines: Vec<Vec<String>> = names.iter().map(line).collect();
    let table = || html! { details { summary { (arm) } (fields(arm, &header, &[0], &lines, &[])) } };
    (!names.is_empty()).then(table)
}

fn events_at(records: &[&Record], setting: &Setting, name: &str) -> String {
    let here =
        records.iter().filter(|record| record.place.as_ref().is_some_and(|place| place.setting == *setting));
    let (mut events, mut acquisitions) = (0.0, 0.0);
    for record in here {
        events += record.lock_events.get(name).unwrap_or_default();
        acquisitions += record.amount(ACQUISITIONS);
    }
    if acquisitions == 0.0 {
        return format!("{} in all", event(name, events));
    }
    event(name, events * 1000.0 / acquisitions)
}
