//! Pictures with a row per setting and arm: names at the left, remarks at the right, and what is drawn between them. Use of the pCPUs'
//! time, the activities that preemptions hit, and how the acquisitions fell on the vCPUs.

use std::collections::{BTreeMap, BTreeSet};

use super::{Data, Key, Picture, Setting, of_shade, series};
use crate::analysis::statistics::sorted;
use crate::record::Record;
use crate::record::figures::{ACQUISITIONS, CPU, WINDOW};
use crate::show::svg::{Anchor, SHADES, Scale, Svg, WIDTH, colour, text_width};
use crate::text::quantity::{count, percent, significant};

const ROW: f64 = 17.0;
const HEADING: f64 = 24.0;
/// Names that would take more of the picture than this stand above their rows.
const MOST_FOR_NAMES: f64 = 0.3;

pub(super) struct Rows {
    /// Ends of what is drawn.
    pub(super) left: f64,
    pub(super) right: f64,
    names_above: bool,
}

impl Rows {
    pub(super) fn new<'a, 'b>(
        names: impl Iterator<Item = &'a str>,
        remarks: impl Iterator<Item = &'b str>,
    ) -> Self {
        let names = widest(names) + 16.0;
        let remarks = widest(remarks) + 18.0;
        let names_above = names > WIDTH * MOST_FOR_NAMES;
        let left = if names_above { 8.0 } else { names };
        Self { left, right: WIDTH - remarks, names_above }
    }

    /// Height of one row.
    pub(super) fn pitch(&self) -> f64 {
        if self.names_above { ROW + 15.0 } else { ROW }
    }

    /// The remarks' title, at the right.
    pub(super) fn remarks_title(svg: &mut Svg, y: f64, title: &str) {
        svg.text("soft", (WIDTH - 4.0, y), Anchor::End, title);
    }

    /// Name and remark of the row whose top is `y`; returns the top of what is drawn.
    pub(super) fn row(&self, svg: &mut Svg, y: f64, name: &str, remark: &str) -> f64 {
        let top = if self.names_above { y + 15.0 } else { y };
        if self.names_above {
            svg.text("", (self.left, y + 11.0), Anchor::Start, name);
        } else {
            svg.text("", (self.left - 8.0, y + 11.0), Anchor::End, name);
        }
        svg.text("", (self.right + 14.0, top + 11.0), Anchor::Start, remark);
        top
    }
}

/// Shares that are drawn in a row, and a remark next to them.
type Bar = (Vec<f64>, String);

fn widest<'a>(texts: impl Iterator<Item = &'a str>) -> f64 {
    texts.map(text_width).fold(0.0, f64::max)
}

/// Shades of what vCPUs do, the same in all pictures.
const HOLDING: &str = SHADES[0];
const FIRST: &str = SHADES[1];
const WAITING: &str = SHADES[2];
const WORKING: &str = SHADES[3];
const OTHER: &str = SHADES[4];

pub(super) struct Chart {
    name: &'static str,
    title: &'static str,
    caption: &'static str,
    label: &'static str,
    /// Name and shade of each part of a bar; none: a row has a dot for each vCPU.
    parts: &'static [(&'static str, &'static str)],
    remark_title: &'static str,
    bar: fn(&[&Record]) -> Option<Bar>,
}

const TIME: Chart = Chart {
    name: "time",
    title: "Where the time went",
    caption: "Where the time of the pCPUs went in the window: inside sections, waiting on a pCPU, work between sections, and \
              the rest. Time in a section does not count while its vCPU is off its pCPU. At the right: share of the \
              window in which the lock's holder was preempted.",
    label: "Where the time of the pCPUs went",
    parts: &[
        ("holding the lock", HOLDING),
        ("waiting on the pCPU", WAITING),
        ("thinking", WORKING),
        ("idle, exits, switching", OTHER),
    ],
    remark_title: "lock held by a vCPU without pCPU",
    bar: time_bar,
};

pub(super) const PREEMPTIONS: Chart = Chart {
    name: "preemptions",
    title: "What preempted vCPUs were doing",
    caption: "Activity of a vCPU at the moment its slice ended. Locks whose waiters sleep are preempted less, since fewer \
              vCPUs want a pCPU.",
    label: "What vCPUs were doing when they were taken off their pCPU",
    parts: &[
        ("holding the lock", HOLDING),
        ("first in the queue", FIRST),
        ("waiting", WAITING),
        ("neither", OTHER),
    ],
    remark_title: "preemptions per second",
    bar: preemption_bar,
};

