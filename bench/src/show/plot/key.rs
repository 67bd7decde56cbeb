//! The key of a picture: its colours, dashes and markers, in as many columns as there is room for.

use crate::show::svg::{Anchor, Svg, WIDTH, text_width};

const LINE: f64 = 17.0;
const SAMPLE: f64 = 34.0;
/// Between the key and the edges of its picture.
const MARGIN: f64 = 8.0;

/// Names in columns.
pub(super) struct Key<'a> {
    names: Vec<&'a str>,
    column: f64,
    columns: usize,
}

impl<'a> Key<'a> {
    pub(super) fn new(names: impl IntoIterator<Item = &'a str>) -> Self {
        let names: Vec<&str> = names.into_iter().collect();
        let widest = names.iter().map(|name| text_width(name)).fold(0.0, f64::max);
        let column = SAMPLE + widest + 8.0;
        let columns =
            ((WIDTH - 2.0 * MARGIN) / column).floor().clamp(1.0, names.len().max(1) as f64) as usize;
        Self { names, column, columns }
    }

    pub(super) fn height(&self) -> f64 {
        self.names.len().div_ceil(self.columns) as f64 * LINE + 4.0
    }

    /// Draws each entry with `sample`, which is given the entry and the left end of its middle.
    pub(super) fn draw(&self, svg: &mut Svg, top: f64, sample: impl Fn(&mut Svg, usize, (f64, f64))) {
        for (i, name) in self.names.iter().enumerate() {
            let x = MARGIN + (i % self.columns) as f64 * self.column;
            let y = top + (i / self.columns) as f64 * LINE;
            sample(svg, i, (x, y + 8.0));
            svg.text("", (x + SAMPLE - 6.0, y + 12.0), Anchor::Start, name);
        }
    }
}

/// Line and marker of a series.
pub(super) fn of_series(svg: &mut Svg, index: usize, (x, y): (f64, f64)) {
    svg.path(&[(x, y), (x + 22.0, y)], index);
    svg.marker((x + 11.0, y), index, "");
}

/// Shade of an activity.
pub(super) fn of_shade(svg: &mut Svg, fill: &str, (x, y): (f64, f64)) {
    svg.rectangle((x + 8.0, y - 6.0), 14.0, 12.0, fill, "");
}
