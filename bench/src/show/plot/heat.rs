//! When each vCPU had a pCPU: a map for each arm, with a row per vCPU and a column per run, in the order of time.
//!
//! A run is the shortest time that is seen here. What happens within one is in `timeline`.

use super::key::{self, Key};
use super::{Data, Picture, Setting};
use crate::record::Record;
use crate::record::figures::WINDOW;
use crate::show::svg::{Anchor, Svg, text_width};
use crate::text::quantity::{count, short, significant, time_ns};

/// Rows of a map at most: more vCPUs share them, neighbours in one row.
const MOST_ROWS: usize = 64;
/// Columns at most: more runs share them.
const MOST_COLUMNS: usize = 60;
/// Height of a map without its texts.
const MAP_HEIGHT: f64 = 160.0;
const HEAD: f64 = 22.0;
const FOOT: f64 = 30.0;
const LEFT: f64 = 56.0;
const NARROWEST: f64 = 200.0;
const MOST_BESIDE: usize = 4;
/// Values that the key shows, in parts of the fair share.
const KEY: [f64; 5] = [0.0, 0.5, 1.0, 1.5, 2.0];

/// A part of a map: some vCPUs in some runs.
struct Part {
    /// Time on a pCPU over the fair share.
    share: f64,
    tip: String,
}

pub(super) fn map(data: &Data<'_>) -> Option<Picture> {
    let (name, title) = ("vcpus".to_owned(), "When each vCPU had a pCPU".to_owned());
    let setting = hardest(data)?;
    let arms: Vec<(&String, &[&Record])> = data
        .arms()
        .iter()
        .map(|arm| (arm, data.runs(setting, arm)))
        .filter(|(_, runs)| !runs.is_empty())
        .collect();
    let is_known = |run: &&Record| run.per_vcpu.iter().all(|vcpu| vcpu.run_ns.is_some());
    if !arms.iter().flat_map(|(_, runs)| *runs).all(is_known) {
        let reason = "under the host's scheduler the running time of each vCPU was not measured";
        return Some(Picture::not_drawn(name, title, reason));
    }
    let label = "Time of each vCPU on a pCPU over its fair share, run by run";
    let beside = beside(data, &arms);
    let key_names: Vec<String> = KEY.iter().map(|share| of_share(*share)).collect();
    let key = Key::new(key_names.iter().map(String::as_str), data.width);
    let top = key.height() + 8.0;
    let pitch = HEAD + MAP_HEIGHT + FOOT;
    let mut svg = Svg::new(data.width, top + arms.len().div_ceil(beside) as f64 * pitch, label);
    key.draw(&mut svg, 2.0, |svg, part, at| key::of_shade(svg, &fill(KEY[part]), at));
    let width = (data.width - 8.0) / beside as f64;
    for (i, (arm, runs)) in arms.iter().enumerate() {
        let corner = (LEFT + (i % beside) as f64 * width, top + (i / beside) as f64 * pitch);
        draw_map(data, &mut svg, arm, runs, corner, width - LEFT - 10.0);
    }
    let at = data.at(setting);
    let caption = format!(
        "A map for each arm{at}: vCPUs from top to bottom, runs in the order of time from left to right. Darker: the vCPU had more \
         time on a pCPU. 1x is its fair share, the pCPUs' time divided by the number of vCPUs of all guests. Vertical stripes are disturbed runs. \
         Horizontal stripes are vCPUs that always get more or less than others. Maps of locks whose waiters sleep are pale. \
         The timeline shows what happens within a run."
    );
    Some(Picture { name, title, caption, svg: Some(svg), narrow: None })
}

/// The setting with most vCPUs per pCPU; of several the last.
pub(super) fn hardest<'a>(data: &Data<'a>) -> Option<&'a Setting> {
    let ratio = |setting: &Setting| {
        let runs = data.arms().iter().flat_map(|arm| data.runs(setting, arm));
        runs.filter_map(|run| run.settings.get("ratio")?.as_f64()).fold(0.0, f64::max)
    };
    data.settings().into_iter().max_by(|one, other| ratio(one).total_cmp(&ratio(other)))
}