/// Why the time cannot be divided up, if it cannot.
fn indivisible(record: &Record) -> Option<&'static str> {
    if !["critical-section", "mixed"].contains(&record.settings.text("workload").unwrap_or_default()) {
        return Some("this workload's operations are not a section and a pause of known length");
    }
    if record.settings.count("nested_one_in") > 0 {
        return Some("where sections nest, the time in a section has waits for the inner lock in it");
    }
    record.figure("preempted_holder_ns").is_none().then_some(
        "the time that holders spent off their pCPUs is unknown, and the time in sections contains it",
    )
}

pub(super) fn time(data: &Data<'_>) -> Option<Picture> {
    let records = data.runs.values().flat_map(BTreeMap::values).flatten();
    // Guests that ran at once have the id of their run in common.
    let mut runs = BTreeSet::new();
    let share_pcpus = records.clone().any(|record| !runs.insert(&record.run_id));
    let reason = records.clone().find_map(|record| indivisible(record)).or_else(|| {
        share_pcpus.then_some("several guests shared the pCPUs, and each record has the time of its own")
    });
    match reason {
        Some(reason) => Some(Picture::not_drawn(TIME.name.into(), TIME.title.into(), reason)),
        None => picture(data, &TIME),
    }
}

fn time_bar(runs: &[&Record]) -> Option<Bar> {
    let sum = |of: fn(&Record) -> f64| runs.iter().map(|run| of(run)).sum::<f64>();
    let offered = sum(|run| run.amount(WINDOW) * run.settings.pcpus() as f64);
    // Measured time in sections, less the time for which their vCPUs were off their pCPUs meanwhile.
    let hold = sum(|run| {
        let held = run.amount("hold_mean_ns") * run.amount("hold_count");
        (held - run.amount("preempted_holder_ns")).max(0.0)
    }) / offered;
    let think = sum(|run| run.amount(ACQUISITIONS) * run.settings.count("think_ns") as f64) / offered;
    let wait = (sum(on_cpu_ns) / offered - hold - think).max(0.0);
    let rest = (1.0 - hold - think - wait).max(0.0);
    let window = sum(|run| run.amount(WINDOW) * run.settings.count("locks") as f64);
    let held_off: Option<f64> = runs.iter().map(|run| run.figure("preempted_holder_ns")).sum();
    let remark = held_off.map_or("not known".into(), |ns| percent(ns / window));
    (offered > 0.0).then(|| (vec![hold, wait, think, rest], remark))
}

/// Time of all vCPUs on a pCPU, or the process's CPU time where that is not measured.
fn on_cpu_ns(run: &Record) -> f64 {
    let vcpus: Option<f64> = run.per_vcpu.iter().map(|vcpu| vcpu.run_ns.map(|ns| ns as f64)).sum();
    vcpus.unwrap_or_else(|| run.amount(CPU))
}

fn preemption_bar(runs: &[&Record]) -> Option<Bar> {
    let sum =
        |doing: &str| runs.iter().map(|run| run.figure(&format!("preemptions_{doing}"))).sum::<Option<f64>>();
    let sums: Vec<f64> = ["holder", "head", "waiter", "other"].into_iter().map(sum).collect::<Option<_>>()?;
    let window_ns: f64 = runs.iter().map(|run| run.amount(WINDOW)).sum();
    let total: f64 = sums.iter().sum();
    let shares = sums.iter().map(|sum| if total > 0.0 { sum / total } else { 0.0 }).collect();
    (!runs.is_empty()).then(|| (shares, count((total / (window_ns / 1e9)) as u64)))
}

/// Left edge of the dots.
const DOTS: f64 = 44.0;
/// Dots per row: more would overlap anyway.
const MOST_DOTS: usize = 128;
/// Dots beyond this multiple of the fair share are drawn there.
const FARTHEST: f64 = 4.0;

pub(super) const FAIRNESS: Chart = Chart {
    name: "fairness",
    title: "Fairness",
    caption: "Each dot is a vCPU: its acquisitions divided by the mean of all vCPUs, all blocks together. Dots of fair locks \
              gather at 1x. An unfair lock may be fast because it starves some vCPUs. Dots at the right end lie there or \
              beyond.",
    label: "Acquisitions of each vCPU over its fair share",
    parts: &[],
    remark_title: "Jain, least and most busy vCPU",
    bar: |runs| {
        let shares = shares(runs);
        let remark = remark(&shares);
        (!runs.is_empty()).then_some((shares, remark))
    },
};

