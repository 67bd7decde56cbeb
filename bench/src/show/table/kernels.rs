//! The table where arms are kernels: a line for each figure by which they are compared.

use super::{Field, by_setting, of_axes, of_headline, plus_minus};
use crate::analysis::summary::{Row, Summary, Told};
use crate::text::quantity::si;

/// Columns between those of the setting and that of the first comparison.
pub(super) const HEADER: [&str; 3] = ["kernel", "figure", "value"];

/// The lines of each setting.
pub(super) fn groups(summary: &Summary) -> Vec<Vec<Vec<Field>>> {
    by_setting(&super::arms(summary), |row, is_first| {
        let lines = figures(summary, row).into_iter().enumerate();
        lines.map(|(at, name)| line(summary, row, &name, is_first && at == 0, at == 0)).collect()
    })
}

/// The figures that are compared, each once; where none is, all but the lock events.
fn figures(summary: &Summary, row: &Row) -> Vec<String> {
    let mut compared: Vec<String> = Vec::new();
    for name in summary.outline.comparisons.iter().filter_map(|it| it.of.figure()) {
        if !compared.iter().any(|known| known == name) {
            compared.push(name.to_owned());
        }
    }
    if compared.is_empty() {
        compared = row.figures.keys().filter(|name| !name.contains('.')).cloned().collect();
    }
    compared
}

fn line(summary: &Summary, row: &Row, name: &str, new_setting: bool, new_arm: bool) -> Vec<Field> {
    let mut fields = of_axes(summary, &row.setting, row.vcpus, new_setting);
    fields.push(Field::new(if new_arm { row.arm.as_str() } else { "" }));
    fields.push(Field::new(name));
    fields.push(Field::new(row.figures.get(name).map_or("-".into(), value)));
    fields.extend(of_headline(summary, &row.setting, &row.arm, Some(name)));
    fields
}

/// `12.3 k pages/s +- 2.1 %`, or the range where there is no estimate.
pub(super) fn value(figure: &Told) -> String {
    let unit = &figure.unit;
    match &figure.estimate {
        Some(estimate) => format!("{} {unit}{}", si(estimate.hodges_lehmann), plus_minus(estimate)),
        None if figure.least == figure.most => format!("{} {unit}", si(figure.least)),
        None => format!("{} to {} {unit}", si(figure.least), si(figure.most)),
    }
}
