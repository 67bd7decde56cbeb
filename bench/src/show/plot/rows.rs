//! Pictures with a row per setting and arm: names at the left, remarks at the right, and what is drawn between them. Where nothing
//! varies but the arms, estimates with their intervals.

use super::Data;
use super::chart::{Axes, Curve, YAxis};
use crate::analysis::statistics::Estimate;
use crate::show::svg::{Anchor, Svg, WIDTH, colour, text_width};

const ROW: f64 = 17.0;
const HEADING: f64 = 24.0;
/// Names that would take more of the picture than this stand above their rows.
const MOST_FOR_NAMES: f64 = 0.3;

/// Positions of rows and of their parts.
pub(super) struct Rows {
    /// Ends of what is drawn.
    pub(super) left: f64,
    pub(super) right: f64,
    names_above: bool,
}

impl Rows {
    pub(super) fn new<'a>(data: &Data<'_>, remarks: impl Iterator<Item = &'a str>) -> Self {
        Self::named(data.arms().iter().map(String::as_str), remarks)
    }

    /// For rows with these names.
    pub(super) fn named<'a, 'b>(
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

    pub(super) fn height(&self, settings: usize, rows: usize) -> f64 {
        settings as f64 * HEADING + rows as f64 * self.pitch() + 10.0
    }

    /// The remarks' title, at the right.
    pub(super) fn remarks_title(svg: &mut Svg, y: f64, title: &str) {
        svg.text("soft", (WIDTH - 4.0, y), Anchor::End, title);
    }

    /// A setting's name; returns the top of its first row.
    pub(super) fn heading(&self, svg: &mut Svg, y: f64, name: &str) -> f64 {
        svg.text("title", (8.0, y + 16.0), Anchor::Start, name);
        y + HEADING
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

fn widest<'a>(texts: impl Iterator<Item = &'a str>) -> f64 {
    texts.map(text_width).fold(0.0, f64::max)
}

const TOP: f64 = 30.0;
/// Between the ends of the scale and the first and last marker's middle.
const MARGIN: f64 = 12.0;
/// Least distance between two ticks.
const TICK: f64 = 110.0;

/// A row for each curve, also for those that have no point.
pub(super) fn draw(axes: &Axes<'_>, curves: &[Curve], ends: (f64, f64)) -> Svg {
    let estimate = |curve: &Curve| curve.points.first().cloned().flatten();
    let remarks: Vec<String> = curves.iter().map(|curve| told(axes, estimate(curve).as_ref())).collect();
    let names = curves.iter().map(|curve| curve.name.as_str());
    let rows = Rows::named(names, remarks.iter().map(String::as_str));
    let height = TOP + curves.len() as f64 * rows.pitch() + 10.0;
    let mut svg = Svg::new(height, axes.y_title);
    let x = axes.y.scale(ends, (rows.left + MARGIN, rows.right - MARGIN));
    for tick in x.ticks_at_most(((rows.right - rows.left) / TICK) as usize) {
        let is_one = matches!(axes.y, YAxis::Ratio) && (tick - 1.0).abs() < 1e-9;
        let class = if is_one { "axis" } else { "grid" };
        svg.line(class, (x.at(tick), TOP - 6.0), (x.at(tick), height - 8.0), "");
        svg.text("soft", (x.at(tick), TOP - 12.0), Anchor::Middle, &(axes.tick)(tick));
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

/// `598 k (590 k to 601 k)`.
fn told(axes: &Axes<'_>, estimate: Option<&Estimate>) -> String {
    let show = axes.show;
    match estimate.map(|it| (it.hodges_lehmann, it.interval)) {
        Some((value, Some(interval))) => {
            format!("{} ({} to {})", show(value), show(interval.low), show(interval.high))
        }
        Some((value, None)) => show(value),
        None => "no estimate".into(),
    }
}
