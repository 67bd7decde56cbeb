//! Curves over one axis of the experiment, a picture for each value of the others: throughput or completion, efficiency,
//! ratios. Pictures of the same thing have the same y axis, so that they can be compared. Where nothing varies but the arms, rows of
//! estimates with their intervals.

use super::rows::Rows;
use super::{Data, Key, Picture, Setting, series, title_of};
use crate::analysis::statistics::Estimate;
use crate::experiment::outline::{OutlineAxis, OutlineComparison};
use crate::record::figures::{COMPLETION, EFFICIENCY, THROUGHPUT};
use crate::record::place::LOCK_FREE;
use crate::show::svg::{Anchor, Scale, Svg, WIDTH, colour, text_width};
use crate::text::quantity::{factor, short, si, significant, time_ns};

/// One curve: a point per value of the axis, where there is one.
struct Curve {
    name: String,
    series: usize,
    points: Vec<Option<Estimate>>,
}

struct Kind<'a> {
    name: &'a str,
    title: &'a str,
    caption: &'a str,
    y_title: &'a str,
    /// Values that the axis has in any case. An axis with a 0 is linear, and others are logarithmic.
    always: &'a [f64],
    show: fn(f64) -> String,
}

impl Kind<'_> {
    /// Ends of an axis on which all curves can be drawn, if there are any.
    fn ends<'a>(&self, curves: impl Iterator<Item = &'a Curve>) -> Option<(f64, f64)> {
        let ends = curves.flat_map(|curve| &curve.points).flatten().flat_map(|it| {
            let (low, high) =
                it.interval.map_or((it.hodges_lehmann, it.hodges_lehmann), |it| (it.low, it.high));
            // A wide interval of a noisy estimate must not squash the rest of the picture.
            [low.max(it.hodges_lehmann / 30.0), high.min(it.hodges_lehmann * 30.0)]
        });
        let mut ends: Vec<f64> = ends.collect();
        if ends.is_empty() {
            return None;
        }
        ends.extend(self.always);
        Some((ends.iter().copied().reduce(f64::min)?, ends.into_iter().reduce(f64::max)?))
    }

    fn scale(&self, ends: (f64, f64), pixels: (f64, f64)) -> Scale {
        if self.always.contains(&0.0) { Scale::linear(ends, pixels) } else { Scale::fitted(ends, pixels) }
    }

    /// The value with a line of its own: the one that an axis of ratios has in any case.
    fn line(&self) -> Option<f64> {
        if let [at] = self.always { Some(*at) } else { None }
    }
}

const OF_THROUGHPUT: Kind<'_> = Kind {
    name: "throughput",
    title: "Throughput",
    caption: "Acquisitions per second of all vCPUs together. Estimates over blocks (Hodges-Lehmann) with their 95 % intervals. \
              Grey: the same work without any lock.",
    y_title: "acquisitions per second",
    always: &[],
    show: si,
};

const OF_COMPLETION: Kind<'_> = Kind {
    name: "completion",
    title: "Completion",
    caption: "Time until the fixed amount of work is done; less is better. Estimates over blocks (Hodges-Lehmann) with their \
              95 % intervals. Grey: the same work without any lock. A point is missing if at least half of the runs did \
              not finish the work.",
    y_title: "time to completion",
    always: &[],
    show: time_ns,
};

const OF_EFFICIENCY: Kind<'_> = Kind {
    name: "efficiency",
    title: "Efficiency",
    caption: "Throughput divided by the ideal of the same block, with 95 % intervals. At 1 the lock costs nothing, and no vCPU \
              is ever preempted while others wait.",
    y_title: "efficiency",
    always: &[0.0, 1.0],
    show: significant,
};

const OF_RATIOS: Kind<'_> = Kind {
    name: "comparison",
    title: "Ratios within blocks",
    caption: "Figure of one arm divided by that of its baseline in the same block, with 95 % intervals. Above 1 the arm does \
              better. An interval that contains 1 shows no difference. Colours are those of the arms.",
    y_title: "ratio, above 1 is better",
    always: &[1.0],
    show: |value| format!("{}x", factor(value)),
};

