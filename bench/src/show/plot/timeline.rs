//! Which vCPU had a pCPU when, within one run: a map for each arm, with a row per vCPU and a column per half a slice.

use std::cmp::Reverse;
use std::fmt::Write as _;

use super::{Data, Key, Picture, Setting, of_shade};
use crate::record::{Record, Timeline};
use crate::show::svg::{Anchor, HELD, INK, SHADES, Svg, WIDTH};
use crate::text::quantity::time_ns;

/// Rows of a map at most: see [`shown`].
const MOST_ROWS: usize = 48;
/// Height of a map's row, and of all rows at most, without texts.
const ROW: f64 = 9.0;
const MOST_HEIGHT: f64 = 220.0;
const HEAD: f64 = 22.0;
const FOOT: f64 = 26.0;
const LEFT: f64 = 56.0;
const BINS: f64 = WIDTH - LEFT - 18.0;

/// A kind of bin: the name, the letters of what the vCPU did most of the time that it was off, and the filling.
struct Kind {
    name: &'static str,
    letters: &'static [char],
    fill: &'static str,
}

/// Tenths of a bin, at least, that a vCPU must be on a pCPU for the bin to show that.
const MOSTLY: u32 = 5;

/// All kinds of bins. The first is that of a vCPU on a pCPU.
const KINDS: [Kind; 5] = [
    Kind { name: "on a pCPU", letters: &['.'], fill: INK },
    Kind { name: "taken off, holding the lock", letters: &['h'], fill: HELD },
    Kind { name: "taken off, in the queue", letters: &['f', 'w'], fill: SHADES[2] },
    Kind { name: "off, doing neither", letters: &['o', 'r'], fill: SHADES[3] },
    Kind { name: "asleep", letters: &['s'], fill: "none" },
];

pub(super) fn map(data: &Data<'_>) -> Option<Picture> {
    let (name, title) = ("timeline".to_owned(), "Where each vCPU was at the beginning of a run".to_owned());
    let setting = hardest(data)?;
    let first = |arm: &str| -> Option<&Record> {
        let runs = data.runs(setting, arm).iter();
        runs.min_by_key(|run| run.place.as_ref().map(|place| place.order_index)).copied()
    };
    let arms: Vec<(&String, &Record)> =
        data.arms().iter().filter_map(|arm| Some((arm, first(arm)?))).collect();
    let drawn: Vec<(&String, &Timeline)> =
        arms.iter().filter_map(|(arm, run)| Some((*arm, run.timeline.as_ref()?))).collect();
    let Some((_, longest)) = drawn.iter().max_by_key(|(_, timeline)| rows(timeline)) else {
        let reason = arms.iter().find_map(|(_, run)| run.why.get("timeline"));
        let reason = reason.map_or("it was not recorded", String::as_str);
        return Some(Picture::not_drawn(name, title, reason));
    };
    let height = (rows(longest) as f64 * ROW).min(MOST_HEIGHT);
    let key = Key::new(KINDS.iter().map(|kind| kind.name));
    let (top, pitch) = (key.height() + 8.0, HEAD + height + FOOT);
    let label = "What each vCPU did, half a slice by half a slice, from when the window opened";
    let mut svg = Svg::new(top + drawn.len() as f64 * pitch, label);
    key.draw(&mut svg, 2.0, |svg, part, at| of_shade(svg, KINDS[part].fill, at));
    for (i, (arm, timeline)) in drawn.iter().enumerate() {
        draw_map(&mut svg, (arm, timeline), top + i as f64 * pitch, height);
    }
    let at = Some(data.name(setting)).filter(|name| !name.is_empty()).map(|name| format!(" at {name}"));
    let at = at.unwrap_or_default();
    let caption = format!(
        "The first run of each arm{at}: vCPUs from top to bottom, time from left to right from when the window opened. Each \
         field is half a slice, with the main activity of the vCPU. While a holder is off its pCPU, all vCPUs in the queue or on a \
         pCPU may be waiting for it. Locks whose waiters sleep show few preemptions. Of more than {MOST_ROWS} vCPUs those are \
         shown that were off longest while they held a lock, and others from all over."
    );
    Some(Picture { name, title, caption, svg: Some(svg) })
}

/// The setting with most vCPUs per pCPU; of several the last.
fn hardest<'a>(data: &Data<'a>) -> Option<&'a Setting> {
    let ratio = |setting: &Setting| {
        let runs = data.arms().iter().flat_map(|arm| data.runs(setting, arm));
        runs.filter_map(|run| run.settings.get("ratio")?.as_f64()).fold(0.0, f64::max)
    };
    data.settings().into_iter().max_by(|one, other| ratio(one).total_cmp(&ratio(other)))
}

