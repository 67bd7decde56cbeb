//! Maps of the headline ratio over two axes, one for each value of the others: from where on the arm is better, and by how much.
//!
//! All maps share one logarithmic scale of colours, so that they can be compared. A colour is never the only sign: each field
//! has its number, hatching says that no difference is shown, and grey with a mark that the field is not valid.

use super::{Data, Key, Picture, Setting, of_shade, title_of};
use crate::analysis::statistics::Verdict;
use crate::analysis::summary::Comparison;
use crate::experiment::outline::{OutlineAxis, OutlineComparison};
use crate::show::svg::{Anchor, Svg, WIDTH, round_step, text_width};
use crate::show::table::over_seeds;
use crate::text::quantity::{factor, short, significant};

/// Fewest values of either axis: less is better read in a table.
const FEWEST: usize = 3;
/// The scale of colours has at least this ratio at its end, so that noise never has the strongest colour.
const LEAST_END: f64 = 2.0;
/// The titles and values of the columns.
const TOP: f64 = 46.0;
const HEIGHT: f64 = 44.0;
/// Between the diagonal lines of a field that shows no difference.
const HATCH: f64 = 7.0;
/// Strength of the colour of a difference, however small.
const PALEST: f64 = 0.12;

/// Properties that all maps of an experiment have in common.
struct Frame<'a> {
    asked: &'a OutlineComparison,
    x: &'a OutlineAxis,
    y: &'a OutlineAxis,
    /// The strongest colour stands for this ratio, and for one over it.
    end: f64,
}

pub(super) fn maps(data: &Data<'_>) -> Vec<Picture> {
    let Some(frame) = frame(data) else { return vec![] };
    let fixed = data.without(&[&frame.x.key, &frame.y.key]);
    fixed.iter().map(|fixed| picture(data, &frame, fixed)).collect()
}

/// The ratio, if it varies, over the other axis with most values; none where two axes have too few.
fn frame<'a>(data: &Data<'a>) -> Option<Frame<'a>> {
    let outline = &data.summary.outline;
    let asked = outline.comparisons.first()?;
    let mut axes: Vec<&OutlineAxis> =
        outline.axes.iter().filter(|axis| axis.values.len() >= FEWEST).collect();
    axes.sort_by_key(|axis| (axis.key != "ratio", std::cmp::Reverse(axis.values.len())));
    let [x, y, ..] = axes[..] else { return None };
    let of_it =
        data.summary.comparisons.iter().filter(|it| it.name == asked.name && it.verdict != Verdict::NotValid);
    let farthest = of_it.filter_map(|it| Some(it.ratio.as_ref()?.hodges_lehmann.ln().abs()));
    Some(Frame { asked, x, y, end: round_step(farthest.fold(LEAST_END.ln(), f64::max).exp()) })
}

fn picture(data: &Data<'_>, frame: &Frame<'_>, fixed: &Setting) -> Picture {
    let Frame { asked, x, y, end } = frame;
    let title = format!("{} by {} and {}", asked.name, x.key, y.key);
    let (name, title) = data.named("map", &title, fixed);
    let (better, worse) = asked.of.words();
    let caption = format!(
        "{} divided by {} in the same block: each field is an estimate (Hodges-Lehmann), where there is room with its 95 % interval{}. \
         Blue: {better}; orange: {worse}. Stronger colours are larger differences, on a logarithmic scale from 1 to {}. Hatched: no \
         difference is shown, after Holm's correction for all settings. Grey with !: not valid, more than 29 % of its pairs have an \
         invalid run.",
        asked.arm,
        asked.baseline,
        over_seeds(data.summary),
        ratio(*end),
    );
    Picture { name, title, caption, svg: Some(draw(data, frame, fixed)) }
}

