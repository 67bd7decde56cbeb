//! A chart of curves: axes, and points with their intervals. The key of a picture.

use crate::analysis::statistics::Estimate;
use crate::show::svg::{Anchor, Scale, Svg, WIDTH, colour, text_width};

const LEFT: f64 = 64.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 46.0;
/// Height of what is drawn between the axes.
const PLOT: f64 = 300.0;

/// One curve: a point per value of the axis, where there is one.
pub(super) struct Curve {
    pub(super) name: String,
    pub(super) series: usize,
    pub(super) points: Vec<Option<Estimate>>,
}

pub(super) struct Kind<'a> {
    pub(super) name: &'a str,
    pub(super) title: &'a str,
    pub(super) caption: &'a str,
    pub(super) y_title: &'a str,
    /// Values that the axis has in any case. An axis with a 0 is linear, and others are logarithmic.
    pub(super) always: &'a [f64],
    pub(super) show: fn(f64) -> String,
    pub(super) tick: fn(f64) -> String,
}

pub(super) struct Axes<'a> {
    /// Values of the axis.
    pub(super) values: &'a [String],
    pub(super) x_title: &'a str,
    pub(super) kind: &'a Kind<'a>,
}

impl Kind<'_> {
    /// Ends of an axis on which all curves can be drawn, if there are any.
    pub(super) fn ends<'a>(&self, curves: impl Iterator<Item = &'a Curve>) -> Option<(f64, f64)> {
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

    pub(super) fn scale(&self, ends: (f64, f64), pixels: (f64, f64)) -> Scale {
        if self.always.contains(&0.0) { Scale::linear(ends, pixels) } else { Scale::fitted(ends, pixels) }
    }

    /// The value with a line of its own: the one that an axis of ratios has in any case.
    pub(super) fn line(&self) -> Option<f64> {
        if let [at] = self.always { Some(*at) } else { None }
    }
}

/// Draws the curves between these ends of the y axis.
pub(super) fn draw(axes: &Axes<'_>, curves: &[Curve], ends: (f64, f64)) -> Svg {
    let kind = axes.kind;
    let key = Key::new(curves.iter().map(|curve| curve.name.as_str()));
    let (right, bottom) = (WIDTH - 14.0, TOP + PLOT);
    let label = format!("{} over {}", kind.y_title, axes.x_title);
    let mut svg = Svg::new(bottom + BOTTOM + key.height(), &label);
    let y = kind.scale(ends, (bottom, TOP));
    let step = (right - LEFT) / axes.values.len().max(1) as f64;
    let x = |i: usize| LEFT + step * (i as f64 + 0.5);
    for tick in y.ticks(7) {
        svg.line("grid", (LEFT, y.at(tick)), (right, y.at(tick)), "");
        svg.text("soft", (LEFT - 8.0, y.at(tick) + 4.0), Anchor::End, &(kind.tick)(tick));
    }
    if let Some(at) = kind.line() {
        svg.line("axis", (LEFT, y.at(at)), (right, y.at(at)), "stroke-dasharray:4 3");
    }
    let widest = axes.values.iter().map(|value| text_width(value) + 6.0).fold(0.0, f64::max);
    let every = ((widest / step).ceil() as usize).max(1);
    for (i, value) in axes.values.iter().enumerate().step_by(every) {
        svg.text("", (x(i), bottom + 18.0), Anchor::Middle, value);
    }
    svg.text("soft", (f64::midpoint(LEFT, right), bottom + 38.0), Anchor::Middle, axes.x_title);
    svg.text("soft", (8.0, TOP - 16.0), Anchor::Start, kind.y_title);
    for curve in curves {
        draw_curve(&mut svg, curve, axes, &y, x);
    }
    key.draw(&mut svg, bottom + BOTTOM, |svg, curve, (x, y)| {
        svg.path(&[(x, y), (x + 22.0, y)], curves[curve].series);
        svg.marker((x + 11.0, y), curves[curve].series, "");
    });
    svg
}

fn draw_curve(svg: &mut Svg, curve: &Curve, axes: &Axes<'_>, y: &Scale, x: impl Fn(usize) -> f64) {
    let stroke = colour(curve.series);
    let points = curve.points.iter().enumerate();
    let points = points.filter_map(|(i, point)| Some((x(i), y.at(point.as_ref()?.hodges_lehmann))));
    svg.path(&points.collect::<Vec<_>>(), curve.series);
    for (i, estimate) in curve.points.iter().enumerate() {
        let Some(estimate) = estimate else { continue };
        let tip =
            format!("{}, {}: {}", curve.name, axes.values[i], estimate.told(axes.kind.show, axes.kind.show));
        if let Some(interval) = estimate.interval {
            let (low, high) = ((x(i), y.at(interval.low)), (x(i), y.at(interval.high)));
            svg.line("bar", low, high, &format!("stroke:{stroke}"));
        }
        svg.marker((x(i), y.at(estimate.hodges_lehmann)), curve.series, &tip);
    }
}

const LINE: f64 = 17.0;
const SAMPLE: f64 = 34.0;
/// Between the key and the edges of its picture.
const MARGIN: f64 = 8.0;

/// Names in columns.
pub(super) struct Key<'a> {
    names: Vec<&'a str>,
    column: f64,
    columns: usize,
}

impl<'a> Key<'a> {
    pub(super) fn new(names: impl IntoIterator<Item = &'a str>) -> Self {
        let names: Vec<&str> = names.into_iter().collect();
        let widest = names.iter().map(|name| text_width(name)).fold(0.0, f64::max);
        let column = SAMPLE + widest + 8.0;
        let columns =
            ((WIDTH - 2.0 * MARGIN) / column).floor().clamp(1.0, names.len().max(1) as f64) as usize;
        Self { names, column, columns }
    }

    pub(super) fn height(&self) -> f64 {
        self.names.len().div_ceil(self.columns) as f64 * LINE + 4.0
    }

    /// Draws each entry with `sample`, which is given the entry and the left end of its middle.
    pub(super) fn draw(&self, svg: &mut Svg, top: f64, sample: impl Fn(&mut Svg, usize, (f64, f64))) {
        for (i, name) in self.names.iter().enumerate() {
            let x = MARGIN + (i % self.columns) as f64 * self.column;
            let y = top + (i / self.columns) as f64 * LINE;
            sample(svg, i, (x, y + 8.0));
            svg.text("", (x + SAMPLE - 6.0, y + 12.0), Anchor::Start, name);
        }
    }
}

pub(super) fn of_shade(svg: &mut Svg, fill: &str, (x, y): (f64, f64)) {
    svg.rectangle((x + 8.0, y - 6.0), 14.0, 12.0, fill, "");
}
