//! The figures: the table that the terminal shows, all comparisons, uncontended costs, verdicts counted over trials, lock events.

use std::collections::BTreeSet;

use maud::{Markup, PreEscaped, html};

use super::scrolled;
use crate::analysis::findings::setting_name;
use crate::analysis::summary::{Setting, Summary};
use crate::record::Record;
use crate::record::figures::{ACQUISITIONS, FIGURES, Figure, Shown};
use crate::record::place::{Place, Role};
use crate::show::published;
use crate::show::table::{self, Field, Grid, Line};
use crate::text::pages::READING_A_TABLE;
use crate::text::quantity::{event, si};

/// As many rows of a table are shown as need no click.
const MOST_OPEN: usize = 24;

/// Heading of a column, and the figure in it, where a reader can hide that.
type Head = (String, Option<&'static Figure>);

fn heads<T: Into<String>>(titles: impl IntoIterator<Item = T>) -> Vec<Head> {
    titles.into_iter().map(|title| (title.into(), None)).collect()
}

/// The table that the terminal shows.
pub(super) fn figures(summary: &Summary) -> Markup {
    let Grid { header, names_at, mut groups, .. } = table::grid(summary);
    let mut heads = heads(header);
    if !summary.of_kernels {
        widen(summary, names_at, &mut heads, &mut groups);
    }
    let named = if summary.of_kernels { vec![names_at, names_at + 1] } else { vec![names_at] };
    html! {
        p {
            "Estimates are Hodges-Lehmann's, \u{b1} and (low to high) their 95 % intervals" (table::over_seeds(summary))
            @if summary.of_kernels { ". What the guests print is their own word." }
            @else { ". How to read this table: " (READING_A_TABLE) " in Haltkick's source." }
        }
        @if heads.iter().any(|(_, figure)| figure.is_some()) { (picker(summary, &heads)) }
        (fields("Figures", &heads, &named, &groups))
        ul.signs { @for line in table::signs(summary) { li { (line) } } }
    }
}

/// A table of fields: the first of the columns `named` says what a row is about, and the others of them hold words.
fn fields(name: &str, heads: &[Head], named: &[usize], groups: &[Vec<Line>]) -> Markup {
    let class = |at: usize| match heads[at].1 {
        Some(figure) => Some(format!("of-{}", figure.name)),
        None => named.contains(&at).then(|| "name".to_owned()),
    };
    let titles = html! {
        @for (at, (title, figure)) in heads.iter().enumerate() {
            th class=[class(at)] scope="col" title=[figure.map(|figure| figure.about)] { (title) }
        }
    };
    let rows = html! {
        @for (group, lines) in groups.iter().enumerate() {
            @for (row, line) in lines.iter().enumerate() {
                tr.first[group > 0 && row == 0].faint[line[named[0]].class().is_some()] {
                    @for (at, field) in line.iter().enumerate() {
                        @if at == named[0] {
                            th.name scope="row" { (field.text) }
                        } @else if named.contains(&at) {
                            td.name { (field.text) }
                        } @else {
                            td class=[class(at).or_else(|| field.class().map(String::from))] { (with_interval_apart(&field.text)) }
                        }
                    }
                }
            }
        }
    };
    scrolled(name, &html! { table { thead { tr { (titles) } } tbody { (rows) } } })
}

/// Everything that was printed, compared or not.
pub(super) fn printed(summary: &Summary) -> Option<Markup> {
    let axes = || summary.outline.axes.iter();
    let figures = ["kernel", "figure", "runs", "least", "most", "estimate", "unit"];
    let heads = heads(axes().map(|axis| axis.key.as_str()).chain(figures));
    let mut lines: Vec<Line> = vec![];
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
            lines.push(setting.chain(figures).map(Field::new).collect());
        }
    }
    let at = summary.outline.axes.len();
    let is_any = summary.of_kernels && !lines.is_empty();
    is_any.then(|| fields("All that the kernels printed", &heads, &[at, at + 1, at + 6], &[lines]))
}

/// Makes the terminal's table that of a page. Each line says its setting, which may be out of sight in the line above. The ratio stands next
/// to the arm that it is made of, where narrow windows show it, too. All figures that the summary has follow, of which a reader picks some.
fn widen(summary: &Summary, names_at: usize, heads: &mut Vec<Head>, groups: &mut [Vec<Line>]) {
    let is_of_arms = summary.together.is_empty();
    let shown = if is_of_arms { table::shown(summary) } else { vec![] };
    heads[names_at + 1..].iter_mut().zip(&shown).for_each(|(head, figure)| head.1 = Some(*figure));
    let has_ratio = !summary.outline.comparisons.is_empty();
    if has_ratio {
        last_behind_first_figure(heads, names_at);
    }
    let is_other = |figure: &&'static Figure| {
        let is_known =
            figure.center.is_some() && summary.rows.iter().any(|row| row.figure(figure.name).is_some());
        is_of_arms && is_known && !shown.iter().any(|it| it.name == figure.name)
    };
    let others = FIGURES.iter().filter(is_other);
    heads.extend(others.clone().map(|figure| (figure.column.heading.to_owned(), Some(figure))));
    for (row, line) in table::arms(summary).into_iter().zip(groups.iter_mut().flatten()) {
        line[..names_at].clone_from_slice(&table::of_axes(summary, &row.setting, row.vcpus, true));
        if has_ratio {
            last_behind_first_figure(line, names_at);
        }
        line.extend(others.clone().map(|it| Field::new(table::value(row, it).trim())));
    }
}

