//! `report.html`: one file with everything that a reviewer asks for, readable without network, in light and dark,
//! on screen and on paper. All text is escaped, but for our own style sheets and pictures.

use std::collections::{BTreeMap, BTreeSet};

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::analysis::findings::{self, setting_name};
use crate::analysis::statistics::{Estimate, Verdict};
use crate::analysis::summary::{CheckOutcome, Row, Summary};
use crate::experiment::place::Role;
use crate::record::Record;
use crate::results::manifest::Manifest;
use crate::show::legend;
use crate::show::plot::{self, Data, Picture};
use crate::show::svg::{self, Svg};
use crate::show::table;
use crate::text::quantity::{event, si, significant, time_ns};

const STYLE: &str = include_str!("report.css");

/// The page.
pub(crate) fn page(manifest: &Manifest, summary: &Summary, records: &[Record]) -> String {
    let data = Data::new(summary, records);
    let title = &summary.outline.title;
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                style { (PreEscaped(STYLE)) (PreEscaped(svg::STYLE)) }
            }
            body {
                main {
                    h1 { (title) }
                    (origin(manifest, summary))
                    (warnings(summary))
                    (findings(summary))
                    (figures(summary))
                    @for picture in plot::pictures(&data) { (section(&picture)) }
                    (lock_events(summary, records))
                    (method())
                    (appendix(manifest))
                }
            }
        }
    };
    page.into_string() + "\n"
}

fn section(picture: &Picture) -> Markup {
    html! {
        section id=(picture.name) {
            h2 { (picture.title) }
            p { (picture.caption) }
            figure { (PreEscaped(picture.svg.as_ref().map_or(String::new(), Svg::inline))) }
        }
    }
}

fn method() -> Markup {
    html! {
        section id="method" {
            h2 { "How the figures are made" }
            ul {
                li {
                    "A block is one pass over all cells in shuffled order. Arms are compared as ratios within a block, so that what \
                     drifts from block to block cancels."
                }
                li {
                    "The estimate is that of Hodges and Lehmann; its 95 % interval inverts the signed-rank test (Student's t below \
                     six blocks). A difference is called one only if the interval excludes 1. In the table, intervals are not \
                     corrected for their number: of twenty comparisons without a difference, one will show one. The findings are."
                }
                li {
                    "The ideal is the lesser of the same cell's throughput without any lock, measured just before it, and locks / \
                     hold."
                }
                li { "Outliers and drift are marked, never removed. Every run is in runs.jsonl." }
            }
        }
    }
}

fn origin(manifest: &Manifest, summary: &Summary) -> Markup {
    let host = &manifest.host;
    let or_unknown = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".into());
    let items = [
        ("experiment", summary.outline.experiment.clone()),
        ("begun", manifest.started.clone()),
        ("measured", summary.extent()),
        ("CPU", or_unknown(&host.cpu_model)),
        ("kernel", or_unknown(&host.kernel)),
        ("KVM", or_unknown(&host.kvm_module)),
        ("seed", manifest.seed.to_string()),
        ("haltkick", host.haltkick_version.clone()),
    ];
    html! {
        dl.origin { @for (name, value) in items { div { dt { (name) } dd { (value) } } } }
    }
}

fn warnings(summary: &Summary) -> Markup {
    let of = |outcome| summary.checks.iter().filter(move |check| check.outcome == outcome);
    html! {
        @if !summary.warnings.is_empty() {
            aside.warnings {
                h2 { "Before you believe a figure" }
                ul { @for warning in &summary.warnings { li { (warning) } } }
            }
        }
        @for (outcome, title) in [
            (CheckOutcome::Passed, "Checked, and nothing found"),
            (CheckOutcome::NotChecked, "Could not be checked"),
        ] {
            @if of(outcome).next().is_some() {
                section.quiet { h2 { (title) } ul { @for check in of(outcome) { li { (check.text) } } } }
            }
        }
    }
}

fn findings(summary: &Summary) -> Markup {
    html! {
        section id="findings" {
            h2 { "Findings" }
            ul { @for sentence in findings::findings(summary) { li { (sentence) } } }
        }
    }
}