/// Number of maps that have room next to each other.
fn beside(data: &Data<'_>, arms: &[(&String, &[&Record])]) -> usize {
    let names = arms.iter().map(|(arm, _)| text_width(arm) + LEFT + 10.0);
    let widest = names.fold(NARROWEST, f64::max);
    ((data.width / widest) as usize).clamp(1, MOST_BESIDE.min(arms.len().max(1)))
}

fn draw_map(
    data: &Data<'_>,
    svg: &mut Svg,
    arm: &str,
    runs: &[&Record],
    (left, top): (f64, f64),
    width: f64,
) {
    svg.text("title", (left, top + 14.0), Anchor::Start, arm);
    let mut runs = runs.to_vec();
    runs.sort_by_key(|run| run.place.as_ref().map(|place| place.order_index));
    let vcpus = runs.iter().map(|run| run.per_vcpu.len()).min().unwrap_or(0);
    let (rows, columns) = (vcpus.min(MOST_ROWS), runs.len().min(MOST_COLUMNS));
    if rows == 0 {
        return svg.text("soft", (left, top + HEAD + 14.0), Anchor::Start, "no vCPUs");
    }
    let (cell_width, cell_height) = (width / columns as f64, MAP_HEIGHT / rows as f64);
    for column in 0..columns {
        let part = &runs[split(runs.len(), columns, column)];
        for row in 0..rows {
            let Part { share, tip } = part_of(data, arm, part, split(vcpus, rows, row));
            let corner = (left + column as f64 * cell_width, top + HEAD + row as f64 * cell_height);
            svg.rectangle(corner, cell_width, cell_height, &fill(share), &tip);
        }
    }
    let bottom = top + HEAD + MAP_HEIGHT;
    svg.text("soft", (left - 6.0, top + HEAD + 10.0), Anchor::End, "vCPU 0");
    svg.text("soft", (left - 6.0, bottom - 1.0), Anchor::End, &(vcpus - 1).to_string());
    svg.text("soft", (left, bottom + 15.0), Anchor::Start, "first run");
    svg.text("soft", (left + width, bottom + 15.0), Anchor::End, &format!("run {}", runs.len()));
}

/// Which of `all` belong to part `index` of `parts`.
fn split(all: usize, parts: usize, index: usize) -> std::ops::Range<usize> {
    index * all / parts..(index + 1) * all / parts
}

fn part_of(data: &Data<'_>, arm: &str, runs: &[&Record], vcpus: std::ops::Range<usize>) -> Part {
    let each = || runs.iter().flat_map(|run| &run.per_vcpu[vcpus.clone()]);
    let had: f64 = each().filter_map(|vcpu| vcpu.run_ns).map(|ns| ns as f64).sum();
    let ready: Option<f64> = each().map(|vcpu| vcpu.steal_ns.map(|ns| ns as f64)).sum();
    let sections = each().filter_map(|vcpu| vcpu.acquisitions).fold(0, u64::saturating_add);
    let fair =
        |run: &&Record| run.amount(WINDOW) * run.settings.pcpus() as f64 / data.vcpus_of_run(run) as f64;
    let fair: f64 = runs.iter().map(fair).sum::<f64>() * vcpus.len() as f64;
    let share = if fair > 0.0 { had / fair } else { 0.0 };
    let of = if vcpus.len() == 1 {
        format!("vCPU {}", vcpus.start)
    } else {
        format!("vCPUs {} to {}", vcpus.start, vcpus.end - 1)
    };
    let block = runs[0].place.as_ref().map_or(String::new(), |place| format!(", block {}", place.block + 1));
    let waited = ready.map_or(String::new(), |ns| format!(", waited {} for one", time_ns(ns)));
    let tip = format!(
        "{arm}, {of}{block}: {} of the fair share on a pCPU{waited}, {} sections",
        of_share(share),
        count(sections)
    );
    Part { share, tip }
}

fn of_share(share: f64) -> String {
    format!("{}x", short(&significant(share)))
}

/// Ink, the more the darker; it is ink on light paper and light on dark paper.
fn fill(share: f64) -> String {
    let most = KEY[KEY.len() - 1];
    format!("var(--ink);fill-opacity:{:.2};stroke:none", 0.04 + 0.96 * (share.min(most) / most))
}
