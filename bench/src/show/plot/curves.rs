//! Curves over one axis of the experiment, a picture for each value of the others: throughput, efficiency, ratios; and
//! the calibration over time.

use super::{Data, Picture, Setting, WIDTH, series};
use crate::analysis::statistics::Estimate;
use crate::experiment::names::slug;
use crate::experiment::outline::{OutlineAxis, OutlineComparison};
use crate::show::svg::{Anchor, Scale, Svg, colour};
use crate::text::quantity::{short, si, significant};

const HEIGHT: f64 = 380.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 46.0;
/// Least distance between two labels at the right end.
const LABEL_GAP: f64 = 15.0;

/// One curve: a point per value of the axis, where there is one.
struct Curve {
    name: String,
    series: usize,
    points: Vec<Option<Estimate>>,
}

struct Axes<'a> {
    /// Values of the axis.
    values: &'a [String],
    x_title: String,
    y_title: &'static str,
    logarithmic: bool,
    show: fn(f64) -> String,
    tick: fn(f64) -> String,
}

/// What the curves of one picture have in common.
pub(super) struct Panel<'a> {
    axis: &'a OutlineAxis,
    /// Values of the other axes.
    fixed: Setting,
}

/// All panels: over the ratio if that varies, else over the axis that varies fastest.
pub(super) fn panels<'a>(data: &Data<'a>) -> Vec<Panel<'a>> {
    let axes = &data.summary.outline.axes;
    let varies = |axis: &&OutlineAxis| axis.values.len() > 1;
    let ratio = axes.iter().find(|axis| axis.key == "ratio" && varies(axis));
    let Some(axis) = ratio.or(axes.iter().rev().find(varies)).or(axes.last()) else { return vec![] };
    let mut panels: Vec<Panel<'a>> = vec![];
    for setting in data.settings() {
        let mut fixed = setting.clone();
        fixed.remove(&axis.key);
        if panels.iter().all(|panel| panel.fixed != fixed) {
            panels.push(Panel { axis, fixed });
        }
    }
    panels
}

impl Panel<'_> {
    fn settings(&self) -> impl Iterator<Item = Setting> {
        self.axis.values.iter().map(|value| {
            let mut setting = self.fixed.clone();
            setting.insert(self.axis.key.clone(), value.clone());
            setting
        })
    }

    fn picture(&self, data: &Data<'_>, name: &str, title: &str, caption: &str, svg: Svg) -> Picture {
        let (caption, svg) = (caption.to_owned(), Some(svg));
        if self.fixed.is_empty() {
            return Picture { name: name.into(), title: title.into(), caption, svg };
        }
        let of = data.name(&self.fixed);
        Picture { name: format!("{name}-{}", slug(&of)), title: format!("{title}: {of}"), caption, svg }
    }
}

pub(super) fn throughput(data: &Data<'_>, panel: &Panel<'_>) -> Option<Picture> {
    let svg = over_axis(data, panel, "acquisitions per second", true, si, |data, setting| {
        let row = |arm: &str| data.summary.row(setting, arm)?.acquisitions_per_second.clone();
        std::iter::once(row("lock-free")).chain(data.arms().iter().map(|arm| row(arm))).collect()
    })?;
    let caption = "Acquisitions per second of all vCPUs together: Hodges-Lehmann estimates over blocks with their 95 % intervals. \
                   Grey: the same work without any lock.";
    Some(panel.picture(data, "throughput", "Throughput", caption, svg))
}

pub(super) fn efficiency(data: &Data<'_>, panel: &Panel<'_>) -> Option<Picture> {
    let svg = over_axis(data, panel, "efficiency", false, significant, |data, setting| {
        let of = |arm: &String| data.summary.row(setting, arm)?.efficiency.clone();
        std::iter::once(None).chain(data.arms().iter().map(of)).collect()
    })?;
    let caption = "Measured throughput over the ideal of the same block, Hodges-Lehmann estimates with their 95 % intervals: 1 \
                   means that the lock costs nothing and that nobody is ever preempted while others wait.";
    Some(panel.picture(data, "efficiency", "Efficiency", caption, svg))
}

pub(super) fn comparison(data: &Data<'_>, panel: &Panel<'_>) -> Option<Picture> {
    let outline = &data.summary.outline;
    let names: Vec<String> = outline.comparisons.iter().map(|it| it.name.clone()).collect();
    let axis = Some(panel.axis).filter(|_| !names.is_empty())?;
    let curves = names.iter().enumerate().map(|(i, name)| {
        let find = |setting: Setting| {
            let of_setting =
                |it: &&crate::analysis::summary::Comparison| it.name == *name && it.setting == setting;
            data.summary.comparisons.iter().find(of_setting)?.ratio.clone()
        };
        let arm = outline.arms.iter().position(|arm| *arm == outline.comparisons[i].arm).unwrap_or(i);
        Curve { name: name.clone(), series: series(arm), points: panel.settings().map(find).collect() }
    });
    let axes = Axes {
        values: &axis.values,
        x_title: axis_title(&axis.key),
        y_title: ratio_title(&outline.comparisons),
        logarithmic: true,
        show: |value| format!("{}x", si(value)),
        tick: |value| format!("{}x", short(&si(value)).replace(' ', "")),
    };
    let svg = draw(&axes, &curves.collect::<Vec<_>>(), true)?;
    let caption = "One arm over another within blocks: Hodges-Lehmann estimates with their 95 % intervals. Above 1 the arm \
                   does better than its baseline; an interval that contains 1 shows no difference.";
    Some(panel.picture(data, "comparison", "Ratios within blocks", caption, svg))
}

