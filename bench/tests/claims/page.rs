//! A page with the comments that tie its figures to records, and what is wrong with it.
//!
//! | comment | what it says |
//! | --- | --- |
//! | `<!-- hostile: grace (tas) @ ratio=8; slice end @ ratio=8 -->` | The figures before it in this paragraph, list item or table row, in their order. |
//! | `<!-- published -->` | This figure is one that `haltkick reproduce` knows as published; may stand between others. |
//! | `<!-- table hostile: grace (tas); slice end \| @ ratio=2; @ ratio=8 -->` | The table before it: what its rows are, then what its last columns are, a `*` standing for the other's name. `-` skips one; `a & b` are two figures of one cell. `bold excludes 1` or `bold above 2` behind another `\|` says what is bold. |
//! | `<!-- lines of overcommit -->` | Each line of the block of text before it, perhaps with columns left out, is one of the record's table. |
//! | `<!-- box of hostile -->` | The quoted lines before it are what the manifest says. |

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::kept::{Figure, Record};
use crate::printed::{self, Found, Number, Printed, significant};
use crate::{boxes, tables};

/// All records, and the published figures.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) records: BTreeMap<String, Record>,
    pub(crate) published: Vec<f64>,
}

/// A page under examination.
#[derive(Debug)]
pub(crate) struct Page<'k> {
    pub(crate) known: &'k Known,
    pub(crate) text: String,
    /// The text with blanks for code and comments, so that places stay.
    pub(crate) prose: String,
    pub(crate) problems: Vec<String>,
    /// Corrections of the text.
    pub(crate) edits: Vec<(Range<usize>, String)>,
    /// Parts whose figures name a record.
    tied: Vec<Range<usize>>,
}

impl<'k> Page<'k> {
    pub(crate) fn examine(known: &'k Known, text: &str) -> Self {
        let (prose, comments) = prose(text);
        let (text, tied) = (text.to_owned(), vec![]);
        let mut page = Self { known, text, prose, problems: vec![], edits: vec![], tied };
        for comment in comments {
            let inner = page.text[comment.start + 4..comment.end - 3].to_owned();
            let inner = inner.split_whitespace().collect::<Vec<_>>().join(" ");
            if let Some(table) = inner.strip_prefix("table ") {
                tables::compare(&mut page, comment.start, table);
            } else if let Some(record) = inner.strip_prefix("lines of ") {
                tables::compare_lines(&mut page, comment.start, record);
            } else if let Some(records) = inner.strip_prefix("box of ") {
                boxes::compare(&mut page, comment.start, records);
            } else {
                page.tie(comment.start, &inner);
            }
        }
        page
    }

    pub(crate) fn complain(&mut self, at: usize, message: &str) {
        let line = self.text[..at].lines().count().max(1);
        self.problems.push(format!("line {line}: {message}"));
    }

