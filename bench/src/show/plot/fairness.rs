//! How the acquisitions fell on the vCPUs: one dot per vCPU, one strip per setting and arm.

use super::{Data, Picture, WIDTH, series};
use crate::record::Record;
use crate::show::svg::{Anchor, Scale, Svg, colour};
use crate::text::quantity::significant;

const ROW: f64 = 17.0;
const HEADING: f64 = 24.0;
const TOP: f64 = 36.0;
const LEFT: f64 = 150.0;
const RIGHT: f64 = 230.0;
/// Dots per strip: more would overlap anyway.
const MOST_DOTS: usize = 128;
/// Dots beyond this multiple of the fair share are drawn there and counted beside.
const FARTHEST: f64 = 4.0;

pub(super) fn strips(data: &Data<'_>) -> Option<Picture> {
    let settings = data.settings();
    let rows = settings.len() * data.arms().len();
    if rows == 0 {
        return None;
    }
    let height = TOP + settings.len() as f64 * HEADING + rows as f64 * ROW + 10.0;
    let mut svg = Svg::new(WIDTH, height, "Acquisitions of each vCPU over its fair share");
    let x = Scale::linear((0.0, FARTHEST), (LEFT, WIDTH - RIGHT));
    for tick in x.ticks() {
        svg.line("grid", (x.at(tick), TOP - 8.0), (x.at(tick), height - 8.0), "");
        svg.text("soft", (x.at(tick), TOP - 14.0), Anchor::Middle, &format!("{tick}x"));
    }
    svg.text("soft", (WIDTH - RIGHT + 14.0, TOP - 14.0), Anchor::Start, "Jain, least and most busy vCPU");
    let mut y = TOP;
    for setting in settings {
        svg.text("title", (8.0, y + 16.0), Anchor::Start, &data.name(setting));
        y += HEADING;
        for (arm, name) in data.arms().iter().enumerate() {
            svg.text("", (LEFT - 8.0, y + 11.0), Anchor::End, name);
            let shares = shares(data.runs(setting, name));
            for share in thinned(&shares) {
                svg.dot((x.at(share), y + 7.0), 3.0, &colour(series(arm)));
            }
            svg.text("", (WIDTH - RIGHT + 14.0, y + 11.0), Anchor::Start, &remark(&shares));
            y += ROW;
        }
    }
    Some(Picture {
        name: "fairness".into(),
        title: "Fairness".into(),
        caption: "Each dot is a vCPU: its acquisitions over the mean of all vCPUs, all blocks together. Fair locks gather \
                  their dots at 1x; an unfair lock may be fast because it starves somebody."
            .into(),
        svg: Some(svg),
    })
}

/// Acquisitions of each vCPU over the mean, all runs together; empty if there were none.
fn shares(runs: &[&Record]) -> Vec<f64> {
    let vcpus = runs.iter().map(|run| run.per_vcpu.len()).min().unwrap_or(0);
    let of = |vcpu: usize| runs.iter().map(|run| run.per_vcpu[vcpu].acquisitions).sum::<u64>() as f64;
    let sums: Vec<f64> = (0..vcpus).map(of).collect();
    let mean = sums.iter().sum::<f64>() / vcpus as f64;
    if mean > 0.0 { sums.iter().map(|sum| sum / mean).collect() } else { vec![] }
}

/// At most [`MOST_DOTS`] of the values, evenly spaced in their order, both ends among them.
fn thinned(shares: &[f64]) -> Vec<f64> {
    let mut sorted = shares.to_vec();
    sorted.sort_by(f64::total_cmp);
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