/// What the ratios are ratios of, if that is one thing.
fn ratio_title(comparisons: &[OutlineComparison]) -> &'static str {
    match comparisons {
        [first, rest @ ..] if rest.iter().all(|it| it.of == first.of) => first.of.ratio_of(),
        _ => "ratio, above 1 is better",
    }
}

/// Lock-free speed over the experiment.
pub(super) fn calibration(data: &Data<'_>) -> Option<Picture> {
    const FEWEST: usize = 3;
    let speeds = &data.summary.calibration;
    if speeds.len() < FEWEST {
        return None;
    }
    let mut svg = Svg::new(WIDTH, 170.0, "Lock-free speed in the order of the runs");
    let highest = speeds.iter().copied().fold(1.1, f64::max);
    let y = Scale::linear((0.0, highest), (130.0, 20.0));
    let x = Scale::linear((0.0, (speeds.len() - 1) as f64), (LEFT, WIDTH - 20.0));
    for tick in y.ticks() {
        grid_line(&mut svg, y.at(tick), WIDTH - 20.0, &short(&significant(tick)));
    }
    let points: Vec<(f64, f64)> =
        speeds.iter().enumerate().map(|(i, speed)| (x.at(i as f64), y.at(*speed))).collect();
    svg.path(&points, &colour(0));
    for (point, speed) in points.iter().zip(speeds) {
        let is_off = !(0.9..=1.1).contains(speed);
        svg.dot(*point, 2.5, &colour(usize::from(is_off)));
    }
    svg.text(
        "soft",
        (f64::midpoint(LEFT, WIDTH - 20.0), 158.0),
        Anchor::Middle,
        "lock-free cells in the order in which they ran",
    );
    Some(Picture {
        name: "calibration".into(),
        title: "Was the host quiet?".into(),
        caption: "Throughput of each lock-free run over the median of its own cell: cells of different settings differ by \
                  design, runs of one cell should not. Where it falls, something else used the pCPUs, or they changed \
                  their clock."
            .into(),
        svg: Some(svg),
    })
}