pub(super) fn pictures(data: &Data<'_>) -> Vec<Picture> {
    let has_fixed_work = data.summary.rows.iter().any(|row| row.figure(COMPLETION).is_some());
    let (speed, figure) =
        if has_fixed_work { (OF_COMPLETION, COMPLETION) } else { (OF_THROUGHPUT, THROUGHPUT) };
    let mut pictures = panels(data, &speed, |at| of_arms(data, at, true, figure));
    pictures.extend(panels(data, &OF_EFFICIENCY, |at| of_arms(data, at, false, EFFICIENCY)));
    let asked = &data.summary.outline.comparisons;
    // The title says the measure, if all ratios are of one.
    let measure = asked.first().filter(|first| asked.iter().all(|it| it.of == first.of));
    let y_title = measure.map_or(OF_RATIOS.y_title.into(), |it| it.of.ratio_of());
    let of_ratios = Kind { y_title: &y_title, ..OF_RATIOS };
    pictures.extend(panels(data, &of_ratios, |at| {
        asked.iter().enumerate().map(|(i, asked)| compared(data, at, (i, asked))).collect()
    }));
    pictures
}

/// Draws the same curves in all pictures, one for each value of the other axes, on one scale.
fn panels(data: &Data<'_>, kind: &Kind<'_>, curves: impl Fn(&[Setting]) -> Vec<Curve>) -> Vec<Picture> {
    // Over the ratio if that varies, else over the axis that varies fastest. Rows, where there is nothing to draw a curve over.
    let axes = &data.summary.outline.axes;
    let varies = |axis: &&OutlineAxis| axis.values.len() > 1;
    let ratio = axes.iter().find(|axis| axis.key == "ratio" && varies(axis));
    let over = ratio.or(axes.iter().rev().find(varies));
    let axis = over.or(axes.last());
    let along = |fixed: &Setting| -> Vec<Setting> {
        let Some(axis) = axis else { return vec![fixed.clone()] };
        let mut setting = fixed.clone();
        let at = |value: &String| {
            setting.insert(axis.key.clone(), value.clone());
            setting.clone()
        };
        axis.values.iter().map(at).collect()
    };
    let of_picture = |fixed: &Setting| {
        let mut curves = curves(&along(fixed));
        // A row without a point says so; a curve without one cannot, and what is no arm need not.
        let stays = |curve: &Curve| over.is_none() && curve.series > 0;
        curves.retain(|curve| stays(curve) || curve.points.iter().any(Option::is_some));
        curves
    };
    let fixed = data.without(axis.map(|axis| &axis.key).as_slice());
    let curves: Vec<Vec<Curve>> = fixed.iter().map(of_picture).collect();
    let Some(ends) = kind.ends(curves.iter().flatten()) else { return vec![] };
    let picture = |(fixed, curves): (&Setting, &Vec<Curve>)| {
        let (name, title) = data.named(kind.name, kind.title, fixed);
        let svg = match over {
            Some(axis) => draw(kind, axis, curves, ends),
            None => draw_rows(kind, curves, ends),
        };
        Picture { name, title, caption: kind.caption.into(), svg: Some(svg) }
    };
    fixed.iter().zip(&curves).filter(|(_, curves)| !curves.is_empty()).map(picture).collect()
}

/// A curve for each arm, and one without any lock.
fn of_arms(data: &Data<'_>, at: &[Setting], with_lock_free: bool, name: &str) -> Vec<Curve> {
    let point = |setting: &Setting, arm: &str| data.summary.row(setting, arm)?.estimate(name).cloned();
    let points = |arm: &str| at.iter().map(|setting| point(setting, arm)).collect::<Vec<_>>();
    let lock_free =
        with_lock_free.then(|| Curve { name: "no lock".into(), series: 0, points: points(LOCK_FREE) });
    let arms = data.arms().iter().enumerate();
    let arms = arms.map(|(i, arm)| Curve { name: arm.clone(), series: series(i), points: points(arm) });
    lock_free.into_iter().chain(arms).collect()
}

/// The ratios of one comparison, in the colour of its arm; a second one of the same arm is dashed otherwise.
fn compared(data: &Data<'_>, at: &[Setting], (i, asked): (usize, &OutlineComparison)) -> Curve {
    const COLOURS: usize = 7;
    let outline = &data.summary.outline;
    let arm = outline.arms.iter().position(|arm| *arm == asked.arm).unwrap_or(i);
    let earlier = outline.comparisons[..i].iter().filter(|other| other.arm == asked.arm).count();
    let ratio = |setting: &Setting| data.summary.comparison(&asked.name, setting)?.ratio.clone();
    let points = at.iter().map(ratio).collect();
    Curve { name: asked.name.clone(), series: series(arm + earlier * COLOURS), points }
}

const LEFT: f64 = 64.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 46.0;
/// Height of what is drawn between the axes.
const PLOT: f64 = 300.0;

