//! Curves over one axis of the experiment, a picture for each value of the others: throughput or completion, efficiency,
//! ratios. Pictures of the same thing have the same y axis, so that they can be compared.

use super::chart::{self, Axes, Curve, YAxis};
use super::{Data, Picture, Setting, rows, series};
use crate::analysis::summary::Comparison;
use crate::experiment::outline::{OutlineAxis, OutlineComparison};
use crate::record::figures::{COMPLETION, EFFICIENCY, THROUGHPUT};
use crate::record::place::{LOCK_FREE, slug};
use crate::text::quantity::{factor, short, si, significant, time_ns};

/// Properties that the curves of one picture have in common.
struct Panel<'a> {
    /// The key that varies; `None`: only the arms do.
    axis: Option<&'a OutlineAxis>,
    /// Values of the other axes.
    fixed: Setting,
}

/// A kind of curve that is drawn in all panels.
struct Kind {
    name: &'static str,
    title: &'static str,
    caption: &'static str,
    y_title: String,
    y: YAxis,
    show: fn(f64) -> String,
    tick: fn(f64) -> String,
}

/// All pictures of curves.
pub(super) fn pictures(data: &Data<'_>) -> Vec<Picture> {
    let panels = panels(data);
    let has_fixed_work = data.summary.rows.iter().any(|row| row.figure(COMPLETION).is_some());
    let speed = if has_fixed_work { completion(data, &panels) } else { throughput(data, &panels) };
    [speed, efficiency(data, &panels), comparison(data, &panels)].into_iter().flatten().collect()
}

/// All panels: over the ratio if that varies, else over the axis that varies fastest.
fn panels<'a>(data: &Data<'a>) -> Vec<Panel<'a>> {
    let axes = &data.summary.outline.axes;
    let varies = |axis: &&OutlineAxis| axis.values.len() > 1;
    let ratio = axes.iter().find(|axis| axis.key == "ratio" && varies(axis));
    let axis = ratio.or(axes.iter().rev().find(varies)).or(axes.last());
    let mut panels: Vec<Panel<'a>> = vec![];
    for setting in data.settings() {
        let mut fixed = setting.clone();
        axis.iter().for_each(|axis| _ = fixed.remove(&axis.key));
        if panels.iter().all(|panel| panel.fixed != fixed) {
            panels.push(Panel { axis, fixed });
        }
    }
    panels
}

impl Panel<'_> {
    fn settings(&self) -> impl Iterator<Item = Setting> {
        let setting = |axis: &OutlineAxis, value: &String| {
            let mut setting = self.fixed.clone();
            setting.insert(axis.key.clone(), value.clone());
            setting
        };
        let varied =
            self.axis.iter().flat_map(move |axis| axis.values.iter().map(move |value| setting(axis, value)));
        varied.chain(self.axis.is_none().then(|| self.fixed.clone()))
    }

    /// It has nothing to draw a curve over.
    fn is_of_rows(&self) -> bool {
        self.axis.is_none_or(|axis| axis.values.len() < 2)
    }

    fn draw(&self, data: &Data<'_>, kind: &Kind, curves: &[Curve], ends: (f64, f64)) -> Picture {
        let key = self.axis.map_or("", |axis| axis.key.as_str());
        let axes = Axes {
            values: self.axis.map_or(&[], |axis| axis.values.as_slice()),
            x_title: if key == "ratio" { "vCPUs per pCPU" } else { key },
            y_title: &kind.y_title,
            y: kind.y,
            show: kind.show,
            tick: kind.tick,
        };
        let svg = if self.is_of_rows() {
            rows::draw(&axes, curves, ends)
        } else {
            chart::draw(&axes, curves, ends)
        };
        let svg = Some(svg);
        let (mut name, mut title) = (kind.name.to_owned(), kind.title.to_owned());
        if !self.fixed.is_empty() {
            let of = data.name(&self.fixed);
            (name, title) = (format!("{name}-{}", slug(&of)), format!("{title}: {of}"));
        }
        Picture { name, title, caption: kind.caption.into(), svg }
    }
}