/// Curves over the panel's axis.
fn over_axis(
    data: &Data<'_>,
    panel: &Panel<'_>,
    y_title: &'static str,
    logarithmic: bool,
    show: fn(f64) -> String,
    estimates: impl Fn(&Data<'_>, &Setting) -> Vec<Option<Estimate>>,
) -> Option<Svg> {
    let axis = panel.axis;
    let mut names = vec!["no lock".to_owned()];
    names.extend(data.arms().iter().cloned());
    let mut curves: Vec<Curve> =
        names.into_iter().enumerate().map(|(series, name)| Curve { name, series, points: vec![] }).collect();
    for setting in panel.settings() {
        for (curve, estimate) in curves.iter_mut().zip(estimates(data, &setting)) {
            curve.points.push(estimate);
        }
    }
    curves.retain(|curve| curve.points.iter().any(Option::is_some));
    let tick = |value| short(&si(value));
    let axes =
        Axes { values: &axis.values, x_title: axis_title(&axis.key), y_title, logarithmic, show, tick };
    draw(&axes, &curves, false)
}

fn axis_title(key: &str) -> String {
    if key == "ratio" { "vCPUs per pCPU".into() } else { key.into() }
}

fn draw(axes: &Axes<'_>, curves: &[Curve], line_at_one: bool) -> Option<Svg> {
    let mut svg = Svg::new(WIDTH, HEIGHT, &format!("{} over {}", axes.y_title, axes.x_title));
    let y = y_scale(axes, curves, line_at_one)?;
    let right = WIDTH - RIGHT;
    let step = (right - LEFT) / axes.values.len().max(1) as f64;
    let x = |i: usize| LEFT + step * (i as f64 + 0.5);
    for tick in y.ticks() {
        grid_line(&mut svg, y.at(tick), right, &(axes.tick)(tick));
    }
    if line_at_one {
        svg.line("axis", (LEFT, y.at(1.0)), (right, y.at(1.0)), "stroke-dasharray:4 3");
    }
    for (i, value) in axes.values.iter().enumerate() {
        svg.text("", (x(i), HEIGHT - BOTTOM + 18.0), Anchor::Middle, value);
    }
    svg.text("soft", (f64::midpoint(LEFT, right), HEIGHT - 8.0), Anchor::Middle, &axes.x_title);
    svg.text("soft", (LEFT - 52.0, TOP - 16.0), Anchor::Start, axes.y_title);
    for curve in curves {
        draw_curve(&mut svg, curve, axes, &y, x);
    }
    label_ends(&mut svg, curves, &y, right);
    Some(svg)
}

fn y_scale(axes: &Axes<'_>, curves: &[Curve], include_one: bool) -> Option<Scale> {
    let values = curves.iter().flat_map(|curve| curve.points.iter().flatten());
    let ends = values.flat_map(|it| {
        let (low, high) = it
            .interval
            .map_or((it.hodges_lehmann, it.hodges_lehmann), |interval| (interval.low, interval.high));
        // An interval that spans decades says "unknown"; it need not squash the picture.
        [low.max(it.hodges_lehmann / 30.0), high.min(it.hodges_lehmann * 30.0)]
    });
    let ends: Vec<f64> = ends.chain(include_one.then_some(1.0)).collect();
    let low = ends.iter().copied().reduce(f64::min)?;
    let high = ends.iter().copied().reduce(f64::max)?;
    let pixels = (HEIGHT - BOTTOM, TOP);
    Some(if axes.logarithmic {
        Scale::logarithmic((low, high), pixels)
    } else {
        Scale::linear((0.0, high.max(1.0)), pixels)
    })
}

fn draw_curve(svg: &mut Svg, curve: &Curve, axes: &Axes<'_>, y: &Scale, x: impl Fn(usize) -> f64) {
    let stroke = colour(curve.series);
    let points: Vec<(f64, f64)> = curve
        .points
        .iter()
        .enumerate()
        .filter_map(|(i, point)| Some((x(i), y.at(point.as_ref()?.hodges_lehmann))))
        .collect();
    svg.path(&points, &stroke);
    for (i, estimate) in curve.points.iter().enumerate() {
        let Some(estimate) = estimate else { continue };
        let mut tip = format!("{}, {}: {}", curve.name, axes.values[i], (axes.show)(estimate.hodges_lehmann));
        if let Some(interval) = estimate.interval {
            svg.line(
                "bar",
                (x(i), y.at(interval.low)),
                (x(i), y.at(interval.high)),
                &format!("stroke:{stroke}"),
            );
            tip += &format!(" ({} to {})", (axes.show)(interval.low), (axes.show)(interval.high));
        }
        svg.marker((x(i), y.at(estimate.hodges_lehmann)), curve.series, &tip);
    }
}

fn grid_line(svg: &mut Svg, y: f64, right: f64, label: &str) {
    svg.line("grid", (LEFT, y), (right, y), "");
    svg.text("soft", (LEFT - 8.0, y + 4.0), Anchor::End, label);
}

/// Names at the right end of the curves, pushed apart where they would overlap.
fn label_ends(svg: &mut Svg, curves: &[Curve], y: &Scale, right: f64) {
    let mut labels: Vec<(f64, &Curve)> = curves
        .iter()
        .filter_map(|curve| {
            let last = curve.points.iter().flatten().last()?;
            Some((y.at(last.hodges_lehmann), curve))
        })
        .collect();
    labels.sort_by(|a, b| a.0.total_cmp(&b.0));
    let positions = spread(&labels.iter().map(|label| label.0).collect::<Vec<_>>());
    for ((end, curve), position) in labels.iter().zip(positions) {
        svg.line(
            "bar",
            (right - 8.0, *end),
            (right + 8.0, position),
            &format!("stroke:{};stroke-opacity:.5", colour(curve.series)),
        );
        svg.marker((right + 14.0, position), curve.series, &curve.name);
        svg.text("", (right + 23.0, position + 4.0), Anchor::Start, &curve.name);
    }
}

/// Ascending positions, at least [`LABEL_GAP`] apart, not beyond the bottom of the picture.
fn spread(wanted: &[f64]) -> Vec<f64> {
    let mut positions = wanted.to_vec();
    for i in 1..positions.len() {
        positions[i] = positions[i].max(positions[i - 1] + LABEL_GAP);
    }
    let mut limit = HEIGHT - BOTTOM;
    for position in positions.iter_mut().rev() {
        *position = position.min(limit);
        limit = *position - LABEL_GAP;
    }
    positions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_never_overlap_and_stay_inside() {
        for wanted in [vec![100.0, 101.0, 102.0], vec![330.0, 331.0, 332.0, 333.0], vec![10.0, 200.0]] {
            let positions = spread(&wanted);
            assert!(positions.windows(2).all(|pair| pair[1] - pair[0] >= LABEL_GAP - 1e-9), "{positions:?}");
            assert!(positions.iter().all(|position| *position <= HEIGHT - BOTTOM), "{positions:?}");
        }
        assert_eq!(spread(&[10.0, 200.0]), [10.0, 200.0]);
    }
}
