//! Estimates at one setting, where nothing varies but the arms: a row for each, with its interval.

use super::Data;
use super::chart::{Axes, Curve, YAxis};
use super::rows::Rows;
use crate::analysis::statistics::Estimate;
use crate::show::svg::{Anchor, Svg, colour};

const TOP: f64 = 30.0;
/// Between the ends of the scale and the first and last marker's middle.
const MARGIN: f64 = 12.0;
/// Least distance between two ticks.
const TICK: f64 = 70.0;

/// The rows of those curves that have a point.
pub(super) fn draw(axes: &Axes<'_>, curves: &[Curve], ends: (f64, f64), data: &Data<'_>) -> Svg {
    let drawn: Vec<(&Curve, &Estimate)> =
        curves.iter().filter_map(|curve| Some((curve, curve.points.first()?.as_ref()?))).collect();
    let remarks: Vec<String> = drawn.iter().map(|(_, estimate)| told(axes, estimate)).collect();
    let names = drawn.iter().map(|(curve, _)| curve.name.as_str());
    let rows = Rows::named(data.width, names, remarks.iter().map(String::as_str));
    let height = TOP + drawn.len() as f64 * rows.pitch() + 10.0;
    let mut svg = Svg::new(data.width, height, axes.y_title);
    let x = axes.y.scale(ends, (rows.left + MARGIN, rows.right - MARGIN));
    for tick in x.ticks_at_most(((rows.right - rows.left) / TICK) as usize) {
        let is_one = matches!(axes.y, YAxis::Ratio) && (tick - 1.0).abs() < 1e-9;
        let class = if is_one { "axis" } else { "grid" };
        svg.line(class, (x.at(tick), TOP - 6.0), (x.at(tick), height - 8.0), "");
        svg.text("soft", (x.at(tick), TOP - 12.0), Anchor::Middle, &(axes.tick)(tick));
    }
    rows.remarks_title(&mut svg, TOP - 12.0, "with 95 % interval");
    let mut y = TOP;
    for ((curve, estimate), remark) in drawn.iter().zip(&remarks) {
        let middle = rows.row(&mut svg, y, &curve.name, remark) + 7.0;
        if let Some(interval) = estimate.interval {
            let style = format!("stroke:{}", colour(curve.series));
            svg.line("bar", (x.at(interval.low), middle), (x.at(interval.high), middle), &style);
        }
        svg.marker(
            (x.at(estimate.hodges_lehmann), middle),
            curve.series,
            &format!("{}: {remark}", curve.name),
        );
        y += rows.pitch();
    }
    svg
}

/// `598 k (590 k to 601 k)`.
fn told(axes: &Axes<'_>, estimate: &Estimate) -> String {
    let show = axes.show;
    match estimate.interval {
        Some(interval) => {
            format!("{} ({} to {})", show(estimate.hodges_lehmann), show(interval.low), show(interval.high))
        }
        None => show(estimate.hodges_lehmann),
    }
}
