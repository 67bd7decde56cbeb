//! `report.html`: one file with everything that a reviewer asks for, readable without network, in light and dark,
//! on screen and on paper.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::analysis::findings::{self, setting_name};
use crate::analysis::statistics::{Estimate, Verdict};
use crate::analysis::summary::{CheckOutcome, Row, Summary};
use crate::experiment::place::Role;
use crate::record::Record;
use crate::results::manifest::Manifest;
use crate::show::legend;
use crate::show::plot::{self, Data};
use crate::show::svg::{self, Svg, escape};
use crate::show::table;
use crate::text::quantity::{event, si, significant, time_ns};

const STYLE: &str = include_str!("report.css");

/// The page.
pub(crate) fn html(manifest: &Manifest, summary: &Summary, records: &[Record]) -> String {
    let data = Data::new(summary, records);
    let title = escape(&summary.outline.title);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\">\
         <title>{title}</title><style>{STYLE}{}</style></head><body><main>\n<h1>{title}</h1>\n",
        svg::STYLE
    );
    page += &origin(manifest, summary);
    page += &warnings(summary);
    page += &findings(summary);
    page += &figures(summary);
    for picture in plot::pictures(&data) {
        let _ = writeln!(
            page,
            "<section id=\"{}\"><h2>{}</h2><p>{}</p><figure>{}</figure></section>",
            picture.name,
            escape(&picture.title),
            escape(&picture.caption),
            picture.svg.as_ref().map_or(String::new(), Svg::inline)
        );
    }
    page += &lock_events(summary, records);
    page += METHOD;
    page += &appendix(manifest);
    page += "</main></body></html>\n";
    page
}

const METHOD: &str = "<section id=\"method\"><h2>How the figures are made</h2><ul>\
<li>A block is one pass over all cells in shuffled order. Arms are compared as ratios within a block, so that what drifts \
from block to block cancels.</li>\
<li>The estimate is that of Hodges and Lehmann; its 95 % interval inverts the signed-rank test (Student's t below six \
blocks). A difference is called one only if the interval excludes 1. In the table, intervals are not corrected for their \
number: of twenty comparisons without a difference, one will show one. The findings are.</li>\
<li>The ideal is the lesser of the same cell's throughput without any lock, measured just before it, and locks / hold.</li>\
<li>Outliers and drift are marked, never removed. Every run is in runs.jsonl.</li></ul></section>\n";

fn origin(manifest: &Manifest, summary: &Summary) -> String {
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
    let items = items.map(|(name, value)| format!("<div><dt>{name}</dt><dd>{}</dd></div>", escape(&value)));
    format!("<dl class=\"origin\">{}</dl>\n", items.concat())
}

fn warnings(summary: &Summary) -> String {
    let mut text = String::new();
    if !summary.warnings.is_empty() {
        let items: String =
            summary.warnings.iter().map(|warning| format!("<li>{}</li>", escape(warning))).collect();
        text = format!(
            "<aside class=\"warnings\"><h2>Before you believe a figure</h2><ul>{items}</ul></aside>\n"
        );
    }
    for (outcome, title) in [
        (CheckOutcome::Passed, "Checked, and nothing found"),
        (CheckOutcome::NotChecked, "Could not be checked"),
    ] {
        let of = summary.checks.iter().filter(|check| check.outcome == outcome);
        let items: String = of.map(|check| format!("<li>{}</li>", escape(&check.text))).collect();
        if !items.is_empty() {
            text += &format!("<section class=\"quiet\"><h2>{title}</h2><ul>{items}</ul></section>\n");
        }
    }
    text
}

fn findings(summary: &Summary) -> String {
    let sentences = findings::findings(summary);
    let items: String = sentences.iter().map(|sentence| format!("<li>{}</li>", escape(sentence))).collect();
    format!("<section id=\"findings\"><h2>Findings</h2><ul>{items}</ul></section>\n")
}