fn draw(data: &Data<'_>, frame: &Frame<'_>, fixed: &Setting) -> Svg {
    let Frame { asked, x, y, end } = frame;
    let names: Vec<String> = y.values.iter().map(|value| row_name(data, frame, fixed, value)).collect();
    let widest = names.iter().chain([&y.key]).map(|name| text_width(name)).fold(0.0, f64::max);
    let left = widest + 14.0;
    let width = (WIDTH - left - 8.0) / x.values.len() as f64;
    let stops = [1.0 / end, end.sqrt().recip(), 1.0, end.sqrt(), *end];
    let mut samples: Vec<String> = stops.iter().map(|stop| of_key(*stop)).collect();
    samples.extend(["no difference shown".into(), "! not valid".into()]);
    let key = Key::new(samples.iter().map(String::as_str));
    let top = key.height() + TOP;
    let bottom = top + y.values.len() as f64 * HEIGHT;
    let label = format!("{} over {} by {} and {}", asked.arm, asked.baseline, x.key, y.key);
    let mut svg = Svg::new(bottom + 4.0, &label);
    key.draw(&mut svg, 2.0, |svg, sample, (x, y)| match stops.get(sample) {
        Some(stop) => of_shade(svg, &fill(*stop, *end), (x, y)),
        None if sample == stops.len() => hatched(svg, (x + 8.0, y - 6.0), (14.0, 12.0), ""),
        None => of_shade(svg, GREY, (x, y)),
    });
    svg.text("soft", (left - 8.0, top - 8.0), Anchor::End, &y.key);
    for (row, name) in names.iter().enumerate() {
        let middle = top + (row as f64 + 0.5) * HEIGHT + 4.0;
        svg.text("", (left - 8.0, middle), Anchor::End, name);
    }
    for (column, at_x) in x.values.iter().enumerate() {
        let left = left + column as f64 * width;
        svg.text("", (left + width / 2.0, top - 8.0), Anchor::Middle, at_x);
        for (row, at_y) in y.values.iter().enumerate() {
            let mut setting = fixed.clone();
            setting.extend([(x.key.clone(), at_x.clone()), (y.key.clone(), at_y.clone())]);
            let found = data.summary.comparison(&asked.name, &setting);
            field(&mut svg, found, *end, (left, top + row as f64 * HEIGHT), (width - 2.0, HEIGHT - 2.0));
        }
    }
    svg.text("soft", (left + 2.0, top - 26.0), Anchor::Start, title_of(x));
    svg
}

/// The value of the row; of a think time also which share of the time is spent inside the lock, where that is one.
fn row_name(data: &Data<'_>, frame: &Frame<'_>, fixed: &Setting, value: &String) -> String {
    let is_of_row = |setting: &&Setting| {
        setting.get(&frame.y.key) == Some(value) && fixed.iter().all(|(key, of)| setting.get(key) == Some(of))
    };
    // Sections whose length differs along a row have no share in common.
    let has_share = frame.y.key == "think" && frame.x.key != "hold";
    let settings = data.settings().into_iter().filter(|setting| has_share && is_of_row(setting));
    match settings.flat_map(|setting| data.runs(setting, &frame.asked.arm)).next() {
        Some(run) => {
            let [hold, think] = ["hold_ns", "think_ns"].map(|name| run.settings.count(name) as f64);
            let share = hold / (hold + think).max(1.0) * 100.0;
            format!("{value} ({} % in the lock)", short(&significant(share)))
        }
        None => value.clone(),
    }
}

/// No colour of the scale.
const GREY: &str = "var(--grid)";

fn field(
    svg: &mut Svg,
    found: Option<&Comparison>,
    end: f64,
    corner: (f64, f64),
    (width, height): (f64, f64),
) {
    let middle = (corner.0 + width / 2.0, corner.1 + height / 2.0 + 4.0);
    let Some((found, estimate)) = found.and_then(|it| Some((it, it.ratio.as_ref()?))) else {
        svg.rectangle(corner, width, height, "none", "no figure");
        return svg.text("soft", middle, Anchor::Middle, "-");
    };
    let tip = format!("{}, {}", estimate.as_ratio(), found.verdict.word(&found.of));
    match found.verdict {
        Verdict::NotValid => svg.rectangle(corner, width, height, GREY, &tip),
        verdict if verdict.is_difference() => {
            svg.rectangle(corner, width, height, &fill(estimate.hodges_lehmann, end), &tip);
        }
        _ => hatched(svg, corner, (width, height), &tip),
    }
    let mark = if found.verdict == Verdict::NotValid { " !" } else { "" };
    let number = format!("{}{mark}", ratio(estimate.hodges_lehmann));
    let interval = estimate.interval.map(|it| format!("{} to {}", factor(it.low), factor(it.high)));
    match interval.filter(|text| text_width(text) * SMALL / 12.0 < width - 4.0) {
        Some(interval) => {
            svg.text("", (middle.0, middle.1 - 7.0), Anchor::Middle, &number);
            svg.text("small", (middle.0, middle.1 + 8.0), Anchor::Middle, &interval);
        }
        None => svg.text("", middle, Anchor::Middle, &number),
    }
}

