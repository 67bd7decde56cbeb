//! Just enough SVG: elements, text, scales with ticks, and colours that follow the reader's light or dark theme.
//!
//! Made by hand rather than with a plotting crate: the pictures stand alone as files and inline in the report, take
//! their colours from the page, and need six marks. The one crate that could do most of it costs half a minute of build.

use std::fmt::Write as _;

/// Style of every picture. Series colours are those of Okabe and Ito, told apart by most colour-blind readers,
/// with brighter ones for dark backgrounds; markers tell the series apart in print.
pub(crate) const STYLE: &str = "\
.hk{--ink:#1b1f24;--soft:#6b7380;--grid:#e3e6ea;--paper:#fff;--c0:#8a8f98;--c1:#d55e00;--c2:#0072b2;--c3:#009e73;\
--c4:#b8860b;--c5:#a3478c;--c6:#2b8fbf;--c7:#6a51a3;font:12px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}\
@media (prefers-color-scheme:dark){.hk{--ink:#e6e8eb;--soft:#9aa3af;--grid:#2c3138;--paper:#14171b;--c0:#9aa3af;\
--c1:#ff8c42;--c2:#56b4e9;--c3:#2fcf9f;--c4:#f0c64a;--c5:#e583c6;--c6:#7fd1f5;--c7:#b39ddb}}\
@media print{.hk{--ink:#000;--soft:#444;--grid:#ccc;--paper:#fff;--c0:#777;--c1:#d55e00;--c2:#0072b2;--c3:#009e73;\
--c4:#8f6a00;--c5:#a3478c;--c6:#2b8fbf;--c7:#6a51a3}}\
.hk text{fill:var(--ink)}.hk .soft{fill:var(--soft)}.hk .title{font-weight:600;font-size:13px}\
.hk .grid{stroke:var(--grid);stroke-width:1}.hk .axis{stroke:var(--soft);stroke-width:1}\
.hk .line{fill:none;stroke-width:2;stroke-linejoin:round}.hk .bar{stroke-width:1.5}\
.hk .paper{fill:var(--paper)}";

/// Number of series colours; colour 0 is grey, for what is no arm.
const COLOURS: usize = 8;

/// The colour of series `index`, for `fill` or `stroke`.
pub(crate) fn colour(index: usize) -> String {
    let index = if index == 0 { 0 } else { (index - 1) % (COLOURS - 1) + 1 };
    format!("var(--c{index})")
}

/// A picture under construction.
#[derive(Debug)]
pub(crate) struct Svg {
    width: f64,
    height: f64,
    label: String,
    body: String,
}

/// Where a text stands relative to its point.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

impl Svg {
    /// `label` says in words what the picture shows.
    pub(crate) fn new(width: f64, height: f64, label: &str) -> Self {
        Self { width, height, label: label.into(), body: String::new() }
    }

    pub(crate) fn line(&mut self, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64), style: &str) {
        let _ = write!(
            self.body,
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"{}/>",
            attribute("style", style)
        );
    }

    pub(crate) fn path(&mut self, points: &[(f64, f64)], stroke: &str) {
        let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
        if !path.is_empty() {
            let _ = write!(
                self.body,
                "<path class=\"line\" style=\"stroke:{stroke}\" d=\"M{}\"/>",
                path.join("L")
            );
        }
    }

    pub(crate) fn rectangle(&mut self, (x, y): (f64, f64), width: f64, height: f64, fill: &str, tip: &str) {
        let tip = if tip.is_empty() { String::new() } else { format!("<title>{}</title>", escape(tip)) };
        let _ = write!(
            self.body,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" style=\"fill:{fill}\">{tip}</rect>"
        );
    }

    pub(crate) fn text(&mut self, class: &str, (x, y): (f64, f64), anchor: Anchor, text: &str) {
        self.styled_text(class, (x, y), anchor, "", text);
    }

    pub(crate) fn styled_text(
        &mut self,
        class: &str,
        (x, y): (f64, f64),
        anchor: Anchor,
        style: &str,
        text: &str,
    ) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let _ = write!(
            self.body,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\"{}{}>{}</text>",
            attribute("class", class),
            attribute("style", style),
            escape(text)
        );
    }

    /// A mark of series `index` with a tip that shows on hover.
    pub(crate) fn marker(&mut self, (x, y): (f64, f64), index: usize, tip: &str) {
        let fill = colour(index);
        let shape = match index % 5 {
            0 => format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\""),
            1 => format!("<rect x=\"{:.1}\" y=\"{:.1}\" width=\"7\" height=\"7\"", x - 3.5, y - 3.5),
            2 => format!("<path d=\"M{x:.1} {:.1}l4.2 7.4h-8.4z\"", y - 4.7),
            3 => format!("<path d=\"M{x:.1} {:.1}l4.8 4.8-4.8 4.8-4.8-4.8z\"", y - 4.8),
            _ => format!("<path d=\"M{x:.1} {:.1}l4.2-7.4h-8.4z\"", y + 4.7),
        };
        let _ = write!(
            self.body,
            "{shape} style=\"fill:{fill}\"><title>{}</title></{}>",
            escape(tip),
            element(&shape)
        );
    }

    /// A dot of the given radius.
    pub(crate) fn dot(&mut self, (x, y): (f64, f64), radius: f64, fill: &str) {
        let _ = write!(
            self.body,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\" style=\"fill:{fill};fill-opacity:.7\"/>"
        );
    }

    /// The picture as part of a page that has [`STYLE`].
    pub(crate) fn inline(&self) -> String {
        let label = escape(&self.label);
        format!(
            "<svg class=\"hk\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0} {:.0}\" role=\"img\" aria-label=\"{label}\">{}</svg>",
            self.width, self.height, self.body
        )
    }

    /// The picture as a file of its own.
    pub(crate) fn file(&self) -> String {
        let (width, height) = (self.width, self.height);
        let label = escape(&self.label);
        format!(
            "<svg class=\"hk\" xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\"><title>{label}</title><style>{STYLE}</style>\
             <rect class=\"paper\" width=\"100%\" height=\"100%\"/>{}</svg>\n",
            self.body
        )
    }
}

