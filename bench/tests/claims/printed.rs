//! Figures as pages print them: `4.66 times (3.71 to 5.88)`, `1.19 (1.14 to 1.27)`, `1.07 to 1.56 times`, `8 times`, `86 %`.

use std::ops::Range;

/// A number in a text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Number {
    pub(crate) at: Range<usize>,
    digits: String,
}

impl Number {
    pub(crate) fn value(&self) -> f64 {
        self.digits.parse().expect("digits")
    }

    /// Whether this is "1.00" for an end of an interval that lies on one side of 1, which decides whether a difference is shown.
    pub(crate) fn hides_side_of_1(&self, value: f64) -> bool {
        let decimals = self.digits.split_once('.').map_or(0, |(_, decimals)| decimals.len());
        self.value() == 1.0 && value != 1.0 && decimals < 3
    }

    /// Whether `value` rounds to the digits that are printed. Zeros at the end of thousands count as rounding.
    pub(crate) fn is(&self, value: f64) -> bool {
        let decimals = self.digits.split_once('.').map_or(0, |(_, decimals)| decimals.len() as i32);
        let zeros = self.digits.len() - self.digits.trim_end_matches('0').len();
        let is_rounded = decimals == 0 && self.digits.len() >= 4;
        let last = if is_rounded { 10f64.powi(zeros as i32) } else { 10f64.powi(-decimals) };
        (value - self.value()).abs() <= last * 0.500_001
    }
}

/// A figure, or the ends of several.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Printed {
    /// A figure, perhaps with its interval.
    One(Number, Option<(Number, Number)>),
    /// The smallest and the largest of several.
    Between(Number, Number),
}

impl Printed {
    pub(crate) fn at(&self) -> Range<usize> {
        match self {
            Self::One(number, None) => number.at.clone(),
            Self::One(number, Some((_, last))) | Self::Between(number, last) => number.at.start..last.at.end,
        }
    }
}

/// A figure and the unit that follows it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Found {
    pub(crate) printed: Printed,
    /// Factor of the printed number: 0.01 for per cent.
    pub(crate) unit: f64,
}

impl Found {
    /// This figure in a text that has `by` bytes more before it.
    pub(crate) fn moved(self, by: usize) -> Self {
        let number = |it: Number| Number { at: it.at.start + by..it.at.end + by, ..it };
        let pair = |(low, high)| (number(low), number(high));
        let printed = match self.printed {
            Printed::One(value, interval) => Printed::One(number(value), interval.map(pair)),
            Printed::Between(low, high) => Printed::Between(number(low), number(high)),
        };
        Self { printed, ..self }
    }
}

/// The words of a text, with their places.
fn words(text: &str) -> Vec<(Range<usize>, &str)> {
    let mut words = Vec::new();
    let mut start = None;
    for (i, c) in text.char_indices().chain([(text.len(), ' ')]) {
        match (c.is_whitespace(), start) {
            (false, None) => start = Some(i),
            (true, Some(from)) => {
                words.push((from..i, &text[from..i]));
                start = None;
            }
            _ => {}
        }
    }
    words
}

/// The number that a word is, without brackets, commas and bold marks around it.
fn number(word: &(Range<usize>, &str)) -> Option<Number> {
    let (at, text) = word;
    let inner = text.trim_start_matches(['(', '*', '[', '>']);
    let start = at.start + text.len() - inner.len();
    let inner = inner.trim_end_matches(['*', ')', ',', '.', ':', ';', ']']);
    let is_number = inner.starts_with(|c: char| c.is_ascii_digit()) && inner.parse::<f64>().is_ok();
    (is_number && !inner.ends_with('.'))
        .then(|| Number { at: start..start + inner.len(), digits: inner.into() })
}

/// Whether nothing closes or separates behind the number of a word.
fn goes_on(word: &str) -> bool {
    word.trim_end_matches('*').ends_with(|c: char| c.is_ascii_digit())
}

fn is_word(word: Option<&(Range<usize>, &str)>, expected: &str) -> bool {
    word.is_some_and(|(_, text)| text.trim_matches(['*', '.', ',', ':', ';', ')']) == expected)
}

/// `(A to B)` from the word `i` on.
fn interval(words: &[(Range<usize>, &str)], i: usize) -> Option<(Number, Number)> {
    let [low, to, high] = words.get(i..i + 3)? else { return None };
    let is_interval = low.1.starts_with('(') && to.1 == "to" && high.1.contains(')');
    if is_interval { number(low).zip(number(high)) } else { None }
}

const UNITS: [(&str, f64); 8] =
    [("%", 0.01), ("M/s", 1e6), ("k/s", 1e3), ("/s", 1.0), ("s", 1e9), ("ms", 1e6), ("us", 1e3), ("ns", 1.0)];

/// The figures in a text.
pub(crate) fn figures(text: &str) -> Vec<Found> {
    let words = words(text);
    let (mut found, mut i) = (Vec::new(), 0);
    while i < words.len() {
        let Some(printed) = at(&words, i) else {
            i += 1;
            continue;
        };
        let end = printed.printed.at().end;
        found.push(printed);
        while i < words.len() && words[i].0.start < end {
            i += 1;
        }
    }
    found
}