/// Size of the intervals' texts, `.small` in the style.
const SMALL: f64 = 10.0;

fn ratio(value: f64) -> String {
    short(&format!("{}x", factor(value)))
}

/// `1/50x`, `50x`.
fn of_key(value: f64) -> String {
    let whole = |value: f64| short(&significant((value * 10.0).round() / 10.0));
    if value < 1.0 { format!("1/{}x", whole(1.0 / value)) } else { format!("{}x", whole(value)) }
}

/// Colour that is the stronger the farther the ratio is from 1, on a logarithmic scale.
fn fill(ratio: f64, end: f64) -> String {
    let strength = (ratio.ln().abs() / end.ln()).min(1.0);
    let strength = if strength < 1e-9 { 0.0 } else { PALEST + (1.0 - PALEST) * strength };
    let colour = if ratio > 1.0 { "var(--up)" } else { "var(--down)" };
    format!("{colour};fill-opacity:{strength:.2}")
}

fn hatched(svg: &mut Svg, (x, y): (f64, f64), (width, height): (f64, f64), tip: &str) {
    svg.rectangle((x, y), width, height, "none;pointer-events:all", tip);
    let lines = (1..).map(|i| f64::from(i) * HATCH).take_while(|along| *along < width + height);
    for along in lines {
        let from = (x + along.min(width), y + (along - width).max(0.0));
        let to = (x + (along - height).max(0.0), y + along.min(height));
        svg.line("grid", from, to, "");
    }
}

#[cfg(test)]
mod tests {
    use crate::analysis::summary::Summary;
    use crate::measure::synthetic::{Shape, Sketch, World, assert_has};
    use crate::record::place::Place;
    use crate::show::plot::{self, Data, Picture};

    const RATIOS: [&str; 8] = ["1", "2", "3", "4", "6", "8", "16", "32"];
    const THINKS: [&str; 5] = ["0ns", "1us", "4us", "19us", "99us"];

    #[test]
    fn two_axes_have_a_map_for_each_value_of_the_third() {
        let sketch =
            Sketch::new().axis("ratio", &RATIOS).axis("think", &THINKS).axis("sched", &["vmm", "host"]);
        let sketch = sketch.arm("virt-tas", "tas").arm("pv", "qspinlock pv");
        let plan = sketch.compare("PV/test-and-set", "pv", "virt-tas").plan(7);
        // A lock that gains where a pCPU has more than four vCPUs.
        let truth = |asked: haltkick_vmm::OurGuest<'_>| {
            let is_crowded = asked.guest.vcpus as usize > 4 * asked.run.cpus.len();
            if asked.ours.lock != "tas" && is_crowded { 6e5 } else { 2e5 }
        };
        let mut records = World::new(4).truth(truth).shape(Shape::LogNormal(0.04)).records(&plan);
        for record in &mut records {
            let Place { setting, block, .. } = record.placed();
            let at = ["ratio", "think", "sched"].map(|key| setting[key].as_str());
            record.trusted = at != ["16", "0ns", "host"] || *block > 2;
        }
        let pictures = plot::pictures(&Data::new(&Summary::new(&plan.outline, &records), &records));
        let maps: Vec<&Picture> = pictures.iter().filter(|it| it.name.starts_with("map")).collect();
        let names: Vec<&str> = maps.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["map-sched-vmm", "map-sched-host"]);
        for (map, invalid) in maps.iter().zip([0, 1]) {
            let file = map.svg.as_ref().expect("it can be drawn").file();
            let tips = file.matches("x (").count();
            assert_eq!(tips, RATIOS.len() * THINKS.len(), "one for each field: {file}");
            assert_has(&file, &[">vCPUs per pCPU<", ">4us (20 % in the lock)<"]);
            assert_has(&file, &["var(--up);fill-opacity:0.7", ", no difference shown<"]);
            assert!(!file.contains("NaN") && !file.contains("inf"), "{file}");
            assert!(map.caption.contains("pv divided by virt-tas"), "{}", map.caption);
            // A field of mostly invalid pairs has no colour and a mark.
            for mark in [", not valid<", " !</text>"] {
                assert_eq!(file.matches(mark).count(), invalid, "{mark}: {file}");
            }
        }
    }
}