fn last_behind_first_figure<T>(columns: &mut [T], names_at: usize) {
    let at = (names_at + 2).min(columns.len() - 1);
    columns[at..].rotate_right(1);
}

/// Boxes that show and hide the columns of figures, and the rules by which they do: the page has no program. Paper has no room for figures
/// that have no column of their own.
fn picker(summary: &Summary, heads: &[Head]) -> Markup {
    let shown = table::shown(summary);
    let is_open = |figure: &Figure| {
        figure.column.shown == Shown::InReport || shown.iter().any(|it| it.name == figure.name)
    };
    let figures: Vec<(&str, &Figure)> =
        heads.iter().filter_map(|(title, figure)| Some((title.as_str(), (*figure)?))).collect();
    let rule = |name: &str| format!("section:has(#pick-{name}:not(:checked)) .of-{name}{{display:none}}");
    let rules: String = figures.iter().map(|(_, figure)| rule(figure.name)).collect();
    html! {
        style { (PreEscaped(rules)) }
        details.picker {
            summary { "Columns" }
            @for (title, figure) in &figures {
                label { input type="checkbox" id={ "pick-" (figure.name) } checked[is_open(figure)]; " " (title) }
            }
        }
    }
}

/// `603 k/s +- 1.7 %` and `1.72x (1.61 to 1.85) +`, with the interval as a part of its own behind all else.
fn with_interval_apart(text: &str) -> Markup {
    if let Some((figure, half)) = text.split_once(" +- ").or_else(|| text.split_once(" +-")) {
        return html! { (figure) " " small { "\u{b1} " (half) } };
    }
    let in_parentheses =
        text.split_once(" (").and_then(|(figure, rest)| Some((figure, rest.split_once(')')?)));
    match in_parentheses {
        Some((figure, (interval, mark))) => html! { (figure) (mark) " " small { "(" (interval) ")" } },
        None => html! { (text) },
    }
}

/// Every ratio of the experiment in words: what the pictures of ratios show.
pub(super) fn comparisons(summary: &Summary) -> Option<Markup> {
    let names = summary.outline.comparisons.iter().map(|asked| asked.name.as_str());
    let tables = names.map(|name| {
        let (header, lines) = table::cells(summary.comparisons.iter().filter(|it| it.name == name));
        (name, heads(header), lines)
    });
    let tables: Vec<(&str, Vec<Head>, Vec<Line>)> = tables.filter(|(.., lines)| !lines.is_empty()).collect();
    let all: usize = tables.iter().map(|(.., lines)| lines.len()).sum();
    let content = html! {
        p {
            "B/A is one arm over another within blocks; above 1 arm B does better. An interval that contains 1 shows no difference."
        }
        @for (name, heads, lines) in &tables {
            details open[all <= MOST_OPEN] {
                summary { (name) }
                (fields(name, heads, &[1, 0, 2, heads.len() - 1], std::slice::from_ref(lines)))
            }
        }
        @if let Some(pair) = table::control(summary) { p { (pair) } }
    };
    (!tables.is_empty()).then_some(content)
}

/// Published figures next to ours, with the reasons.
pub(super) fn published(summary: &Summary) -> Option<Markup> {
    let content = html! {
        @for row in &summary.published {
            @let [figures, conditions] = published::told(row);
            details {
                summary { (figures) }
                p { (conditions) }
                p { (published::reasons(&summary.outline.experiment, row)) }
            }
        }
    };
    (!summary.published.is_empty()).then_some(content)
}

pub(super) fn lock_costs(summary: &Summary) -> Option<Markup> {
    let lines = table::lock_costs(summary);
    (!lines.is_empty()).then(|| fields("Uncontended costs", &heads(table::LOCK_COSTS), &[0], &[lines]))
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
    let heads = heads(std::iter::once("event".into()).chain(at));
    let line = |name: &&str| {
        let at = settings.iter().map(|setting| events_at(&records, setting, name));
        std::iter::once((*name).to_owned()).chain(at).map(Field::new).collect()
    };
    let lines: Vec<Line> = names.iter().map(line).collect();
    let table = || html! { details { summary { (arm) } (fields(arm, &heads, &[0], &[lines])) } };
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