fn at(words: &[(Range<usize>, &str)], i: usize) -> Option<Found> {
    let first = number(&words[i])?;
    let word = |at: usize| words.get(at);
    if let Some(interval) = interval(words, i + 1) {
        return Some(Found { printed: Printed::One(first, Some(interval)), unit: 1.0 });
    }
    if !goes_on(words[i].1) {
        return None;
    }
    if is_word(word(i + 1), "times") {
        return Some(Found { printed: Printed::One(first, interval(words, i + 2)), unit: 1.0 });
    }
    if is_word(word(i + 1), "%") {
        // The level of all intervals, which is no finding.
        let is_level = word(i + 2).is_some_and(|(_, text)| text.starts_with("interval")) && first.is(95.0);
        return (!is_level)
            .then(|| Found { printed: Printed::One(first, interval(words, i + 2)), unit: 0.01 });
    }
    let last =
        word(i + 2).and_then(number).filter(|_| is_word(word(i + 1), "to") && goes_on(words[i + 2].1))?;
    let unit = match word(i + 3) {
        it if is_word(it, "times") => 1.0,
        it if is_word(it, "%") => 0.01,
        // "0.89 to 0.99 of the ideal"
        it if is_word(it, "of") => 1.0,
        _ => return None,
    };
    Some(Found { printed: Printed::Between(first, last), unit })
}

/// The figures in the cell of a table: `50.4 ms (8.8 %)` has two, `1.26 (1.14 to 1.27)` one.
pub(crate) fn in_cell(cell: &str) -> Vec<Found> {
    let (mut found, mut start) = (Vec::new(), 0);
    while start < cell.len() {
        let figure = at_start(&cell[start..]).map(|figure| figure.moved(start));
        let from = figure.as_ref().map_or(start, |figure| figure.printed.at().end + 1).min(cell.len());
        found.extend(figure);
        let next = cell[from..].find(['(', '/']).map(|at| from + at + 1);
        start = next.unwrap_or(cell.len());
    }
    found
}

/// The figure that a piece of a cell begins with, whatever its unit.
fn at_start(cell: &str) -> Option<Found> {
    let words = words(cell);
    let first = words.first()?;
    // `617/s`
    let (digits, rest) = first.1.split_once("/s").map_or((first.1, ""), |(digits, _)| (digits, "/s"));
    let first = number(&(first.0.start..first.0.start + digits.len(), digits))?;
    if let Some(interval) = interval(&words, 1) {
        return Some(Found { printed: Printed::One(first, Some(interval)), unit: 1.0 });
    }
    let unit = words.get(1).map_or(rest, |(_, unit)| unit).trim_matches(['*', ',', ')']);
    let unit = UNITS.iter().find(|(name, _)| *name == unit).map_or(1.0, |(_, unit)| *unit);
    Some(Found { printed: Printed::One(first, None), unit })
}

/// Three significant digits; four next to 1, where the third is what it is about.
pub(crate) fn significant(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    if (0.9..1.1).contains(&value) {
        return format!("{value:.3}");
    }
    let rounded: f64 = format!("{value:.2e}").parse().expect("a number");
    let decimals = (2.0 - rounded.abs().log10().floor()).max(0.0) as usize;
    format!("{rounded:.decimals$}")
}

#[test]
fn figures_are_found_in_prose_across_lines_and_in_cells() {
    let shown = |text: &str| {
        let show = |found: &Found| (text[found.printed.at()].to_owned(), found.unit);
        figures(text).iter().map(show).collect::<Vec<_>>()
    };
    assert_eq!(
        shown("makes it 4.66 times (3.71\n   to 5.88) as fast"),
        [("4.66 times (3.71\n   to 5.88".into(), 1.0)]
    );
    assert_eq!(
        shown("**1.19** (1.14 to 1.27), then 86 %."),
        [("1.19** (1.14 to 1.27".into(), 1.0), ("86".into(), 0.01)]
    );
    assert_eq!(shown("1.07 to 1.56 times, 8 times"), [("1.07 to 1.56".into(), 1.0), ("8".into(), 1.0)]);
    assert_eq!(shown("16 vCPUs share 2 pCPUs at 1 ms; in 2010, times were other"), []);
    assert_eq!(shown("95 % intervals; 22.6 % (17.1 to 25.9)"), [("22.6 % (17.1 to 25.9".into(), 0.01)]);
    let cell = |text: &str| {
        in_cell(text)
            .iter()
            .map(|found| (text[found.printed.at()].to_owned(), found.unit))
            .collect::<Vec<_>>()
    };
    assert_eq!(cell(" 1.16 k/s "), [("1.16".into(), 1e3)]);
    assert_eq!(cell("617/s"), [("617".into(), 1.0)]);
    assert_eq!(cell(" 43.7 ms (0.2 %) "), [("43.7".into(), 1e6), ("0.2".into(), 0.01)]);
    assert_eq!(cell(" not done (92 %) "), [("92".into(), 0.01)]);
    assert_eq!(cell("330 ms / 1.28 s"), [("330".into(), 1e6), ("1.28".into(), 1e9)]);
    assert_eq!(cell("82 / 85 %"), [("82".into(), 1.0), ("85".into(), 0.01)]);
    assert_eq!(cell(" **1.19** (1.14 to 1.27) "), [("1.19** (1.14 to 1.27".into(), 1.0)]);
}

#[test]
fn a_record_rounds_to_the_printed_digits_or_does_not() {
    let printed = |digits: &str| Number { at: 0..0, digits: digits.into() };
    for (digits, value, is) in [
        ("4.66", 4.6649, true),
        ("4.66", 4.6651, false),
        ("8", 7.96, true),
        ("10", 12.0, false),
        ("3650", 3652.0, true),
        ("3650", 3662.0, false),
    ] {
        assert_eq!(printed(digits).is(value), is, "{digits} for {value}");
    }
    assert_eq!([1.0449, 31.68, 3652.0, 0.0447].map(significant), ["1.045", "31.7", "3650", "0.0447"]);
    assert!(printed("1.00").hides_side_of_1(1.002) && !printed("1.000").hides_side_of_1(0.9997));
}