fn rows(timeline: &Timeline) -> usize {
    timeline.on_pcpu.len().min(MOST_ROWS)
}

/// Numbers of the vCPUs of a map, in order. Of more than [`MOST_ROWS`], those come first that were off longest while they held a lock, since
/// all others may have waited for them. The rest lie at even distances: neighbours begin together and look alike.
fn shown(timeline: &Timeline) -> Vec<usize> {
    let held = |vcpu: usize| timeline.off_pcpu.get(vcpu).map_or(0, |letters| letters.matches('h').count());
    let mut vcpus: Vec<usize> = (0..timeline.on_pcpu.len()).collect();
    if vcpus.len() > MOST_ROWS {
        // Numbers with their bits reversed are in an order of which each beginning is spread evenly.
        vcpus.sort_by_key(|vcpu| (Reverse(held(*vcpu)), vcpu.reverse_bits()));
        vcpus.truncate(MOST_ROWS);
        vcpus.sort_unstable();
    }
    vcpus
}

fn draw_map(svg: &mut Svg, (arm, timeline): (&str, &Timeline), top: f64, height: f64) {
    svg.text("title", (LEFT, top + 14.0), Anchor::Start, arm);
    let shown = shown(timeline);
    let rows = shown.len();
    let bins = timeline.on_pcpu.iter().map(String::len).max().unwrap_or(0).max(1);
    let cell = (BINS / bins as f64, height / rows.max(1) as f64);
    let top = top + HEAD;
    // An area for adjacent bins of a kind, all of a kind in one path.
    let mut areas = [const { String::new() }; KINDS.len()];
    for (row, vcpu) in shown.iter().enumerate() {
        let (mut from, y, high) = (0, top + row as f64 * cell.1, cell.1);
        for alike in kinds(timeline, *vcpu).chunk_by(|one, next| one == next) {
            let (x, wide) = (LEFT + from as f64 * cell.0, alike.len() as f64 * cell.0);
            let _ = write!(areas[alike[0]], "M{x:.1} {y:.1}h{wide:.1}v{high:.1}h-{wide:.1}z");
            from += alike.len();
        }
    }
    for (areas, kind) in areas.iter().zip(&KINDS) {
        svg.area(areas, kind.fill, &format!("{arm}: {}", kind.name));
    }
    let bottom = top + height;
    svg.line("axis", (LEFT, bottom + 0.5), (LEFT + BINS, bottom + 0.5), "");
    if let [first, rest @ ..] = &shown[..] {
        svg.text("soft", (LEFT - 6.0, top + 10.0), Anchor::End, &format!("vCPU {first}"));
        if let Some(last) = rest.last() {
            svg.text("soft", (LEFT - 6.0, bottom), Anchor::End, &last.to_string());
        }
    }
    svg.text("soft", (LEFT, bottom + 14.0), Anchor::Start, "0");
    let end = time_ns(bins as f64 * timeline.bin_ns as f64);
    svg.text("soft", (LEFT + BINS, bottom + 14.0), Anchor::End, &end);
}

/// The kind of each bin of a vCPU.
fn kinds(timeline: &Timeline, vcpu: usize) -> Vec<usize> {
    let letters = timeline.off_pcpu.get(vcpu).map_or("", String::as_str);
    let bins = timeline.on_pcpu[vcpu].chars().zip(letters.chars().chain(std::iter::repeat('.')));
    let kind = |(digit, letter): (char, char)| {
        let is_on = digit.to_digit(10).is_some_and(|tenths| tenths >= MOSTLY);
        let of_letter = KINDS.iter().position(|kind| kind.letters.contains(&letter)).unwrap_or(0);
        if is_on { 0 } else { of_letter }
    };
    bins.map(kind).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_vcpus_the_map_shows_lost_holders_and_others_evenly() {
        let timeline = |vcpus: usize| Timeline {
            bin_ns: 500_000,
            on_pcpu: vec!["00".into(); vcpus],
            off_pcpu: (0..vcpus).map(|vcpu| if vcpu % 500 == 77 { "hw" } else { "ww" }.into()).collect(),
        };
        assert_eq!(shown(&timeline(MOST_ROWS)), Vec::from_iter(0..MOST_ROWS));
        let many = shown(&timeline(1024));
        assert_eq!(many.len(), MOST_ROWS);
        assert!(many.is_sorted() && [77, 577].iter().all(|vcpu| many.contains(vcpu)), "{many:?}");
        let widest = many.windows(2).map(|pair| pair[1] - pair[0]).max();
        assert!(widest <= Some(32), "a gap of {widest:?} in {many:?}");
    }
}
