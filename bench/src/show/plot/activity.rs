//! Use of the pCPUs' time, and the activities that preemptions hit.

use std::collections::BTreeMap;

use super::chart::{Key, of_shade};
use super::rows::Rows;
use super::{Data, Picture, Setting};
use crate::record::Record;
use crate::record::figures::{ACQUISITIONS, CPU, WINDOW};
use crate::show::svg::{Svg, shade};
use crate::text::quantity::{count, significant};

/// Shades of what vCPUs do, the same in all pictures.
const HOLDING: usize = 0;
const FIRST: usize = 1;
const WAITING: usize = 2;
const WORKING: usize = 3;
const OTHER: usize = 4;

/// A stacked bar: shares of the whole with their colour, and a remark next to it.
struct Bar {
    shares: Vec<f64>,
    remark: String,
}

struct Chart {
    label: &'static str,
    /// Name and shade of each part.
    parts: &'static [(&'static str, usize)],
    remark_title: &'static str,
}

/// Why the time cannot be divided up, if it cannot.
fn indivisible(record: &Record) -> Option<&'static str> {
    match record.settings.text("workload").unwrap_or_default() {
        "critical-section" | "mixed" if record.settings.count("nested_one_in") > 0 => {
            Some("where sections nest, the time in a section has waits for the inner lock in it")
        }
        "critical-section" | "mixed" if record.figure("preempted_holder_ns").is_none() => Some(
            "the time that holders spent off their pCPUs is unknown, and the time in sections contains it",
        ),
        "critical-section" | "mixed" => None,
        _ => Some("this workload's operations are not a section and a pause of known length"),
    }
}

pub(super) fn time(data: &Data<'_>) -> Option<Picture> {
    let (name, title) = ("time".to_owned(), "Where the time went".to_owned());
    let records = data.runs.values().flat_map(BTreeMap::values).flatten();
    if let Some(reason) = records.clone().find_map(|record| indivisible(record)) {
        return Some(Picture::not_drawn(name, title, reason));
    }
    if records.clone().any(|record| data.vcpus_of_run(record) != record.per_vcpu.len()) {
        let reason = "several guests shared the pCPUs, and each record has the time of its own";
        return Some(Picture::not_drawn(name, title, reason));
    }
    let chart = Chart {
        label: "Where the time of the pCPUs went",
        parts: &[
            ("holding the lock", HOLDING),
            ("waiting on the pCPU", WAITING),
            ("thinking", WORKING),
            ("idle, exits, switching", OTHER),
        ],
        remark_title: "lock held by a vCPU without pCPU",
    };
    Some(Picture {
        name,
        title,
        caption: "Where the time of the pCPUs went in the window: inside sections, waiting on a pCPU, work between sections, and \
                  the rest. Time in a section does not count while its vCPU is off its pCPU. At the right: share of the \
                  window in which the lock's holder was preempted."
            .into(),
        svg: Some(stacked(data, &chart, time_bar)?),
    })
}

pub(super) fn preemptions(data: &Data<'_>) -> Option<Picture> {
    let chart = Chart {
        label: "What vCPUs were doing when they were taken off their pCPU",
        parts: &[
            ("holding the lock", HOLDING),
            ("first in the queue", FIRST),
            ("waiting", WAITING),
            ("neither", OTHER),
        ],
        remark_title: "preemptions per second",
    };
    Some(Picture {
        name: "preemptions".into(),
        title: "What preempted vCPUs were doing".into(),
        caption: "Activity of a vCPU at the moment its slice ended. Locks whose waiters sleep are preempted less, since fewer \
                  vCPUs want a pCPU."
            .into(),
        svg: Some(stacked(data, &chart, preemption_bar)?),
    })
}

