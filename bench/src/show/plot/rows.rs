//! Pictures with a row per setting and arm: names at the left, remarks at the right, and what is drawn between them. Use of the pCPUs'
//! time, the activities that preemptions hit, and how the acquisitions fell on the vCPUs. Where nothing varies but the arms, estimates with
//! their intervals.

use std::collections::{BTreeMap, BTreeSet};

use super::chart::{Axes, Curve, Key, YAxis, of_shade};
use super::{Data, Picture, Setting, series};
use crate::analysis::statistics::{Estimate, sorted};
use crate::record::Record;
use crate::record::figures::{ACQUISITIONS, CPU, WINDOW};
use crate::show::svg::{Anchor, SHADES, Scale, Svg, WIDTH, colour, text_width};
use crate::text::quantity::{count, percent, significant};

const ROW: f64 = 17.0;
const HEADING: f64 = 24.0;
/// Names that would take more of the picture than this stand above their rows.
const MOST_FOR_NAMES: f64 = 0.3;

struct Rows {
    /// Ends of what is drawn.
    left: f64,
    right: f64,
    names_above: bool,
}

impl Rows {
    fn new<'a, 'b>(names: impl Iterator<Item = &'a str>, remarks: impl Iterator<Item = &'b str>) -> Self {
        let names = widest(names) + 16.0;
        let remarks = widest(remarks) + 18.0;
        let names_above = names > WIDTH * MOST_FOR_NAMES;
        let left = if names_above { 8.0 } else { names };
        Self { left, right: WIDTH - remarks, names_above }
    }

    /// Height of one row.
    fn pitch(&self) -> f64 {
        if self.names_above { ROW + 15.0 } else { ROW }
    }

    /// The remarks' title, at the right.
    fn remarks_title(svg: &mut Svg, y: f64, title: &str) {
        svg.text("soft", (WIDTH - 4.0, y), Anchor::End, title);
    }

    /// A setting's name; returns the top of its first row.
    fn heading(&self, svg: &mut Svg, y: f64, name: &str) -> f64 {
        svg.text("title", (8.0, y + 16.0), Anchor::Start, name);
        y + HEADING
    }

