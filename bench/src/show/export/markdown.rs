//! The table as Markdown, as forges and notebooks render it.

use std::fmt::Write as _;

use crate::analysis::summary::Summary;
use crate::show::table;

pub(super) fn write(summary: &Summary) -> String {
    let grid = table::grid(summary);
    let mut text = format!("### {}\n\n{}\n\n", escape(&summary.outline.title), table::extent_line(summary));
    text += &rows(&grid.header, grid.names_at, &grid.lines);
    for line in grid.notes {
        let _ = writeln!(text, "\n{}", escape(&line));
    }
    text
}

/// A table whose figures stand at the right, and all up to the arm's name at the left.
fn rows(header: &[String], names_at: usize, lines: &[Vec<String>]) -> String {
    let line = |fields: &[String]| {
        let fields: Vec<String> = fields.iter().map(|field| escape(field)).collect();
        format!("| {} |\n", fields.join(" | "))
    };
    let alignment = (0..header.len()).map(|i| if i <= names_at { "---" } else { "---:" });
    let alignment = format!("| {} |\n", alignment.collect::<Vec<_>>().join(" | "));
    let lines: String = lines.iter().map(|fields| line(fields)).collect();
    line(header) + &alignment + &lines
}

/// Text in which nothing is taken for a mark.
fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        if "\\`*_{}[]<>#|~".contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::synthetic::{Sketch, World};

    #[test]
    fn every_row_has_the_headers_fields_whatever_the_names() {
        let sketch = Sketch::new()
            .axis("ratio", &["1", "8"])
            .arm("a|b", "tas")
            .arm("c", "mcs")
            .compare("c/a", "c", "a|b");
        let plan = sketch.plan(8);
        let summary = Summary::new(&plan.outline, &World::new(1).records(&plan));
        let text = write(&summary);
        let rows: Vec<&str> = text.lines().filter(|line| line.starts_with('|')).collect();
        let fields = |line: &str| line.replace("\\|", "").matches('|').count();
        assert_eq!(rows.len(), 2 + summary.rows.len(), "{text}");
        assert!(rows.iter().all(|row| fields(row) == fields(rows[0])), "{text}");
        assert!(
            rows.iter().any(|row| row.contains("a\\|b")) && rows[1].starts_with("| --- | --- | ---: |"),
            "{text}"
        );
        assert!(!text.contains('\u{1b}'), "no colours: {text}");
    }
}
