//! Tables of figures, and blocks of text that show a printed table.

use crate::kept::Figure;
use crate::page::Page;
use crate::printed;

/// Compares the Markdown table that ends before `comment`.
pub(crate) fn compare(page: &mut Page<'_>, comment: usize, spec: &str) {
    let Some((record, spec)) = spec.split_once(": ") else {
        return page.complain(comment, "write `table RECORD: ROWS | COLUMNS`");
    };
    let parts: Vec<Vec<&str>> =
        spec.split('|').map(|part| part.split(';').map(str::trim).collect()).collect();
    let [rows, columns, rest @ ..] = &parts[..] else {
        return page.complain(comment, "write `table RECORD: ROWS | COLUMNS`");
    };
    let bold = rest.first().and_then(|rule| rule.first()).copied();
    let lines = lines_of_table(&page.prose[..comment]);
    page.mark_tied(lines.first().map_or(comment, |line| line.start)..comment);
    // A header and the line below it come first.
    let lines = lines.get(2..).unwrap_or_default();
    if lines.len() != rows.len() {
        return page.complain(comment, &format!("{} rows for a table of {}", rows.len(), lines.len()));
    }
    for (line, row) in lines.iter().zip(rows) {
        let cells = cells(&page.prose, line.clone());
        if cells.len() <= columns.len() {
            return page.complain(line.start, "the row has too few columns");
        }
        let cells = &cells[cells.len() - columns.len()..];
        for (cell, column) in cells.iter().zip(columns) {
            if *row != "-" && *column != "-" {
                compare_cell(page, cell.clone(), record, &combined(row, column), bold);
            }
        }
    }
}

/// The lines of the table that a text ends with.
fn lines_of_table(before: &str) -> Vec<std::ops::Range<usize>> {
    let (mut lines, mut end) = (Vec::new(), before.len());
    for line in before.split_inclusive('\n').rev() {
        let start = end - line.len();
        match (line.starts_with('|'), lines.is_empty()) {
            (true, _) => lines.push(start..end),
            (false, true) if line.trim().is_empty() => {}
            (false, _) => break,
        }
        end = start;
    }
    lines.reverse();
    lines
}

fn cells(text: &str, line: std::ops::Range<usize>) -> Vec<std::ops::Range<usize>> {
    let (mut cells, mut start) = (Vec::new(), None);
    for i in line {
        if text.as_bytes()[i] == b'|' {
            cells.extend(start.map(|start| start..i));
            start = Some(i + 1);
        }
    }
    cells
}

/// `NAME @ SETTINGS` of a row and a column, of which either may have both. A `*` in one name stands for the other.
fn combined(row: &str, column: &str) -> String {
    let split = |part: &str| {
        let (name, settings) = part.split_once('@').unwrap_or((part, ""));
        (name.trim().to_owned(), settings.trim().to_owned())
    };
    let ((row, at_row), (column, at_column)) = (split(row), split(column));
    let name = match (column.contains('*'), row.contains('*')) {
        (true, _) => column.replace('*', &row),
        (_, true) => row.replace('*', &column),
        _ => column + &row,
    };
    format!("{name} @ {at_row} {at_column}")
}

fn compare_cell(
    page: &mut Page<'_>,
    cell: std::ops::Range<usize>,
    record: &str,
    reference: &str,
    bold: Option<&str>,
) {
    let start = cell.start;
    let text = page.prose[cell].to_owned();
    let mut found = printed::in_cell(&text);
    // "82 / 85 %"
    if let Some(unit) = found.last().map(|last| last.unit).filter(|_| text.trim_end().ends_with('%')) {
        found.iter_mut().for_each(|figure| figure.unit = figure.unit.min(unit));
    }
    let references: Vec<String> = reference
        .split_once('@')
        .map(|(names, at)| names.split('&').map(|name| format!("{} @{at}", name.trim())).collect())
        .unwrap_or_default();
    let is_there = |reference: &String| meant(page, record, reference).is_some();
    // "not done", "none tried"
    let there: Vec<String> = references.iter().filter(|reference| is_there(reference)).cloned().collect();
    if there.len() != found.len() {
        let message = format!("{} figures of '{reference}' for the cell '{}'", there.len(), text.trim());
        return page.complain(start, &message);
    }
    for (found, reference) in found.into_iter().zip(&there) {
        page.compare(&found.moved(start), record, reference);
    }
    let Some(figure) = there.first().and_then(|reference| meant(page, record, reference)) else { return };
    let Some((low, high)) = figure.interval.filter(|_| text.contains(" to ")) else { return };
    let shows_none = low <= 1.0 && high >= 1.0;
    if text.contains("no difference shown") != shows_none && text.contains("difference") {
        page.complain(start, &format!("'{}': is a difference shown?", text.trim()));
    }
    let should_be_bold = match bold.and_then(|rule| rule.strip_prefix("bold ")) {
        Some("excludes 1") => !shows_none,
        Some(rule) => match rule.strip_prefix("above ").and_then(|bound| bound.parse::<f64>().ok()) {
            Some(bound) => low > bound,
            None => return page.complain(start, &format!("no rule for bold figures: '{rule}'")),
        },
        None => return,
    };
    if should_be_bold != text.contains("**") {
        page.complain(
            start,
            &format!("'{}' should {}be bold", text.trim(), if should_be_bold { "" } else { "not " }),
        );
    }
}

fn meant(page: &Page<'_>, record: &str, reference: &str) -> Option<Figure> {
    let (name, settings) = reference.split_once('@')?;
    let settings = settings.split_whitespace().map(String::from).collect();
    page.known.records.get(record)?.find(name.trim(), &settings).first().map(|figure| (*figure).clone())
}

/// Compares the block of text that ends before `comment` with the record's table: its lines in their order, perhaps without some
/// columns.
pub(crate) fn compare_lines(page: &mut Page<'_>, comment: usize, record: &str) {
    let Some(record) = page.record(comment, record) else { return };
    let before = &page.text[..comment];
    let Some((above, _)) = before.rsplit_once("\n```") else {
        return page.complain(comment, "no block of text before it");
    };
    let begin = above.rfind("```text\n").map_or(above.len(), |begin| begin + "```text\n".len());
    let mut kept = record.table.lines();
    let shown: Vec<String> = above[begin..].lines().map(String::from).collect();
    for (i, line) in shown.iter().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let rest = kept.clone();
        if !kept.any(|candidate| is_part(line, candidate)) {
            kept = rest;
            page.complain(
                begin,
                &format!("line {} of the block is not in the record's table: {line}", i + 1),
            );
        }
    }
}

/// Whether the words of `line` are among those of `whole`, in that order.
fn is_part(line: &str, whole: &str) -> bool {
    let mut words = whole.split_whitespace();
    line.split_whitespace().all(|word| words.any(|candidate| candidate == word))
}

#[test]
fn a_line_with_columns_left_out_is_part_of_the_printed_one() {
    let whole = "   16  tas   50.9 k/s +-  32 %  0.0835  0.282  19/32  > 9 ms";
    assert!(is_part("tas  50.9 k/s +- 32 %   0.0835   19/32", whole));
    assert!(!is_part("tas  50.8 k/s +- 32 %   0.0835   19/32", whole));
}