/// Draws the curves between these ends of the y axis.
fn draw(kind: &Kind<'_>, axis: &OutlineAxis, curves: &[Curve], ends: (f64, f64)) -> Svg {
    let key = Key::new(curves.iter().map(|curve| curve.name.as_str()));
    let (right, bottom) = (WIDTH - 14.0, TOP + PLOT);
    let label = format!("{} over {}", kind.y_title, title_of(axis));
    let mut svg = Svg::new(bottom + BOTTOM + key.height(), &label);
    let y = kind.scale(ends, (bottom, TOP));
    let step = (right - LEFT) / axis.values.len().max(1) as f64;
    let x = |i: usize| LEFT + step * (i as f64 + 0.5);
    for tick in y.ticks(7) {
        svg.line("grid", (LEFT, y.at(tick)), (right, y.at(tick)), "");
        svg.text("soft", (LEFT - 8.0, y.at(tick) + 4.0), Anchor::End, &short(&(kind.show)(tick)));
    }
    if let Some(at) = kind.line() {
        svg.line("axis", (LEFT, y.at(at)), (right, y.at(at)), "stroke-dasharray:4 3");
    }
    let widest = axis.values.iter().map(|value| text_width(value) + 6.0).fold(0.0, f64::max);
    let every = ((widest / step).ceil() as usize).max(1);
    for (i, value) in axis.values.iter().enumerate().step_by(every) {
        svg.text("", (x(i), bottom + 18.0), Anchor::Middle, value);
    }
    svg.text("soft", (f64::midpoint(LEFT, right), bottom + 38.0), Anchor::Middle, title_of(axis));
    svg.text("soft", (8.0, TOP - 16.0), Anchor::Start, kind.y_title);
    for curve in curves {
        let known = curve.points.iter().enumerate().filter_map(|(i, it)| Some((x(i), i, it.as_ref()?)));
        let known: Vec<(f64, usize, &Estimate)> = known.collect();
        let points: Vec<_> = known.iter().map(|(x, _, it)| (*x, y.at(it.hodges_lehmann))).collect();
        svg.path(&points, curve.series);
        for (x, i, estimate) in known {
            let tip = format!("{}, {}: {}", curve.name, axis.values[i], estimate.told(kind.show, kind.show));
            if let Some(interval) = estimate.interval {
                let style = format!("stroke:{}", colour(curve.series));
                svg.line("bar", (x, y.at(interval.low)), (x, y.at(interval.high)), &style);
            }
            svg.marker((x, y.at(estimate.hodges_lehmann)), curve.series, &tip);
        }
    }
    key.draw(&mut svg, bottom + BOTTOM, |svg, curve, (x, y)| {
        svg.path(&[(x, y), (x + 22.0, y)], curves[curve].series);
        svg.marker((x + 11.0, y), curves[curve].series, "");
    });
    svg
}

const ROWS: f64 = 30.0;
/// Room between the ends of the scale and the first and last marker's middle.
const MARGIN: f64 = 12.0;
/// Least distance between two ticks.
const TICK: f64 = 110.0;

/// A row for each curve, also for those that have no point.
fn draw_rows(kind: &Kind<'_>, curves: &[Curve], ends: (f64, f64)) -> Svg {
    let estimate = |curve: &Curve| curve.points.first().cloned().flatten();
    let told = |it: Estimate| it.told(kind.show, kind.show);
    let remarks: Vec<String> =
        curves.iter().map(|curve| estimate(curve).map_or("no estimate".into(), told)).collect();
    let names = curves.iter().map(|curve| curve.name.as_str());
    let rows = Rows::new(names, remarks.iter().map(String::as_str));
    let height = ROWS + curves.len() as f64 * rows.pitch() + 10.0;
    let mut svg = Svg::new(height, kind.y_title);
    let x = kind.scale(ends, (rows.left + MARGIN, rows.right - MARGIN));
    for tick in x.ticks(((rows.right - rows.left) / TICK) as usize) {
        let is_line = kind.line().is_some_and(|at| (tick - at).abs() < 1e-9);
        let class = if is_line { "axis" } else { "grid" };
        svg.line(class, (x.at(tick), ROWS - 6.0), (x.at(tick), height - 8.0), "");
        svg.text("soft", (x.at(tick), ROWS - 12.0), Anchor::Middle, &short(&(kind.show)(tick)));
    }
    Rows::remarks_title(&mut svg, ROWS - 12.0, "with 95 % interval");
    let mut y = ROWS;
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
