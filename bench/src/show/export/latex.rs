//! The table as LaTeX, for the package `booktabs`.

use std::fmt::Write as _;

use crate::analysis::summary::Summary;
use crate::show::table;

pub(super) fn write(summary: &Summary) -> String {
    let grid = table::grid(summary);
    let columns: String =
        (0..grid.header.len()).map(|i| if i <= grid.names_at { 'l' } else { 'r' }).collect();
    let mut text = format!(
        "% \\usepackage{{booktabs}}\n\\begin{{table}}\n\\centering\n\\caption{{{}. {}}}\n\\begin{{tabular}}{{{columns}}}\n\\toprule\n",
        escape(&summary.outline.title),
        escape(&table::extent_line(summary))
    );
    text += &line(&grid.header);
    text += "\\midrule\n";
    for (i, fields) in grid.lines.iter().enumerate() {
        if i > 0 && grid.begins_group[i] {
            text += "\\addlinespace\n";
        }
        text += &line(fields);
    }
    text += "\\bottomrule\n\\end{tabular}\n";
    for note in &grid.notes {
        let _ = writeln!(text, "\n\\smallskip{{\\footnotesize {}}}", escape(note));
    }
    text + "\\end{table}\n"
}

fn line(fields: &[String]) -> String {
    let fields: Vec<String> = fields.iter().map(|field| escape(field)).collect();
    format!("{} \\\\\n", fields.join(" & "))
}

/// Text in which nothing is taken for a command. Signs of plus and minus, and of order, become those of mathematics.
fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.replace("+-", "\u{b1}").chars() {
        match c {
            '\u{b1}' => escaped += "$\\pm$",
            '<' | '>' => _ = write!(escaped, "${c}$"),
            '\\' => escaped += "\\textbackslash{}",
            '~' => escaped += "\\textasciitilde{}",
            '^' => escaped += "\\textasciicircum{}",
            '&' | '%' | '$' | '#' | '_' | '{' | '}' => _ = write!(escaped, "\\{c}"),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::synthetic::{Sketch, World};

    #[test]
    fn nothing_in_a_name_is_a_command_and_every_row_ends() {
        let sketch = Sketch::new().axis("ratio", &["1", "8"]).arm("50 % & a_b", "tas").arm("c", "mcs");
        let plan = sketch.plan(8);
        let summary = Summary::new(&plan.outline, &World::new(1).records(&plan));
        let text = write(&summary);
        let rows: Vec<&str> = text.lines().filter(|line| line.ends_with("\\\\")).collect();
        assert_eq!(rows.len(), 1 + summary.rows.len(), "{text}");
        let fields = |row: &str| row.replace("\\&", "").matches('&').count();
        assert!(rows.iter().all(|row| fields(row) == fields(rows[0])), "{text}");
        assert!(
            text.contains("50 \\% \\& a\\_b") && text.contains("$\\pm$") && !text.contains("+-"),
            "{text}"
        );
        assert_eq!(text.matches("\\begin{").count(), text.matches("\\end{").count());
        assert_eq!(
            escape("a\\b ~ ^ {x} > 1"),
            "a\\textbackslash{}b \\textasciitilde{} \\textasciicircum{} \\{x\\} $>$ 1"
        );
    }
}