/// Draws the same curves in all panels, on one scale.
fn in_panels(
    data: &Data<'_>,
    panels: &[Panel<'_>],
    kind: &Kind,
    curves: impl Fn(&Panel<'_>) -> Vec<Curve>,
) -> Vec<Picture> {
    let mut curves: Vec<Vec<Curve>> = panels.iter().map(curves).collect();
    for (curves, panel) in curves.iter_mut().zip(panels) {
        // A row without a point says so; a curve without one cannot, and what is no arm need not.
        let stays = |curve: &Curve| panel.is_of_rows() && curve.series > 0;
        curves.retain(|curve| stays(curve) || curve.points.iter().any(Option::is_some));
    }
    let Some(ends) = kind.y.ends(curves.iter().flatten()) else { return vec![] };
    let drawn = panels.iter().zip(&curves).filter(|(_, curves)| !curves.is_empty());
    drawn.map(|(panel, curves)| panel.draw(data, kind, curves, ends)).collect()
}

fn throughput(data: &Data<'_>, panels: &[Panel<'_>]) -> Vec<Picture> {
    let kind = Kind {
        name: "throughput",
        title: "Throughput",
        caption: "Acquisitions per second of all vCPUs together. Estimates over blocks (Hodges-Lehmann) with their 95 % intervals. \
                  Grey: the same work without any lock.",
        y_title: "acquisitions per second".into(),
        y: YAxis::Logarithmic,
        show: si,
        tick: |value| short(&si(value)),
    };
    in_panels(data, panels, &kind, |panel| of_arms(data, panel, true, THROUGHPUT))
}

fn completion(data: &Data<'_>, panels: &[Panel<'_>]) -> Vec<Picture> {
    let kind = Kind {
        name: "completion",
        title: "Completion",
        caption: "Time until the fixed amount of work is done; less is better. Estimates over blocks (Hodges-Lehmann) with their \
                  95 % intervals. Grey: the same work without any lock. A point is missing if at least half of the runs did \
                  not finish the work.",
        y_title: "time to completion".into(),
        y: YAxis::Logarithmic,
        show: time_ns,
        tick: |value| short(&time_ns(value)),
    };
    in_panels(data, panels, &kind, |panel| of_arms(data, panel, true, COMPLETION))
}

fn efficiency(data: &Data<'_>, panels: &[Panel<'_>]) -> Vec<Picture> {
    let kind = Kind {
        name: "efficiency",
        title: "Efficiency",
        caption: "Throughput divided by the ideal of the same block, with 95 % intervals. At 1 the lock costs nothing, and no vCPU \
                  is ever preempted while others wait.",
        y_title: "efficiency".into(),
        y: YAxis::FromZero,
        show: significant,
        tick: |value| short(&significant(value)),
    };
    in_panels(data, panels, &kind, |panel| of_arms(data, panel, false, EFFICIENCY))
}

/// A curve for each arm, and one without any lock.
fn of_arms(data: &Data<'_>, panel: &Panel<'_>, with_lock_free: bool, name: &str) -> Vec<Curve> {
    let point = |setting: Setting, arm: &str| data.summary.row(&setting, arm)?.estimate(name).cloned();
    let points = |arm: &str| panel.settings().map(|setting| point(setting, arm)).collect::<Vec<_>>();
    let lock_free =
        with_lock_free.then(|| Curve { name: "no lock".into(), series: 0, points: points(LOCK_FREE) });
    let arms = data.arms().iter().enumerate();
    let arms = arms.map(|(i, arm)| Curve { name: arm.clone(), series: series(i), points: points(arm) });
    lock_free.into_iter().chain(arms).collect()
}

fn comparison(data: &Data<'_>, panels: &[Panel<'_>]) -> Vec<Picture> {
    let outline = &data.summary.outline;
    let kind = Kind {
        name: "comparison",
        title: "Ratios within blocks",
        caption: "Figure of one arm divided by that of its baseline in the same block, with 95 % intervals. Above 1 the arm does \
                  better. An interval that contains 1 shows no difference. Colours are those of the arms.",
        y_title: ratio_title(&outline.comparisons),
        y: YAxis::Ratio,
        show: |value| format!("{}x", factor(value)),
        tick: |value| format!("{}x", short(&factor(value))),
    };
    in_panels(data, panels, &kind, |panel| {
        outline.comparisons.iter().enumerate().map(|(i, asked)| compared(data, panel, (i, asked))).collect()
    })
}

/// The ratios of one comparison, in the colour of its arm; a second one of the same arm is dashed otherwise.
fn compared(data: &Data<'_>, panel: &Panel<'_>, (i, asked): (usize, &OutlineComparison)) -> Curve {
    const COLOURS: usize = 7;
    let outline = &data.summary.outline;
    let arm = outline.arms.iter().position(|arm| *arm == asked.arm).unwrap_or(i);
    let earlier = outline.comparisons[..i].iter().filter(|other| other.arm == asked.arm).count();
    let find = |setting: Setting| {
        let is_it = |it: &&Comparison| it.name == asked.name && it.setting == setting;
        data.summary.comparisons.iter().find(is_it)?.ratio.clone()
    };
    let points = panel.settings().map(find).collect();
    Curve { name: asked.name.clone(), series: series(arm + earlier * COLOURS), points }
}

/// The title of the ratios: the measure, if they are all of one.
fn ratio_title(comparisons: &[OutlineComparison]) -> String {
    match comparisons {
        [first, rest @ ..] if rest.iter().all(|it| it.of == first.of) => first.of.ratio_of(),
        _ => "ratio, above 1 is better".into(),
    }
}
