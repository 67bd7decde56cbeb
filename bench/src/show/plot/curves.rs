//! Curves over one axis of the experiment, a picture for each value of the others: throughput or completion, efficiency,
//! ratios. Pictures of the same thing have the same y axis, so that they can be compared.

use super::chart::{self, Axes, Curve, Kind};
use super::{Data, Picture, Setting, phases, rows, series};
use crate::experiment::outline::{OutlineAxis, OutlineComparison};
use crate::record::figures::{COMPLETION, EFFICIENCY, THROUGHPUT};
use crate::record::place::LOCK_FREE;
use crate::text::quantity::{factor, short, si, significant, time_ns};

const OF_THROUGHPUT: Kind<'_> = Kind {
    name: "throughput",
    title: "Throughput",
    caption: "Acquisitions per second of all vCPUs together. Estimates over blocks (Hodges-Lehmann) with their 95 % intervals. \
              Grey: the same work without any lock.",
    y_title: "acquisitions per second",
    always: &[],
    show: si,
    tick: |value| short(&si(value)),
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
    tick: |value| short(&time_ns(value)),
};

const OF_EFFICIENCY: Kind<'_> = Kind {
    name: "efficiency",
    title: "Efficiency",
    caption: "Throughput divided by the ideal of the same block, with 95 % intervals. At 1 the lock costs nothing, and no vCPU \
              is ever preempted while others wait.",
    y_title: "efficiency",
    always: &[0.0, 1.0],
    show: significant,
    tick: |value| short(&significant(value)),
};

const OF_RATIOS: Kind<'_> = Kind {
    name: "comparison",
    title: "Ratios within blocks",
    caption: "Figure of one arm divided by that of its baseline in the same block, with 95 % intervals. Above 1 the arm does \
              better. An interval that contains 1 shows no difference. Colours are those of the arms.",
    y_title: "ratio, above 1 is better",
    always: &[1.0],
    show: |value| format!("{}x", factor(value)),
    tick: phases::ratio,
};

pub(super) fn pictures(data: &Data<'_>) -> Vec<Picture> {
    let panels = Panels::new(data);
    let has_fixed_work = data.summary.rows.iter().any(|row| row.figure(COMPLETION).is_some());
    let (speed, figure) =
        if has_fixed_work { (OF_COMPLETION, COMPLETION) } else { (OF_THROUGHPUT, THROUGHPUT) };
    let mut pictures = panels.pictures(&speed, |at| of_arms(data, at, true, figure));
    pictures.extend(panels.pictures(&OF_EFFICIENCY, |at| of_arms(data, at, false, EFFICIENCY)));
    let asked = &data.summary.outline.comparisons;
    // The title says the measure, if all ratios are of one.
    let measure = asked.first().filter(|first| asked.iter().all(|it| it.of == first.of));
    let y_title = measure.map_or(OF_RATIOS.y_title.into(), |it| it.of.ratio_of());
    let of_ratios = Kind { y_title: &y_title, ..OF_RATIOS };
    pictures.extend(panels.pictures(&of_ratios, |at| {
        asked.iter().enumerate().map(|(i, asked)| compared(data, at, (i, asked))).collect()
    }));
    pictures
}

/// Pictures of the same curves, one for each value of the other axes.
struct Panels<'a> {
    data: &'a Data<'a>,
    /// The axis that the curves are drawn over; `None`: only the arms vary.
    axis: Option<&'a OutlineAxis>,
    /// Values of the other axes in each picture.
    fixed: Vec<Setting>,
}

impl<'a> Panels<'a> {
    /// Over the ratio if that varies, else over the axis that varies fastest.
    fn new(data: &'a Data<'a>) -> Self {
        let axes = &data.summary.outline.axes;
        let varies = |axis: &&OutlineAxis| axis.values.len() > 1;
        let ratio = axes.iter().find(|axis| axis.key == "ratio" && varies(axis));
        let axis = ratio.or(axes.iter().rev().find(varies)).or(axes.last());
        Self { data, axis, fixed: data.without(axis.map(|axis| &axis.key).as_slice()) }
    }

    /// Settings along the axis of a picture.
    fn settings(&self, fixed: &Setting) -> Vec<Setting> {
        let Some(axis) = self.axis else { return vec![fixed.clone()] };
        let setting = |value: &String| {
            let mut setting = fixed.clone();
            setting.insert(axis.key.clone(), value.clone());
            setting
        };
        axis.values.iter().map(setting).collect()
    }

    /// Draws the same curves in all pictures, on one scale.
    fn pictures(&self, kind: &Kind<'_>, curves: impl Fn(&[Setting]) -> Vec<Curve>) -> Vec<Picture> {
        // Rows, where there is nothing to draw a curve over.
        let are_rows = self.axis.is_none_or(|axis| axis.values.len() < 2);
        let of_picture = |fixed: &Setting| {
            let mut curves = curves(&self.settings(fixed));
            // A row without a point says so; a curve without one cannot, and what is no arm need not.
            let stays = |curve: &Curve| are_rows && curve.series > 0;
            curves.retain(|curve| stays(curve) || curve.points.iter().any(Option::is_some));
            curves
        };
        let curves: Vec<Vec<Curve>> = self.fixed.iter().map(of_picture).collect();
        let Some(ends) = kind.ends(curves.iter().flatten()) else { return vec![] };
        let key = self.axis.map_or("", |axis| axis.key.as_str());
        let axes = Axes {
            values: self.axis.map_or(&[], |axis| axis.values.as_slice()),
            x_title: if key == "ratio" { "vCPUs per pCPU" } else { key },
            kind,
        };
        let draw = if are_rows { rows::draw } else { chart::draw };
        let picture = |(fixed, curves): (&Setting, &Vec<Curve>)| {
            let (name, title) = self.data.named(kind.name, kind.title, fixed);
            Picture { name, title, caption: kind.caption.into(), svg: Some(draw(&axes, curves, ends)) }
        };
        let drawn = self.fixed.iter().zip(&curves).filter(|(_, curves)| !curves.is_empty());
        drawn.map(picture).collect()
    }
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
