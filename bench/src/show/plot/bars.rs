//! Estimates at one setting, where nothing varies but the arms: a row for each, with its interval.

use super::chart::{Axes, Curve, YAxis};
use super::rows::Rows;
use crate::analysis::statistics::Estimate;
use crate::show::svg::{Anchor, Svg, colour};

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
