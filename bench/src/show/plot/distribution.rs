//! How long one waits for the lock: the share of waits longer than a time, one panel per setting.

use std::collections::BTreeMap;

use super::key::Key;
use super::{Data, Picture, Setting, series};
use crate::record::Record;
use crate::show::svg::{Anchor, Scale, Svg, text_width};
use crate::text::quantity::{short, time_ns};

const MOST_COLUMNS: usize = 3;
const NARROWEST: f64 = 200.0;
const PANEL_HEIGHT: f64 = 200.0;
const LEFT: f64 = 56.0;
/// Smallest share shown.
const RAREST: f64 = 1e-5;

pub(super) fn waits(data: &Data<'_>) -> Option<Picture> {
    let settings = data.settings();
    let curves: Vec<Vec<Vec<(f64, f64)>>> = settings
        .iter()
        .map(|setting| data.arms().iter().map(|arm| survival(data.runs(setting, arm))).collect())
        .collect();
    let times = curves.iter().flatten().flatten().map(|point| point.0).filter(|time| *time > 0.0);
    let range = (times.clone().reduce(f64::min)?, times.reduce(f64::max)?);
    let columns = columns(data, &settings);
    let key = Key::new(data.arms().iter().map(String::as_str), data.width);
    let head = key.height() + 8.0;
    let height = head + settings.len().div_ceil(columns) as f64 * PANEL_HEIGHT;
    let mut svg =
        Svg::new(data.width, height, "Share of waits that are longer than a time, for each setting");
    key.draw(&mut svg, 2.0, |svg, arm, (x, y)| svg.path(&[(x, y), (x + 22.0, y)], series(arm)));
    let panel_width = (data.width - 8.0) / columns as f64;
    for (i, (setting, curves)) in settings.iter().zip(&curves).enumerate() {
        let (column, row) = ((i % columns) as f64, (i / columns) as f64);
        let corner = (LEFT + column * panel_width, head + row * PANEL_HEIGHT);
        panel(&mut svg, &data.name(setting), curves, corner, panel_width - LEFT - 14.0, range);
    }
    Some(Picture {
        name: "waits".into(),
        title: "Waiting for the lock".into(),
        caption: "Share of acquisitions that waited longer than the time below, all blocks together. A curve that stretches to the \
                  right is a lock whose waiters sit through other vCPUs' slices. Each acquisition counts once, so vCPUs with \
                  many of them dominate. Waits that had not ended are left out."
            .into(),
        svg: Some(svg),
        narrow: None,
    })
}

/// Number of panels next to each other for whose titles there is room.
fn columns(data: &Data<'_>, settings: &[&Setting]) -> usize {
    let titles = settings.iter().map(|setting| text_width(&data.name(setting)) + LEFT + 14.0);
    let width = titles.fold(NARROWEST, f64::max);
    ((data.width / width) as usize).clamp(1, MOST_COLUMNS.min(settings.len().max(1)))
}

/// Points (time, share of waits at least as long), from the histograms of all runs.
fn survival(runs: &[&Record]) -> Vec<(f64, f64)> {
    let mut counts: BTreeMap<u64, f64> = BTreeMap::new();
    for (lower_bound, count) in runs.iter().filter_map(|run| run.distributions.get("wait")).flatten() {
        *counts.entry(lower_bound.to_bits()).or_default() += *count as f64;
    }
    let total: f64 = counts.values().sum();
    let mut left = total;
    let mut points = Vec::new();
    // Bits of non-negative floats sort as the floats do.
    for (bits, count) in counts {
        points.push((f64::from_bits(bits), left / total));
        left -= count;
    }
    points
}

fn panel(
    svg: &mut Svg,
    title: &str,
    curves: &[Vec<(f64, f64)>],
    (left, top): (f64, f64),
    width: f64,
    range: (f64, f64),
) {
    let x = Scale::logarithmic(range, (left, left + width));
    let bottom = top + PANEL_HEIGHT - 44.0;
    let y = Scale::logarithmic((RAREST, 1.0), (bottom, top + 22.0));
    svg.text("title", (left, top + 14.0), Anchor::Start, title);
    for tick in y.ticks() {
        svg.line("grid", (left, y.at(tick)), (left + width, y.at(tick)), "");
        svg.text("soft", (left - 6.0, y.at(tick) + 4.0), Anchor::End, &share(tick));
    }
    for tick in x.ticks_at_most((width / 48.0) as usize) {
        svg.line("grid", (x.at(tick), bottom), (x.at(tick), bottom + 4.0), "");
        svg.text("soft", (x.at(tick), bottom + 17.0), Anchor::Middle, &short(&time_ns(tick)));
    }
    for (arm, curve) in curves.iter().enumerate() {
        svg.path(&steps(curve, &x, &y), series(arm));
    }
}

/// A staircase, without the steps that are too rare to show.
fn steps(curve: &[(f64, f64)], x: &Scale, y: &Scale) -> Vec<(f64, f64)> {
    let shown: Vec<_> = curve.iter().filter(|point| point.1 >= RAREST).collect();
    let mut points = Vec::new();
    for pair in shown.windows(2) {
        let ((time, share), (next_time, next_share)) = (pair[0], pair[1]);
        points.extend([(x.at(*time), y.at(*share)), (x.at(*next_time), y.at(*share))]);
        points.push((x.at(*next_time), y.at(*next_share)));
    }
    if let [only] = shown[..] {
        // All waits took about as long.
        points.push((x.at(0.0), y.at(only.1)));
        points.push((x.at(only.0), y.at(only.1)));
    }
    // Beyond the last one there are none, or too few.
    points.extend(shown.last().map(|(time, _)| (x.at(*time), y.at(RAREST))));
    points.dedup();
    points
}

fn share(share: f64) -> String {
    if share >= 0.01 { format!("{} %", share * 100.0) } else { format!("1e{:.0}", share.log10()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_begins_at_the_left_and_ends_at_the_bottom() {
        let (x, y) =
            (Scale::logarithmic((1.0, 1e6), (0.0, 60.0)), Scale::logarithmic((RAREST, 1.0), (50.0, 0.0)));
        // All waits in one bucket.
        assert_eq!(steps(&[(1e3, 1.0)], &x, &y), [(0.0, 0.0), (30.0, 0.0), (30.0, 50.0)]);
        assert_eq!(steps(&[(1.0, 1.0), (1e6, 1e-5)], &x, &y), [(0.0, 0.0), (60.0, 0.0), (60.0, 50.0)]);
        assert!(steps(&[], &x, &y).is_empty());
    }
}
