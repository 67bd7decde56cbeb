//! Just enough SVG: elements, text, scales with ticks, and colours that follow the reader's light or dark theme.
//!
//! Made by hand rather than with a plotting crate: the pictures stand alone as files and inline in the report, take
//! their colours from the page, and need six marks. The one crate that could do most of it costs half a minute of build.

use std::fmt::Write as _;

/// Style of every picture. Series colours are those of Okabe and Ito, told apart by most colour-blind readers,
/// with brighter ones for dark backgrounds. Markers and dashes tell series apart that share a colour, in print, and for those who
/// see few colours. What vCPUs do has shades of its own (`--a`), so that a colour means the same in all pictures.
pub(crate) const STYLE: &str = "\
.hk{--ink:#1b1f24;--held:#d0342c;--soft:#6b7380;--grid:#e3e6ea;--paper:#fff;--c0:#8a8f98;--c1:#d55e00;--c2:#0072b2;--c3:#009e73;\
--c4:#b8860b;--c5:#a3478c;--c6:#2b8fbf;--c7:#6a51a3;--up:#4a9fd8;--down:#ef8a4c;--a0:#1d2b36;--a1:#4d6273;--a2:#8ea0af;--a3:#c3ced7;--a4:#e9edf0;font:12px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}\
@media (prefers-color-scheme:dark){.hk{--ink:#e6e8eb;--held:#ff6f61;--soft:#9aa3af;--grid:#2c3138;--paper:#14171b;--c0:#9aa3af;\
--c1:#ff8c42;--c2:#56b4e9;--c3:#2fcf9f;--c4:#f0c64a;--c5:#e583c6;--c6:#7fd1f5;--c7:#b39ddb;--up:#1b6498;--down:#9c4a18;--a0:#f2f5f7;--a1:#b9c6d0;--a2:#80919f;--a3:#4d5b67;--a4:#262e36}}\
@media print{.hk{--ink:#000;--soft:#444;--grid:#ccc;--paper:#fff;--c0:#777;--c1:#d55e00;--c2:#0072b2;--c3:#009e73;\
--c4:#8f6a00;--c5:#a3478c;--c6:#2b8fbf;--c7:#6a51a3;--up:#4a9fd8;--down:#ef8a4c;--a0:#1d2b36;--a1:#4d6273;--a2:#8ea0af;--a3:#c3ced7;--a4:#e9edf0}}\
.hk text{fill:var(--ink)}.hk .soft{fill:var(--soft)}.hk .title{font-weight:600;font-size:13px}.hk .small{font-size:10px}\
.hk .grid{stroke:var(--grid);stroke-width:1}.hk .axis{stroke:var(--soft);stroke-width:1}\
.hk .line{fill:none;stroke-width:2;stroke-linejoin:round}.hk .bar{stroke-width:1.5}\
.hk .part{stroke:var(--soft);stroke-width:.5}\
.hk .paper{fill:var(--paper)}";

/// Width of every picture; a page scales it.
pub(crate) const WIDTH: f64 = 760.0;

/// Number of series colours; colour 0 is grey, for what is no arm.
const COLOURS: usize = 8;

/// The colour of series `index`, for `fill` or `stroke`.
pub(crate) fn colour(index: usize) -> String {
    let index = if index == 0 { 0 } else { (index - 1) % (COLOURS - 1) + 1 };
    format!("var(--c{index})")
}

/// The shades of activities, the darkest first.
pub(crate) const SHADES: [&str; 5] = ["var(--a0)", "var(--a1)", "var(--a2)", "var(--a3)", "var(--a4)"];
pub(crate) const INK: &str = "var(--ink)";
/// The colour of a lock whose holder is not running.
pub(crate) const HELD: &str = "var(--held)";

/// How the line of series `index` is dashed: none of those that share a colour like another.
fn dash(index: usize) -> &'static str {
    const DASHES: [&str; 5] = [
        "",
        ";stroke-dasharray:7 3",
        ";stroke-dasharray:2 3",
        ";stroke-dasharray:9 3 2 3",
        ";stroke-dasharray:14 4",
    ];
    DASHES[index.saturating_sub(1) / (COLOURS - 1) % DASHES.len()]
}

/// Width of a text in pictures, in the widest of the usual fonts.
pub(crate) fn text_width(text: &str) -> f64 {
    text.chars().count() as f64 * 7.2
}

#[derive(Debug)]
pub(crate) struct Svg {
    height: f64,
    label: String,
    body: String,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

impl Svg {
    /// `label` says in words what the picture shows.
    pub(crate) fn new(height: f64, label: &str) -> Self {
        Self { height, label: label.into(), body: String::new() }
    }