    pub(crate) fn record(&mut self, at: usize, name: &str) -> Option<&'k Record> {
        let found = self.known.records.get(name);
        if found.is_none() {
            self.complain(at, &format!("no record '{name}' in docs/results"));
        }
        found
    }

    pub(crate) fn mark_tied(&mut self, range: Range<usize>) {
        self.tied.push(range);
    }

    /// The figures of a paragraph that no comment ties, in a part of the page.
    pub(crate) fn untied(&self, part: Range<usize>) -> Vec<String> {
        let found = printed::figures(&self.prose[part.clone()]).into_iter();
        let places =
            found.map(|found| found.printed.at().start + part.start..found.printed.at().end + part.start);
        let is_untied = |place: &Range<usize>| !self.tied.iter().any(|tied| tied.contains(&place.start));
        let shown = |place: Range<usize>| self.text[place].split_whitespace().collect::<Vec<_>>().join(" ");
        places.filter(is_untied).map(shown).collect()
    }

    /// Compares the figures between the last comment, or the beginning of the block, and a comment.
    fn tie(&mut self, comment: usize, inner: &str) {
        if self.text[..comment].rsplit('\n').next().is_some_and(|line| line.trim().is_empty()) {
            self.complain(comment, "a comment that begins a line ends the paragraph: put it behind a word");
        }
        let start = block_start(&self.prose[..comment]);
        let start =
            self.tied.iter().map(|tied| tied.end).filter(|end| *end <= comment).fold(start, usize::max);
        let found = printed::figures(&self.prose[start..comment]);
        let references: Vec<&str> = inner.split(';').map(str::trim).collect();
        if found.len() != references.len() {
            let shown: Vec<&str> = found.iter().map(|it| &self.prose[start..][it.printed.at()]).collect();
            let message = format!("{} references '{inner}' for the figures {shown:?}", references.len());
            self.complain(comment, &message);
        }
        let mut record = "";
        for (found, reference) in found.into_iter().zip(references) {
            let found = found.moved(start);
            let (named, figure) = match reference.split_once(": ") {
                Some((name, figure)) if self.known.records.contains_key(name) => (name, figure),
                _ => (record, reference),
            };
            record = named;
            self.compare(&found, record, figure);
        }
        self.mark_tied(start..comment);
    }

    /// Compares a printed figure with the one that a reference names.
    pub(crate) fn compare(&mut self, found: &Found, record: &str, reference: &str) {
        let at = found.printed.at();
        if reference == "published" {
            let is_known = |number: &Number| {
                self.known.published.iter().any(|published| number.is(published / found.unit))
            };
            if !matches!(&found.printed, Printed::One(number, None) if is_known(number)) {
                let message = format!("'{}' is no published figure", &self.text[at.clone()]);
                self.complain(at.start, &message);
            }
            return;
        }
        let Some(record) = self.record(at.start, record) else { return };
        let (name, settings) = reference.split_once('@').unwrap_or((reference, ""));
        let settings: BTreeSet<String> = settings.split_whitespace().map(String::from).collect();
        let meant = record.find(name.trim(), &settings);
        match (&found.printed, &meant[..]) {
            (Printed::One(value, interval), [figure]) => {
                self.compare_one(value, interval.as_ref(), figure, found.unit)
            }
            (Printed::Between(low, high), [_, _, ..]) => {
                let values = || meant.iter().map(|figure| figure.value);
                self.number(low, values().fold(f64::INFINITY, f64::min) / found.unit);
                self.number(high, values().fold(0.0, f64::max) / found.unit);
            }
            _ => {
                let message =
                    format!("'{}': the record has {} of '{reference}'", &self.text[at.clone()], meant.len());
                self.complain(at.start, &message);
            }
        }
    }

    fn compare_one(
        &mut self,
        value: &Number,
        interval: Option<&(Number, Number)>,
        figure: &Figure,
        unit: f64,
    ) {
        self.number(value, figure.value / unit);
        match (interval, figure.interval) {
            (Some((low, high)), Some(ends)) => {
                for (printed, end) in [(low, ends.0 / unit), (high, ends.1 / unit)] {
                    if printed.hides_side_of_1(end) {
                        self.correct(printed, end);
                    } else {
                        self.number(printed, end);
                    }
                }
            }
            (Some(_), None) => self.complain(value.at.start, "the record has no interval"),
            (None, _) => {}
        }
    }

    fn number(&mut self, printed: &Number, value: f64) {
        if !printed.is(value) {
            self.correct(printed, value);
        }
    }

    fn correct(&mut self, printed: &Number, value: f64) {
        let message = format!("'{}' is {value:.5} in the record", &self.text[printed.at.clone()]);
        self.complain(printed.at.start, &message);
        self.edits.push((printed.at.clone(), significant(value)));
    }

    /// The text with what the records say.
    pub(crate) fn corrected(&self) -> String {
        let mut edits = self.edits.clone();
        edits.sort_by_key(|(range, _)| std::cmp::Reverse(range.start));
        edits.dedup_by(|a, b| a.0 == b.0);
        let mut text = self.text.clone();
        for (range, new) in edits {
            text.replace_range(range, &new);
        }
        text
    }
}

/// The text with blanks for code and comments, and where comments are.
fn prose(text: &str) -> (String, Vec<Range<usize>>) {
    let mut prose = text.as_bytes().to_vec();
    let (mut comments, mut i) = (Vec::new(), 0);
    while i < text.len() {
        let rest = &text.as_bytes()[i..];
        let at_line = i == 0 || text.as_bytes()[i - 1] == b'\n';
        let (opening, closing) = match rest {
            [b'<', b'!', b'-', b'-', ..] => (4, "-->"),
            [b'`', b'`', b'`', ..] if at_line => (3, "\n```"),
            [b'`', ..] => (1, "`"),
            _ => {
                i += 1;
                continue;
            }
        };
        let end = find(&text.as_bytes()[i + opening..], closing.as_bytes());
        let end = end.map_or(text.len(), |end| i + opening + end + closing.len());
        if opening == 4 {
            comments.push(i..end);
        }
        prose[i..end].iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
        i = end;
    }
    (String::from_utf8(prose).expect("blanks for whole pieces"), comments)
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

/// The beginning of the paragraph, list item or table row that a text ends in.
fn block_start(before: &str) -> usize {
    let mut start = before.len();
    for line in before.split_inclusive('\n').rev() {
        let words = line.trim_start();
        if words.is_empty() && start != before.len() {
            break;
        }
        start -= line.len();
        let is_item = words.starts_with("- ") || words.starts_with("* ") || words.starts_with('|');
        if is_item || words.split_once(". ").is_some_and(|(n, _)| n.parse::<u32>().is_ok()) {
            break;
        }
    }
    start
}