fn time_bar(runs: &[&Record]) -> Option<Bar> {
    let offered: f64 = runs.iter().map(|run| run.amount(WINDOW) * run.settings.pcpus() as f64).sum();
    let on_cpu: f64 = runs.iter().map(|run| on_cpu_ns(run)).sum();
    let sum = |of: fn(&Record) -> f64| runs.iter().map(|run| of(run)).sum::<f64>() / offered;
    let (hold, think) =
        (sum(held_on_cpu_ns), sum(|run| run.amount(ACQUISITIONS) * run.settings.count("think_ns") as f64));
    let wait = (on_cpu / offered - hold - think).max(0.0);
    let rest = (1.0 - hold - think - wait).max(0.0);
    let window: f64 = runs.iter().map(|run| run.amount(WINDOW) * run.settings.count("locks") as f64).sum();
    let held_off: Option<f64> = runs.iter().map(|run| run.figure("preempted_holder_ns")).sum();
    let remark = held_off.map_or("not known".into(), |ns| format!("{} %", significant(ns / window * 100.0)));
    (offered > 0.0).then(|| Bar { shares: vec![hold, wait, think, rest], remark })
}

/// Measured time in sections, less the time for which their vCPUs were off their pCPUs meanwhile.
fn held_on_cpu_ns(run: &Record) -> f64 {
    let held = run.amount("hold_mean_ns") * run.amount("hold_count");
    (held - run.amount("preempted_holder_ns")).max(0.0)
}

/// Time of all vCPUs on a pCPU, or the process's CPU time where that is not measured.
fn on_cpu_ns(run: &Record) -> f64 {
    let vcpus: Option<f64> = run.per_vcpu.iter().map(|vcpu| vcpu.run_ns.map(|ns| ns as f64)).sum();
    vcpus.unwrap_or_else(|| run.amount(CPU))
}

fn preemption_bar(runs: &[&Record]) -> Option<Bar> {
    if runs.is_empty() {
        return None;
    }
    let mut sums = [0.0; 4];
    let mut window_ns = 0.0;
    for run in runs {
        for (sum, doing) in sums.iter_mut().zip(["holder", "head", "waiter", "other"]) {
            *sum += run.figure(&format!("preemptions_{doing}"))?;
        }
        window_ns += run.amount(WINDOW);
    }
    let total: f64 = sums.iter().sum();
    let per_second = total / (window_ns / 1e9);
    let shares = sums.iter().map(|sum| if total > 0.0 { *sum / total } else { 0.0 }).collect();
    Some(Bar { shares, remark: count(per_second as u64) })
}

/// One bar per setting and arm; none if no arm has one.
fn stacked(data: &Data<'_>, chart: &Chart, bar: fn(&[&Record]) -> Option<Bar>) -> Option<Svg> {
    let settings = data.settings();
    let bars: Vec<(&Setting, Vec<(&String, Bar)>)> = settings
        .into_iter()
        .map(|setting| {
            let bars = data.arms().iter().filter_map(|arm| Some((arm, bar(data.runs(setting, arm))?)));
            (setting, bars.collect())
        })
        .collect();
    let drawn = || bars.iter().flat_map(|(_, bars)| bars);
    let count = drawn().count();
    if count == 0 {
        return None;
    }
    let rows = Rows::new(data, drawn().map(|(_, bar)| bar.remark.as_str()));
    let key = Key::new(chart.parts.iter().map(|(part, _)| *part));
    let top = key.height() + 22.0;
    let mut svg = Svg::new(top + rows.height(bars.len(), count), chart.label);
    key.draw(&mut svg, 2.0, |svg, part, at| of_shade(svg, &shade(chart.parts[part].1), at));
    Rows::remarks_title(&mut svg, top - 4.0, chart.remark_title);
    let mut y = top;
    for (setting, bars) in &bars {
        y = rows.heading(&mut svg, y, &data.name(setting));
        for (arm, bar) in bars {
            let top = rows.row(&mut svg, y, arm, &bar.remark);
            draw_bar(&mut svg, chart, (arm.as_str(), bar), &rows, top);
            y += rows.pitch();
        }
    }
    Some(svg)
}

fn draw_bar(svg: &mut Svg, chart: &Chart, (arm, bar): (&str, &Bar), rows: &Rows, y: f64) {
    const HEIGHT: f64 = 13.0;
    let width = rows.right - rows.left;
    let mut x = rows.left;
    for (share, (part, shade_of)) in bar.shares.iter().zip(chart.parts) {
        let part_width = (share * width).min(rows.right - x).max(0.0);
        let tip = format!("{arm}: {part} {} %", significant(share * 100.0));
        if part_width > 0.05 {
            svg.rectangle((x, y + 1.0), part_width, HEIGHT, &shade(*shade_of), &tip);
        }
        x += part_width;
    }
}