    /// Name and remark of the row whose top is `y`; returns the top of what is drawn.
    fn row(&self, svg: &mut Svg, y: f64, name: &str, remark: &str) -> f64 {
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

/// A picture with a row for each setting and arm of whose runs `of` makes something, with a remark at the right; none without any. `above`
/// draws what stands above the rows, of which the first begins at `top`, and is given the height of all.
fn picture(
    data: &Data<'_>,
    (top, label): (f64, &str),
    of: impl Fn(&[&Record]) -> Option<Bar>,
    above: impl FnOnce(&mut Svg, &Rows, f64),
    draw: impl Fn(&mut Svg, &Rows, (usize, &str, &[f64]), f64),
) -> Option<Svg> {
    let at = |setting: &Setting| {
        let arms = data.arms().iter().enumerate();
        let rows = arms.filter_map(|(arm, name)| Some((arm, name, of(data.runs(setting, name))?)));
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
    let height = top + settings.len() as f64 * HEADING + count as f64 * rows.pitch() + 10.0;
    let mut svg = Svg::new(height, label);
    above(&mut svg, &rows, height);
    let mut y = top;
    for (setting, of_setting) in &settings {
        y = rows.heading(&mut svg, y, &data.name(setting));
        for (arm, name, (content, remark)) in of_setting {
            let at = rows.row(&mut svg, y, name, remark);
            draw(&mut svg, &rows, (*arm, name.as_str(), content.as_slice()), at);
            y += rows.pitch();
        }
    }
    Some(svg)
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
    /// Name and shade of each part.
    parts: [(&'static str, &'static str); 4],
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
    parts: [
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
    parts: [
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
        None => stacked(data, &TIME),
    }
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
    let remark = held_off.map_or("not known".into(), |ns| percent(ns / window));
    (offered > 0.0).then(|| (vec![hold, wait, think, rest], remark))
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
    let sum =
        |doing: &str| runs.iter().map(|run| run.figure(&format!("preemptions_{doing}"))).sum::<Option<f64>>();
    let sums: Vec<f64> = ["holder", "head", "waiter", "other"].into_iter().map(sum).collect::<Option<_>>()?;
    let window_ns: f64 = runs.iter().map(|run| run.amount(WINDOW)).sum();
    let total: f64 = sums.iter().sum();
    let shares = sums.iter().map(|sum| if total > 0.0 { sum / total } else { 0.0 }).collect();
    (!runs.is_empty()).then(|| (shares, count((total / (window_ns / 1e9)) as u64)))
}

/// One bar per setting and arm; none if no arm has one.
pub(super) fn stacked(data: &Data<'_>, chart: &Chart) -> Option<Picture> {
    let key = Key::new(chart.parts.iter().map(|(part, _)| *part));
    let top = key.height() + 22.0;
    let above = |svg: &mut Svg, _: &Rows, _: f64| {
        key.draw(svg, 2.0, |svg, part, at| of_shade(svg, chart.parts[part].1, at));
        Rows::remarks_title(svg, top - 4.0, chart.remark_title);
    };
    let draw = |svg: &mut Svg, rows: &Rows, (_, arm, shares): (usize, &str, &[f64]), y: f64| {
        const HEIGHT: f64 = 13.0;
        let mut x = rows.left;
        for (share, (part, shade)) in shares.iter().zip(chart.parts) {
            let part_width = (share * (rows.right - rows.left)).min(rows.right - x).max(0.0);
            let tip = format!("{arm}: {part} {}", percent(*share));
            if part_width > 0.05 {
                svg.rectangle((x, y + 1.0), part_width, HEIGHT, shade, &tip);
            }
            x += part_width;
        }
    };
    let svg = Some(picture(data, (top, chart.label), chart.bar, above, draw)?);
    let Chart { name, title, caption, .. } = chart;
    Some(Picture { name: (*name).into(), title: (*title).into(), caption: (*caption).into(), svg })
}

const STRIPS: f64 = 44.0;
/// Dots per strip: more would overlap anyway.
const MOST_DOTS: usize = 128;
/// Dots beyond this multiple of the fair share are drawn there.
const FARTHEST: f64 = 4.0;

/// How the acquisitions fell on the vCPUs: one dot per vCPU, one strip per setting and arm.
pub(super) fn strips(data: &Data<'_>) -> Option<Picture> {
    let of = |runs: &[&Record]| {
        let shares = shares(runs);
        let remark = remark(&shares);
        (!runs.is_empty()).then_some((shares, remark))
    };
    let scale = |rows: &Rows| Scale::linear((0.0, FARTHEST), (rows.left, rows.right));
    let above = |svg: &mut Svg, rows: &Rows, height: f64| {
        let x = scale(rows);
        for tick in x.ticks(5) {
            svg.line("grid", (x.at(tick), STRIPS - 8.0), (x.at(tick), height - 8.0), "");
            svg.text("soft", (x.at(tick), STRIPS - 14.0), Anchor::Middle, &format!("{tick}x"));
        }
        Rows::remarks_title(svg, 12.0, "Jain, least and most busy vCPU");
    };
    let dots = |svg: &mut Svg, rows: &Rows, (arm, _, shares): (usize, &str, &[f64]), top: f64| {
        for share in thinned(shares) {
            svg.dot((scale(rows).at(share), top + 7.0), &colour(series(arm)));
        }
    };
    let svg = picture(data, (STRIPS, "Acquisitions of each vCPU over its fair share"), of, above, dots)?;
    Some(Picture {
        name: "fairness".into(),
        title: "Fairness".into(),
        caption: "Each dot is a vCPU: its acquisitions divided by the mean of all vCPUs, all blocks together. Dots of fair locks \
                  gather at 1x. An unfair lock may be fast because it starves some vCPUs. Dots at the right end lie there or \
                  beyond."
            .into(),
        svg: Some(svg),
    })
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

const TOP: f64 = 30.0;
/// Between the ends of the scale and the first and last marker's middle.
const MARGIN: f64 = 12.0;
/// Least distance between two ticks.
const TICK: f64 = 110.0;

/// A row for each curve, also for those that have no point.
pub(super) fn draw(axes: &Axes<'_>, curves: &[Curve], ends: (f64, f64)) -> Svg {
    let estimate = |curve: &Curve| curve.points.first().cloned().flatten();
    let told = |it: Estimate| it.told(axes.kind.show, axes.kind.show);
    let remarks: Vec<String> =
        curves.iter().map(|curve| estimate(curve).map_or("no estimate".into(), told)).collect();
    let names = curves.iter().map(|curve| curve.name.as_str());
    let rows = Rows::new(names, remarks.iter().map(String::as_str));
    let height = TOP + curves.len() as f64 * rows.pitch() + 10.0;
    let mut svg = Svg::new(height, axes.kind.y_title);
    let x = axes.kind.y.scale(ends, (rows.left + MARGIN, rows.right - MARGIN));
    for tick in x.ticks(((rows.right - rows.left) / TICK) as usize) {
        let is_one = matches!(axes.kind.y, YAxis::Ratio) && (tick - 1.0).abs() < 1e-9;
        let class = if is_one { "axis" } else { "grid" };
        svg.line(class, (x.at(tick), TOP - 6.0), (x.at(tick), height - 8.0), "");
        svg.text("soft", (x.at(tick), TOP - 12.0), Anchor::Middle, &(axes.kind.tick)(tick));
    }
    Rows::remarks_title(&mut svg, TOP - 12.0, "with 95 % interval");
    let mut y = TOP;
    for (curve, remark) in curves.iter().zip(&remarks) {
        let middle = rows.row(&mut svg, y, &curve.name, remark) + 7.0;
        let estimate = estimate(curve);
        if let Some(interval) = estimate.as_ref().and_then(|it| it.interval) {
            let style = format!("stroke:{}", colour(curve.series));
            svg.line("bar", (x.at(interval.low), middle), (x.at(interval.high), middle), &style);
        }
        if let Some(estimate) = &estimate {
            let tip = format!("{}: {remark}", curve.name);
            svg.marker((x.at(estimate.hodges_lehmann), middle), curve.series, &tip);
        }
        y += rows.pitch();
    }
    svg
}