/// One row per setting and arm; none if no arm has one.
pub(super) fn picture(data: &Data<'_>, chart: &Chart) -> Option<Picture> {
    let at = |setting: &Setting| {
        let arms = data.arms().iter().enumerate();
        let rows = arms.filter_map(|(arm, name)| Some((arm, name, (chart.bar)(data.runs(setting, name))?)));
        rows.collect::<Vec<_>>()
    };
    let settings: Vec<_> = data.settings().into_iter().map(|setting| (setting, at(setting))).collect();
    let all = || settings.iter().flat_map(|(_, rows)| rows);
    let count = all().count();
    if count == 0 {
        return None;
    }
    let names = data.arms().iter().map(String::as_str);
    let rows = Rows::new(names, all().map(|(.., (_, remark))| remark.as_str()));
    let key = Key::new(chart.parts.iter().map(|(part, _)| *part));
    let are_dots = chart.parts.is_empty();
    let (title, top) = if are_dots { (12.0, DOTS) } else { (key.height() + 18.0, key.height() + 22.0) };
    let height = top + settings.len() as f64 * HEADING + count as f64 * rows.pitch() + 10.0;
    let mut svg = Svg::new(height, chart.label);
    key.draw(&mut svg, 2.0, |svg, part, at| of_shade(svg, chart.parts[part].1, at));
    Rows::remarks_title(&mut svg, title, chart.remark_title);
    let x = Scale::linear((0.0, FARTHEST), (rows.left, rows.right));
    for tick in x.ticks(5).into_iter().filter(|_| are_dots) {
        svg.line("grid", (x.at(tick), DOTS - 8.0), (x.at(tick), height - 8.0), "");
        svg.text("soft", (x.at(tick), DOTS - 14.0), Anchor::Middle, &format!("{tick}x"));
    }
    let mut y = top;
    for (setting, of_setting) in &settings {
        svg.text("title", (8.0, y + 16.0), Anchor::Start, &data.name(setting));
        y += HEADING;
        for (arm, name, (content, remark)) in of_setting {
            let at = rows.row(&mut svg, y, name, remark);
            bar(&mut svg, &rows, (name, content, chart.parts), at);
            for share in thinned(content).into_iter().filter(|_| are_dots) {
                svg.dot((x.at(share), at + 7.0), &colour(series(*arm)));
            }
            y += rows.pitch();
        }
    }
    let Chart { name, title, caption, .. } = chart;
    Some(Picture { name: (*name).into(), title: (*title).into(), caption: (*caption).into(), svg: Some(svg) })
}

/// The shares of these parts, side by side.
fn bar(svg: &mut Svg, rows: &Rows, (arm, shares, parts): (&str, &[f64], &[(&str, &str)]), y: f64) {
    const HEIGHT: f64 = 13.0;
    let mut x = rows.left;
    for (share, (part, shade)) in shares.iter().zip(parts) {
        let width = (share * (rows.right - rows.left)).min(rows.right - x).max(0.0);
        if width > 0.05 {
            svg.rectangle((x, y + 1.0), width, HEIGHT, shade, &format!("{arm}: {part} {}", percent(*share)));
        }
        x += width;
    }
}

/// Acquisitions of each vCPU over the mean, all runs together; empty if there were none.
fn shares(runs: &[&Record]) -> Vec<f64> {
    let vcpus = runs.iter().map(|run| run.per_vcpu.len()).min().unwrap_or(0);
    let acquired = |vcpu: usize| {
        runs.iter().map(|run| run.per_vcpu[vcpu].acquisitions.unwrap_or_default() as f64).sum::<f64>()
    };
    let sums: Vec<f64> = (0..vcpus).map(acquired).collect();
    let mean = sums.iter().sum::<f64>() / vcpus as f64;
    if mean > 0.0 { sums.iter().map(|sum| sum / mean).collect() } else { vec![] }
}

/// At most [`MOST_DOTS`] of the values, evenly spaced in their order, both ends among them.
fn thinned(shares: &[f64]) -> Vec<f64> {
    let sorted = sorted(shares.iter().copied());
    if sorted.len() <= MOST_DOTS {
        return sorted;
    }
    (0..MOST_DOTS).map(|i| sorted[i * (sorted.len() - 1) / (MOST_DOTS - 1)]).collect()
}

fn remark(shares: &[f64]) -> String {
    let (Some(least), Some(most)) =
        (shares.iter().copied().reduce(f64::min), shares.iter().copied().reduce(f64::max))
    else {
        return "no acquisitions".into();
    };
    let jain = shares.len() as f64 / shares.iter().map(|share| share * share).sum::<f64>();
    format!("{}, {}x to {}x", significant(jain), significant(least), significant(most))
}