fn element(shape: &str) -> &str {
    shape[1..].split(' ').next().unwrap_or_default()
}

fn attribute(name: &str, value: &str) -> String {
    if value.is_empty() { String::new() } else { format!(" {name}=\"{value}\"") }
}

/// Text as HTML and SVG take it.
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

    /// Rounds the ends outwards to powers of ten.
    pub(crate) fn logarithmic((low, high): (f64, f64), (from, to): (f64, f64)) -> Self {
        let low = 10f64.powf(low.log10().floor());
        let high = 10f64.powf(high.log10().ceil()).max(low * 10.0);
        Self { low, high, from, to, logarithmic: true }
    }

    pub(crate) fn at(&self, value: f64) -> f64 {
        let share = if self.logarithmic {
            (value.max(self.low) / self.low).log10() / (self.high / self.low).log10()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// Round values within the scale: powers of ten, or about five equal steps.
    pub(crate) fn ticks(&self) -> Vec<f64> {
        if self.logarithmic {
            let (first, last) = (self.low.log10().round() as i32, self.high.log10().round() as i32);
            let every = ((last - first) / 6 + 1).max(1);
            return (first..=last)
                .filter(|exponent| (exponent - first) % every == 0)
                .map(|exponent| 10f64.powi(exponent))
                .collect();
        }
        let step = round_step((self.high - self.low) / 6.0);
        let first = (self.low / step).ceil() as i64;
        (first..).map(|i| i as f64 * step).take_while(|tick| *tick <= self.high + step * 1e-9).collect()
    }
}

/// The nearest of 1, 2, 5 times a power of ten that is not smaller.
fn round_step(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    let mantissa = step / power;
    let nice = [1.0, 2.0, 5.0].into_iter().find(|nice| mantissa <= nice * 1.000_001).unwrap_or(10.0);
    nice * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_ticks_are_round_and_inside() {
        assert_eq!(
            Scale::linear((0.0, 1.0), (0.0, 100.0)).ticks(),
            [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]
        );
        assert_eq!(Scale::linear((0.0, 1.1), (0.0, 100.0)).ticks().len(), 6);
        assert_eq!(Scale::linear((0.0, 37.0), (0.0, 100.0)).ticks(), [0.0, 10.0, 20.0, 30.0]);
    }

    #[test]
    fn logarithmic_scales_end_at_powers_of_ten() {
        let scale = Scale::logarithmic((33.0, 620_000.0), (0.0, 100.0));
        assert_eq!(scale.ticks(), [10.0, 100.0, 1_000.0, 10_000.0, 100_000.0, 1_000_000.0]);
        assert!((scale.at(10.0) - 0.0).abs() < 1e-9 && (scale.at(1e6) - 100.0).abs() < 1e-9);
        assert!((scale.at(1e3) - 40.0).abs() < 1e-9);
    }

    #[test]
    fn values_beyond_the_ends_stay_inside_the_picture() {
        let scale = Scale::linear((0.0, 1.0), (10.0, 20.0));
        assert_eq!((scale.at(-5.0), scale.at(5.0)), (10.0, 20.0));
    }

    #[test]
    fn text_cannot_break_out_of_its_element() {
        let mut svg = Svg::new(10.0, 10.0, "a \"b\"");
        svg.text("", (0.0, 0.0), Anchor::Start, "<script>&");
        assert!(svg.file().contains("&lt;script&gt;&amp;") && svg.file().contains("a &quot;b&quot;"));
    }
}
