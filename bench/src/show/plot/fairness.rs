//! How the acquisitions fell on the vCPUs: one dot per vCPU, one strip per setting and arm.

use super::rows::Rows;
use super::{Data, Picture, Setting, series};
use crate::analysis::pairs::sorted;
use crate::record::Record;
use crate::show::svg::{Anchor, Scale, Svg, colour};
use crate::text::quantity::significant;

const TOP: f64 = 44.0;
/// Dots per strip: more would overlap anyway.
const MOST_DOTS: usize = 128;
/// Dots beyond this multiple of the fair share are drawn there.
const FARTHEST: f64 = 4.0;

/// A strip: the arm, the shares of its vCPUs, the remark next to it.
type Strip<'a> = (usize, Vec<f64>, String, &'a String);

pub(super) fn strips(data: &Data<'_>) -> Option<Picture> {
    let strip = |setting: &Setting| {
        let arms = data.arms().iter().enumerate();
        let has_run = arms.filter(|(_, name)| !data.runs(setting, name).is_empty());
        has_run
            .map(|(arm, name)| {
                let shares = shares(data.runs(setting, name));
                let remark = remark(&shares);
                (arm, shares, remark, name)
            })
            .collect::<Vec<_>>()
    };
    let settings: Vec<(&Setting, Vec<Strip<'_>>)> =
        data.settings().into_iter().map(|setting| (setting, strip(setting))).collect();
    let strips = || settings.iter().flat_map(|(_, strips)| strips);
    let count = strips().count();
    if count == 0 {
        return None;
    }
    let rows = Rows::new(data, strips().map(|(.., remark, _)| remark.as_str()));
    let height = TOP + rows.height(settings.len(), count);
    let mut svg = Svg::new(height, "Acquisitions of each vCPU over its fair share");
    let x = Scale::linear((0.0, FARTHEST), (rows.left, rows.right));
    for tick in x.ticks_at_most(5) {
        svg.line("grid", (x.at(tick), TOP - 8.0), (x.at(tick), height - 8.0), "");
        svg.text("soft", (x.at(tick), TOP - 14.0), Anchor::Middle, &format!("{tick}x"));
    }
    Rows::remarks_title(&mut svg, 12.0, "Jain, least and most busy vCPU");
    let mut y = TOP;
    for (setting, strips) in &settings {
        y = rows.heading(&mut svg, y, &data.name(setting));
        for (arm, shares, remark, name) in strips {
            let top = rows.row(&mut svg, y, name, remark);
            for share in thinned(shares) {
                svg.dot((x.at(share), top + 7.0), 3.0, &colour(series(*arm)));
            }
            y += rows.pitch();
        }
    }
    Some(Picture {
        name: "fairness".into(),
        title: "Fairness".into(),
        caption: "Each dot is a vCPU: its acquisitions divided by the mean of all vCPUs, all blocks together. Dots of fair locks \
                  gather at 1x. An unfair lock may be fast because it starves some vCPUs. Dots at the right end lie there or \
                  beyond."
            .into(),
        svg: Some(svg),
    })
}

/// Acquisitions of each vCPU over the mean, all runs together; empty if there were none.
fn shares(runs: &[&Record]) -> Vec<f64> {
    let vcpus = runs.iter().map(|run| run.per_vcpu.len()).min().unwrap_or(0);
    let acquired = |vcpu: usize| {
        runs.iter().map(|run| run.per_vcpu[vcpu].acquisitions.unwrap_or_default() as f64).sum::<f64>()
    };
    let sums: Vec<f64> = (0..vcpus).map(acquired).collect();
    let mean = sums.iter().sum::<f64>() / vcpus as f64;
    if mean > 0.0 { sums.iter().map(|sum| sum / mean).collect() } else { vec![] }
}

/// At most [`MOST_DOTS`] of the values, evenly spaced in their order, both ends among them.
fn thinned(shares: &[f64]) -> Vec<f64> {
    let sorted = sorted(shares);
    if sorted.len() <= MOST_DOTS {
        return sorted;
    }
    (0..MOST_DOTS).map(|i| sorted[i * (sorted.len() - 1) / (MOST_DOTS - 1)]).collect()
}

fn remark(shares: &[f64]) -> String {
    let (Some(least), Some(most)) =
        (shares.iter().copied().reduce(f64::min), shares.iter().copied().reduce(f64::max))
    else {
        return "no acquisitions".into();
    };
    let jain = shares.len() as f64 / shares.iter().map(|share| share * share).sum::<f64>();
    format!("{}, {}x to {}x", significant(jain), significant(least), significant(most))
}
