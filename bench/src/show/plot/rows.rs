//! Pictures with a row per setting and arm: names at the left, remarks at the right, and what is drawn between them.

use super::Data;
use crate::show::svg::{Anchor, Svg, WIDTH, text_width};

const ROW: f64 = 17.0;
const HEADING: f64 = 24.0;
/// Names that would take more of the picture than this stand above their rows.
const MOST_FOR_NAMES: f64 = 0.3;

/// Positions of rows and of their parts.
pub(super) struct Rows {
    /// Ends of what is drawn.
    pub(super) left: f64,
    pub(super) right: f64,
    names_above: bool,
}

impl Rows {
    pub(super) fn new<'a>(data: &Data<'_>, remarks: impl Iterator<Item = &'a str>) -> Self {
        Self::named(data.arms().iter().map(String::as_str), remarks)
    }

    /// For rows with these names.
    pub(super) fn named<'a, 'b>(
        names: impl Iterator<Item = &'a str>,
        remarks: impl Iterator<Item = &'b str>,
    ) -> Self {
        let names = widest(names) + 16.0;
        let remarks = widest(remarks) + 18.0;
        let names_above = names > WIDTH * MOST_FOR_NAMES;
        let left = if names_above { 8.0 } else { names };
        Self { left, right: WIDTH - remarks, names_above }
    }

    /// Height of one row.
    pub(super) fn pitch(&self) -> f64 {
        if self.names_above { ROW + 15.0 } else { ROW }
    }

    pub(super) fn height(&self, settings: usize, rows: usize) -> f64 {
        settings as f64 * HEADING + rows as f64 * self.pitch() + 10.0
    }

    /// The remarks' title, at the right.
    pub(super) fn remarks_title(svg: &mut Svg, y: f64, title: &str) {
        svg.text("soft", (WIDTH - 4.0, y), Anchor::End, title);
    }

    /// A setting's name; returns the top of its first row.
    pub(super) fn heading(&self, svg: &mut Svg, y: f64, name: &str) -> f64 {
        svg.text("title", (8.0, y + 16.0), Anchor::Start, name);
        y + HEADING
    }

    /// Name and remark of the row whose top is `y`; returns the top of what is drawn.
    pub(super) fn row(&self, svg: &mut Svg, y: f64, name: &str, remark: &str) -> f64 {
        let top = if self.names_above { y + 15.0 } else { y };
        if self.names_above {
            svg.text("", (self.left, y + 11.0), Anchor::Start, name);
        } else {
            svg.text("", (self.left - 8.0, y + 11.0), Anchor::End, name);
        }
        svg.text("", (self.right + 14.0, top + 11.0), Anchor::Start, remark);
        top
    }
}

fn widest<'a>(texts: impl Iterator<Item = &'a str>) -> f64 {
    texts.map(text_width).fold(0.0, f64::max)
}