/// The table that the terminal shows.
fn figures(summary: &Summary) -> Markup {
    let rows: Vec<&Row> = summary.rows.iter().filter(|row| row.role != Role::Control).collect();
    let starts_setting = |at: usize| at == 0 || rows[at - 1].setting != rows[at].setting;
    html! {
        section id="figures" {
            h2 { "Figures" }
            p {
                "Hodges-Lehmann estimates over blocks; \u{b1} and ranges are their 95 % intervals. Starved: vCPUs that completed \
                 nothing in the window. Long waits: half of all time spent waiting went into waits at least this long. >: at least, \
                 since waits that had not ended decide it. After a ratio: + better, - worse, ~ no difference shown, ? too few blocks."
            }
            div.wide {
                table {
                    thead {
                        tr {
                            @for axis in &summary.outline.axes { th { (axis.key) } }
                            th { "vCPUs" }
                            th.name { "lock" }
                            @for name in ["throughput", "efficiency", "fairness", "starved", "long waits", "wait p50", "wait p99"] {
                                th { (name) }
                            }
                            @if summary.counts_overtaking() { th { "overtaken" } }
                            @for asked in &summary.outline.comparisons { th { (asked.name) } }
                        }
                    }
                    tbody {
                        @for (at, row) in rows.iter().enumerate() {
                            @let ideal = row.role == Role::Ideal;
                            tr.ideal[ideal].first[ideal || starts_setting(at)] { (figure_row(summary, row)) }
                        }
                    }
                }
            }
            @for line in legend::lines(summary) { p { (line) } }
        }
    }
}

fn figure_row(summary: &Summary, row: &Row) -> Markup {
    let plain = |estimate: &Option<Estimate>, show: fn(f64) -> String| {
        estimate.as_ref().map_or("\u{2013}".into(), |it| show(it.hodges_lehmann))
    };
    let wait = |name: &str, estimate: &Option<Estimate>| {
        let at_least = if row.at_least.iter().any(|figure| figure == name) { "> " } else { "" };
        estimate.as_ref().map_or("\u{2013}".into(), |it| format!("{at_least}{}", time_ns(it.hodges_lehmann)))
    };
    html! {
        @for axis in &summary.outline.axes { td { (row.setting.get(&axis.key).map_or("", String::as_str)) } }
        td { (row.vcpus) }
        td.name { (row.arm) }
        td { (throughput(row)) }
        td { (plain(&row.efficiency, significant)) }
        td { (plain(&row.jain, significant)) }
        td { (table::starved(row)) }
        td { (table::long_waits(row)) }
        td { (wait("wait_p50_ns", &row.wait_p50_ns)) }
        td { (wait("wait_p99_ns", &row.wait_p99_ns)) }
        @if summary.counts_overtaking() { td { (table::overtaken(row)) } }
        @for asked in &summary.outline.comparisons { (ratio(summary, row, &asked.name)) }
    }
}

fn throughput(row: &Row) -> Markup {
    let Some(estimate) = &row.acquisitions_per_second else {
        return html! { (si(row.mean_per_second)) "/s" };
    };
    html! {
        (si(estimate.hodges_lehmann)) "/s"
        small {
            @if let Some(half) = estimate.half_width() { " \u{b1}" (significant(half * 100.0)) " %" }
        }
    }
}

/// The comparison called `name`, if this row stands above its line.
fn ratio(summary: &Summary, row: &Row, name: &str) -> Markup {
    let is_it = |it: &&_| {
        let it: &crate::analysis::summary::Comparison = it;
        it.name == name && it.arm == row.arm && it.setting == row.setting
    };
    let Some(found) = summary.comparisons.iter().find(is_it) else {
        return html! { td {} };
    };
    let figure = found.ratio.as_ref().map_or("no figure".into(), Estimate::as_ratio);
    html! {
        td.faster[found.verdict == Verdict::Faster].slower[found.verdict == Verdict::Slower] {
            (figure) " " (found.verdict.mark())
        }
    }
}