    /// An element, with a tip that shows on hover unless that is empty.
    fn element(&mut self, tag: &str, attributes: &str, tip: &str) {
        let tip = if tip.is_empty() { String::new() } else { format!("<title>{}</title>", escape(tip)) };
        let _ = write!(self.body, "<{tag} {attributes}>{tip}</{tag}>");
    }

    pub(crate) fn line(&mut self, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64), style: &str) {
        let ends = format!("x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"");
        self.element("line", &format!("class=\"{class}\" {ends} style=\"{style}\""), "");
    }

    pub(crate) fn path(&mut self, points: &[(f64, f64)], index: usize) {
        let style = format!("stroke:{}{}", colour(index), dash(index));
        let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
        if !path.is_empty() {
            let path = path.join("L");
            self.element("path", &format!("class=\"line\" style=\"{style}\" d=\"M{path}\""), "");
        }
    }

    /// Areas of one filling, as a path has them; none if there are none.
    pub(crate) fn area(&mut self, path: &str, fill: &str, tip: &str) {
        if !path.is_empty() {
            self.element("path", &format!("d=\"{path}\" style=\"fill:{fill}\""), tip);
        }
    }

    /// A part of a bar, or a sample of its shade.
    pub(crate) fn rectangle(&mut self, (x, y): (f64, f64), width: f64, height: f64, fill: &str, tip: &str) {
        let size = format!("x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"");
        self.element("rect", &format!("class=\"part\" {size} style=\"fill:{fill}\""), tip);
    }

    pub(crate) fn text(&mut self, class: &str, (x, y): (f64, f64), anchor: Anchor, text: &str) {
        let (anchor, text) = (format!("{anchor:?}").to_lowercase(), escape(text));
        let place = format!("x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\"");
        let _ = write!(self.body, "<text {place} class=\"{class}\">{text}</text>");
    }

    /// A mark of series `index` with a tip that shows on hover.
    pub(crate) fn marker(&mut self, (x, y): (f64, f64), index: usize, tip: &str) {
        let (tag, shape) = match index % 5 {
            0 => ("circle", format!("cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\"")),
            1 => ("rect", format!("x=\"{:.1}\" y=\"{:.1}\" width=\"7\" height=\"7\"", x - 3.5, y - 3.5)),
            2 => ("path", format!("d=\"M{x:.1} {:.1}l4.2 7.4h-8.4z\"", y - 4.7)),
            3 => ("path", format!("d=\"M{x:.1} {:.1}l4.8 4.8-4.8 4.8-4.8-4.8z\"", y - 4.8)),
            _ => ("path", format!("d=\"M{x:.1} {:.1}l4.2-7.4h-8.4z\"", y + 4.7)),
        };
        self.element(tag, &format!("{shape} style=\"fill:{}\"", colour(index)), tip);
    }

    pub(crate) fn dot(&mut self, (x, y): (f64, f64), fill: &str) {
        let style = format!("style=\"fill:{fill};fill-opacity:.7\"");
        self.element("circle", &format!("cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" {style}"), "");
    }

    /// The picture as part of a page that has [`STYLE`].
    pub(crate) fn inline(&self) -> String {
        let label = escape(&self.label);
        format!(
            "<svg class=\"hk\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH:.0} {:.0}\" role=\"img\" aria-label=\"{label}\">{}</svg>",
            self.height, self.body
        )
    }

    pub(crate) fn file(&self) -> String {
        let (height, label) = (self.height, escape(&self.label));
        format!(
            "<svg class=\"hk\" xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH:.0}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {WIDTH:.0} {height:.0}\" role=\"img\"><title>{label}</title><style>{STYLE}</style>\
             <rect class=\"paper\" width=\"100%\" height=\"100%\"/>{}</svg>\n",
            self.body
        )
    }
}

pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Maps values to pixels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    low: f64,
    high: f64,
    /// Pixels of `low` and `high`.
    from: f64,
    to: f64,
    logarithmic: bool,
}

impl Scale {
    pub(crate) fn linear((low, high): (f64, f64), (from, to): (f64, f64)) -> Self {
        Self { low, high, from, to, logarithmic: false }
    }

    pub(crate) fn at(&self, value: f64) -> f64 {
        let share = if self.logarithmic {
            (value.max(self.low) / self.low).log10() / (self.high / self.low).log10()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// A logarithmic scale that ends where the values do, a little beyond. Values beyond all that is measured, which a file can have
    /// that was written by hand, lie at its end.
    pub(crate) fn fitted((low, high): (f64, f64), (from, to): (f64, f64)) -> Self {
        const LEAST: f64 = 1.04;
        let (low, high) = (measured(low), measured(high));
        let widen = (LEAST / (high / low)).max(1.0).sqrt() * (high / low).powf(0.04);
        Self { low: low / widen, high: high * widen, from, to, logarithmic: true }
    }

    /// Round values within the scale, few enough for their texts to have room: powers of ten, steps of 1, 2, 5, or equal steps.
    pub(crate) fn ticks(&self, most: usize) -> Vec<f64> {
        const FEWEST: usize = 3;
        let most = most.max(FEWEST);
        if !self.logarithmic {
            return self.equal_steps(most);
        }
        let (low, high) = (self.low.log10() - 1e-9, self.high.log10() + 1e-9);
        let (first, last) = (low.ceil() as i32, high.floor() as i32);
        if last - first + 1 >= FEWEST as i32 {
            let every = ((last - first) / (most as i32 - 1) + 1).max(1);
            let shown = (first..=last).filter(|exponent| (exponent - first) % every == 0);
            return shown.map(|exponent| 10f64.powi(exponent)).collect();
        }
        let steps =
            (first - 1..=last).flat_map(|exponent| [1.0, 2.0, 5.0].map(|step| step * 10f64.powi(exponent)));
        let inside: Vec<f64> = steps.filter(|tick| (low..=high).contains(&tick.log10())).collect();
        if (FEWEST..=most).contains(&inside.len()) { inside } else { self.equal_steps(most) }
    }

    fn equal_steps(&self, most: usize) -> Vec<f64> {
        let step = round_step((self.high - self.low) / (most - 1) as f64);
        let first = (self.low / step - 1e-9).ceil() as i64;
        (first..).map(|i| i as f64 * step).take_while(|tick| *tick <= self.high + step * 1e-9).collect()
    }
}

/// The value, or the next to it that may have been measured.
fn measured(value: f64) -> f64 {
    value.clamp(1e-100, 1e100)
}

/// The nearest of 1, 2, 5 times a power of ten that is not smaller.
pub(crate) fn round_step(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    let mantissa = step / power;
    let nice = [1.0, 2.0, 5.0].into_iter().find(|nice| mantissa <= nice * 1.000_001).unwrap_or(10.0);
    nice * power
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: &[f64], expected: &[f64]) {
        let is_near = found.iter().zip(expected).all(|(one, other)| (one - other).abs() < 1e-9);
        assert!(found.len() == expected.len() && is_near, "{found:?}, not {expected:?}");
    }

    #[test]
    fn ticks_are_round_and_inside() {
        let linear = |most| Scale::linear((0.0, most), (0.0, 100.0)).ticks(7);
        near(&linear(1.0), &[0.0, 0.2, 0.4, 0.6, 0.8, 1.0]);
        near(&linear(37.0), &[0.0, 10.0, 20.0, 30.0]);
        assert_eq!(linear(1.1).len(), 6);
        // A fitted scale shows differences of percents, too.
        let fitted = |range| Scale::fitted(range, (0.0, 100.0));
        near(&fitted((0.97, 1.04)).ticks(7), &[0.98, 1.0, 1.02, 1.04]);
        near(&fitted((0.5, 8.0)).ticks(7), &[0.5, 1.0, 2.0, 5.0]);
        near(&fitted((60.0, 600_000.0)).ticks(7), &[100.0, 1_000.0, 10_000.0, 100_000.0]);
        near(&[fitted((1.0, 100.0)).at(10.0)], &[50.0]);
        assert!(fitted((1.0, 1.0)).ticks(7).len() >= 3, "even one value has a scale around it");
    }

    #[test]
    fn scales_of_impossible_values_have_ticks_and_stay_inside_the_picture() {
        for range in [(1e-300, 1e9), (0.0, 1.0), (1e-320, 1e300), (0.0, f64::INFINITY), (f64::MAX, f64::MAX)]
        {
            let scale = Scale::fitted(range, (0.0, 100.0));
            let ticks = scale.ticks(7);
            assert!(!ticks.is_empty() && ticks.len() <= 7, "{range:?}: {ticks:?}");
            assert!((0.0..=100.0).contains(&scale.at(range.0)) && (0.0..=100.0).contains(&scale.at(range.1)));
        }
        let scale = Scale::linear((0.0, 1.0), (10.0, 20.0));
        assert_eq!((scale.at(-5.0), scale.at(5.0)), (10.0, 20.0));
    }

    #[test]
    fn thirty_five_series_can_be_told_apart_by_colour_and_dash() {
        let look = |index: usize| (colour(index), dash(index));
        for one in 1..36 {
            assert!((0..one).all(|other| look(other) != look(one)), "{one}");
        }
    }
}
