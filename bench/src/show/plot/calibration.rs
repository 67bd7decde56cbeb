//! Lock-free speed over the experiment.

use super::{Data, Picture};
use crate::show::svg::{Anchor, Scale, Svg, colour};
use crate::text::quantity::{short, significant};

const LEFT: f64 = 56.0;
const BOTTOM: f64 = 130.0;
/// Runs that are farther off than this are marked.
const QUIET: std::ops::RangeInclusive<f64> = 0.9..=1.1;

pub(super) fn speed(data: &Data<'_>) -> Option<Picture> {
    const FEWEST: usize = 3;
    let speeds = &data.summary.calibration;
    if speeds.len() < FEWEST {
        return None;
    }
    let right = data.width - 20.0;
    let mut svg = Svg::new(data.width, 170.0, "Lock-free speed in the order of the runs");
    let highest = speeds.iter().copied().fold(1.1, f64::max);
    let y = Scale::linear((0.0, highest), (BOTTOM, 20.0));
    let x = Scale::linear((0.0, (speeds.len() - 1) as f64), (LEFT, right));
    for tick in y.ticks() {
        svg.line("grid", (LEFT, y.at(tick)), (right, y.at(tick)), "");
        svg.text("soft", (LEFT - 8.0, y.at(tick) + 4.0), Anchor::End, &short(&significant(tick)));
    }
    let points: Vec<(f64, f64)> =
        speeds.iter().enumerate().map(|(i, speed)| (x.at(i as f64), y.at(*speed))).collect();
    svg.path(&points, 0);
    for (point, speed) in points.iter().zip(speeds) {
        if QUIET.contains(speed) {
            svg.dot(*point, 2.5, &colour(0));
        } else {
            svg.ring(*point);
        }
    }
    let title = "lock-free cells in the order in which they ran";
    svg.text("soft", (f64::midpoint(LEFT, right), 158.0), Anchor::Middle, title);
    Some(Picture {
        name: "calibration".into(),
        title: "Was the host quiet?".into(),
        caption: "Throughput of each lock-free run, divided by the median of its cell. On a quiet host all dots lie at 1. A dot \
                  lies lower if other load used the pCPUs, or if they changed their clock. Rings: more than 10 % off."
            .into(),
        svg: Some(svg),
        narrow: None,
    })
}