/// Lock events per thousand acquisitions: a table per arm, a column per setting.
fn lock_events(summary: &Summary, records: &[Record]) -> Markup {
    let tables: Vec<Markup> =
        summary.outline.arms.iter().filter_map(|arm| events_table(summary, arm, records)).collect();
    html! {
        @if !tables.is_empty() {
            section id="events" {
                h2 { "Lock events" }
                p {
                    "Counts since boot, per thousand acquisitions in the window (and so a little too high by what happened in the \
                     warm-up). Names are Linux's; latencies are sums of time."
                }
                @for table in tables { (table) }
            }
        }
    }
}

fn is_arm(record: &Record, arm: &str) -> bool {
    record.place.as_ref().is_some_and(|place| place.role == Role::Arm && place.arm == arm)
}

/// `None`: nothing happened.
fn events_table(summary: &Summary, arm: &str, records: &[Record]) -> Option<Markup> {
    let records: Vec<&Record> = records.iter().filter(|record| is_arm(record, arm)).collect();
    let events = records.iter().flat_map(|record| &record.lock_events);
    let names: BTreeSet<&String> = events.filter(|(_, count)| **count > 0).map(|(name, _)| name).collect();
    let mut settings: Vec<&BTreeMap<String, String>> =
        records.iter().filter_map(|record| Some(&record.place.as_ref()?.setting)).collect();
    settings.sort_by_key(|setting| summary.outline.rank(setting));
    settings.dedup();
    let table = html! {
        details {
            summary { (arm) }
            div.wide {
                table {
                    thead {
                        tr {
                            th.name { "event" }
                            @for setting in &settings { th { (setting_name(summary, setting)) } }
                        }
                    }
                    tbody {
                        @for name in &names {
                            tr {
                                td.name { (name) }
                                @for setting in &settings { td { (events_at(&records, setting, name)) } }
                            }
                        }
                    }
                }
            }
        }
    };
    (!names.is_empty()).then_some(table)
}

fn events_at(records: &[&Record], setting: &BTreeMap<String, String>, name: &str) -> String {
    let here =
        records.iter().filter(|record| record.place.as_ref().is_some_and(|place| place.setting == *setting));
    let (events, acquisitions) = here.fold((0, 0), |(events, acquisitions), record| {
        (events + record.lock_events.get(name).unwrap_or(&0), acquisitions + record.totals.acquisitions)
    });
    if acquisitions == 0 {
        return format!("{} in all", event(name, events as f64));
    }
    event(name, events as f64 * 1000.0 / acquisitions as f64)
}

/// The manifest, for those who want to know.
fn appendix(manifest: &Manifest) -> Markup {
    let overrides = manifest.source.overrides.join(" ");
    html! {
        section id="manifest" {
            h2 { "Manifest" }
            details {
                summary { "Experiment file" }
                p { "Changed by the command line: " (if overrides.is_empty() { "nothing" } else { &overrides }) }
                pre { (manifest.source.text) }
            }
            details {
                summary { "Host, in " (manifest.facts.len()) " facts" }
                div.wide {
                    table.facts {
                        tbody {
                            @for (name, fact) in &manifest.facts {
                                tr {
                                    td.name { (name) }
                                    td.text {
                                        @match &fact.value {
                                            Some(value) => (value),
                                            None => i {
                                                "not available: " (fact.why.as_deref().unwrap_or("no reason given"))
                                            },
                                        }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::synthetic::{Sketch, World};

    #[test]
    fn a_page_has_all_its_sections_and_no_text_can_break_out_of_its_element() {
        let plan = Sketch::new().axis("ratio", &["1", "8"]).arm("<script>", "tas").arm("b & c", "ticket");
        let plan = plan.compare("\"b\"", "b & c", "<script>").control("b & c").plan(6);
        let (world, records) = (World::new(1), World::new(1).records(&plan));
        let page = page(&world.manifest(&plan), &Summary::new(&plan.outline, &records), &records);
        for section in ["findings", "figures", "method", "manifest"] {
            assert!(page.contains(&format!("<section id=\"{section}\">")), "{section} is missing");
        }
        assert!(!page.contains("<script>") && page.contains("&lt;script&gt;") && page.contains("b &amp; c"));
        let (opened, closed) = (page.matches("<td").count(), page.matches("</td>").count());
        assert!(opened == closed && opened > 40, "{opened} cells are opened and {closed} closed");
    }
}