/// The table that the terminal shows.
fn figures(summary: &Summary) -> String {
    let axes: String =
        summary.outline.axes.iter().map(|axis| format!("<th>{}</th>", escape(&axis.key))).collect();
    let comparisons: String =
        summary.outline.comparisons.iter().map(|it| format!("<th>{}</th>", escape(&it.name))).collect();
    let mut rows = String::new();
    let mut last = None;
    for row in summary.rows.iter().filter(|row| row.role != Role::Control) {
        let class = match (row.role, last == Some(&row.setting)) {
            (Role::Ideal, _) => " class=\"ideal first\"",
            (_, false) => " class=\"first\"",
            _ => "",
        };
        last = Some(&row.setting);
        let _ = write!(rows, "<tr{class}>{}</tr>", figure_row(summary, row));
    }
    let legend: String =
        legend::lines(summary).iter().map(|line| format!("<p>{}</p>", escape(line))).collect();
    format!(
        "<section id=\"figures\"><h2>Figures</h2><p>Hodges-Lehmann estimates over blocks; &plusmn; and ranges are their 95 % intervals. Starved: vCPUs that \
         completed nothing in the window. Long waits: half of all time spent waiting went into waits at least this long. \
         &gt;: at least, since waits that had not ended decide it. After a ratio: + better, - worse, ~ no difference shown, \
         ? too few blocks.</p>\
         <div class=\"wide\"><table><thead><tr>{axes}<th>vCPUs</th><th class=\"name\">lock</th><th>throughput</th>\
         <th>efficiency</th><th>fairness</th><th>starved</th><th>long waits</th><th>wait p50</th><th>wait p99</th>{comparisons}</tr></thead>\
         <tbody>{rows}</tbody></table></div>{legend}</section>\n"
    )
}

fn figure_row(summary: &Summary, row: &Row) -> String {
    let mut cells = String::new();
    for axis in &summary.outline.axes {
        let _ = write!(cells, "<td>{}</td>", escape(row.setting.get(&axis.key).map_or("", String::as_str)));
    }
    let throughput = row.acquisitions_per_second.as_ref().map_or_else(
        || format!("{}/s", si(row.mean_per_second)),
        |it| {
            let half = it
                .half_width()
                .map_or(String::new(), |half| format!(" &plusmn;{} %", significant(half * 100.0)));
            format!("{}/s<small>{half}</small>", si(it.hodges_lehmann))
        },
    );
    let plain = |estimate: &Option<Estimate>, show: fn(f64) -> String| {
        estimate.as_ref().map_or("&ndash;".into(), |it| show(it.hodges_lehmann))
    };
    let wait = |name: &str, estimate: &Option<Estimate>| {
        let at_least = if row.at_least.iter().any(|figure| figure == name) { "&gt; " } else { "" };
        estimate.as_ref().map_or("&ndash;".into(), |it| format!("{at_least}{}", time_ns(it.hodges_lehmann)))
    };
    let _ = write!(
        cells,
        "<td>{}</td><td class=\"name\">{}</td><td>{throughput}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>",
        row.vcpus,
        escape(&row.arm),
        plain(&row.efficiency, significant),
        plain(&row.jain, significant),
        table::starved(row),
        escape(&table::long_waits(row)),
        wait("wait_p50_ns", &row.wait_p50_ns),
        wait("wait_p99_ns", &row.wait_p99_ns),
    );
    for asked in &summary.outline.comparisons {
        let found = summary
            .comparisons
            .iter()
            .find(|it| it.name == asked.name && it.arm == row.arm && it.setting == row.setting);
        let class = match found.map(|it| it.verdict) {
            Some(Verdict::Faster) => " class=\"faster\"",
            Some(Verdict::Slower) => " class=\"slower\"",
            _ => "",
        };
        let text = found.map_or(String::new(), |it| {
            let ratio = it.ratio.as_ref().map_or("no figure".into(), Estimate::as_ratio);
            format!("{ratio} {}", it.verdict.mark())
        });
        let _ = write!(cells, "<td{class}>{text}</td>");
    }
    cells
}

