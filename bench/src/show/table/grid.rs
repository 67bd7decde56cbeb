//! The table as other programs take it: fields, and what is said below them.

use super::{Field, control, further_comparisons, groups, header, names_at};
use crate::analysis::summary::Summary;
use crate::show::table::legend;

/// The table proper, for other programs: without colours, and without padding.
pub(crate) struct Grid {
    pub(crate) header: Vec<String>,
    /// The column of the arm's name; those before it are settings.
    pub(crate) names_at: usize,
    pub(crate) lines: Vec<Vec<String>>,
    /// Whether a line is the first of its setting.
    pub(crate) begins_group: Vec<bool>,
    /// Notes below the table: signs, further comparisons, the A/A pair, warnings.
    pub(crate) notes: Vec<String>,
}

pub(crate) fn grid(summary: &Summary) -> Grid {
    let (header, groups) = (header(summary), groups(summary));
    let plain = |field: &Field| field.text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut notes = signs(summary);
    notes.extend(further_comparisons(summary));
    notes.extend(control(summary).map(|words| words.join(", ")));
    notes.extend(summary.warnings.iter().map(|warning| format!("warning: {warning}")));
    Grid {
        header,
        names_at: names_at(summary),
        begins_group: groups.iter().flat_map(|group| (0..group.len()).map(|i| i == 0)).collect(),
        lines: groups.iter().flatten().map(|line| line.iter().map(plain).collect()).collect(),
        notes,
    }
}

/// Explains columns, rows and signs whose names do not say what they mean.
pub(crate) fn signs(summary: &Summary) -> Vec<String> {
    legend::lines(summary, &header(summary))
}