/// Lock events per thousand acquisitions: a table per arm, a column per setting.
fn lock_events(summary: &Summary, records: &[Record]) -> String {
    let mut tables = String::new();
    for arm in &summary.outline.arms {
        let of_arm: Vec<&Record> = records.iter().filter(|record| is_arm(record, arm)).collect();
        let names: BTreeSet<&String> = of_arm
            .iter()
            .flat_map(|record| &record.lock_events)
            .filter(|(_, count)| **count > 0)
            .map(|it| it.0)
            .collect();
        if !names.is_empty() {
            tables += &events_table(summary, arm, &of_arm, &names);
        }
    }
    if tables.is_empty() {
        return String::new();
    }
    format!(
        "<section id=\"events\"><h2>Lock events</h2><p>Counts since boot, per thousand acquisitions in the window (and so \
         a little too high by what happened in the warm-up). Names are Linux's; latencies are sums of time.</p>{tables}</section>\n"
    )
}

fn is_arm(record: &Record, arm: &str) -> bool {
    record.place.as_ref().is_some_and(|place| place.role == Role::Arm && place.arm == arm)
}

fn events_table(summary: &Summary, arm: &str, records: &[&Record], names: &BTreeSet<&String>) -> String {
    let mut settings: Vec<&BTreeMap<String, String>> =
        records.iter().filter_map(|record| Some(&record.place.as_ref()?.setting)).collect();
    settings.sort_by_key(|setting| summary.outline.rank(setting));
    settings.dedup();
    let heads: String = settings
        .iter()
        .map(|setting| format!("<th>{}</th>", escape(&setting_name(summary, setting))))
        .collect();
    let mut rows = String::new();
    for name in names {
        let cells: String = settings.iter().map(|setting| event_cell(records, setting, name)).collect();
        let _ = write!(rows, "<tr><td class=\"name\">{}</td>{cells}</tr>", escape(name));
    }
    format!(
        "<details><summary>{}</summary><div class=\"wide\"><table><thead><tr><th class=\"name\">event</th>{heads}</tr></thead>\
         <tbody>{rows}</tbody></table></div></details>",
        escape(arm)
    )
}

fn event_cell(records: &[&Record], setting: &BTreeMap<String, String>, name: &str) -> String {
    let here =
        records.iter().filter(|record| record.place.as_ref().is_some_and(|place| place.setting == *setting));
    let (events, acquisitions) = here.fold((0, 0), |(events, acquisitions), record| {
        (events + record.lock_events.get(name).unwrap_or(&0), acquisitions + record.totals.acquisitions)
    });
    if acquisitions == 0 {
        return format!("<td>{} in all</td>", event(name, events as f64));
    }
    format!("<td>{}</td>", event(name, events as f64 * 1000.0 / acquisitions as f64))
}

/// The manifest, for those who want to know.
fn appendix(manifest: &Manifest) -> String {
    let mut facts = String::new();
    for (name, fact) in &manifest.facts {
        let value = match (&fact.value, &fact.why) {
            (Some(value), _) => escape(value),
            (None, why) => {
                format!("<i>not available: {}</i>", escape(why.as_deref().unwrap_or("no reason given")))
            }
        };
        let _ =
            write!(facts, "<tr><td class=\"name\">{}</td><td class=\"text\">{value}</td></tr>", escape(name));
    }
    format!(
        "<section id=\"manifest\"><h2>Manifest</h2>\
         <details><summary>Experiment file</summary><p>Changed by the command line: {}</p><pre>{}</pre></details>\
         <details><summary>Host, in {} facts</summary><div class=\"wide\"><table class=\"facts\"><tbody>{facts}</tbody></table></div></details>\
         </section>\n",
        if manifest.source.overrides.is_empty() {
            "nothing".into()
        } else {
            escape(&manifest.source.overrides.join(" "))
        },
        escape(&manifest.source.text),
        manifest.facts.len(),
    )
}
