//! Columns of a table, made from the rows of the table of figures, and which of them a terminal has room for.

use anstyle::Style;

use super::{FAINT, Field, GAP, of_axes, of_headline, plus_minus, widths};
use crate::analysis::summary::{Row, Summary, Told};
use crate::record::figures::{COMPLETION, Center, Column, FIGURES, Figure, Shown, Unit};
use crate::record::place::Role;
use crate::text::quantity::si;
use crate::text::wrap::WIDTH;

/// Columns that say the setting stand before the arm's name.
pub(super) fn names_at(summary: &Summary) -> usize {
    summary.outline.axes.len() + usize::from(!summary.outline.tells_vcpus())
}

/// The figures that the table of arms has; those of the report alone are not among them.
pub(crate) fn shown(summary: &Summary) -> Vec<&'static Figure> {
    let has_fixed_work = summary.rows.iter().any(|row| row.figure(COMPLETION).is_some());
    let is_shown = |figure: &&Figure| match figure.column.shown {
        shown if !summary.together.is_empty() => shown == Shown::OfAllGuests,
        Shown::Always => true,
        Shown::OfWindows => !has_fixed_work,
        Shown::OfWork => has_fixed_work,
        Shown::IfAny => summary.rows.iter().any(|row| is_any(row, figure)),
        Shown::InReport | Shown::Picked | Shown::OfAllGuests => false,
    };
    FIGURES.iter().filter(is_shown).collect()
}

/// Whether it is above 0 for an arm.
fn is_any(row: &Row, figure: &Figure) -> bool {
    let is_of_arm = row.role != Role::Control && !(figure.needs_lock && row.role == Role::Ideal);
    let center = |it: &Told| if figure.center == Some(Center::Median) { it.median } else { it.most };
    is_of_arm && row.figure(figure.name).is_some_and(|it| center(it) > 0.0)
}

pub(super) fn header(summary: &Summary) -> Vec<String> {
    let mut header: Vec<String> = summary.outline.axes.iter().map(|axis| axis.key.clone()).collect();
    header.extend((!summary.outline.tells_vcpus()).then(|| "vCPUs".to_owned()));
    let names: Vec<&str> = match summary.of_kernels {
        true => OF_KERNELS.into(),
        false => shown(summary).iter().map(|figure| figure.column.heading).collect(),
    };
    let arm = if summary.of_kernels { "kernel" } else { "lock" };
    header.extend(std::iter::once(arm).chain(names).map(String::from));
    header.extend(summary.outline.comparisons.first().map(|it| it.name.clone()));
    header
}

/// The lines of an arm, or of all guests of it: one, and of a kernel one for each figure.
pub(super) fn lines(summary: &Summary, row: &Row, new_setting: bool) -> Vec<Vec<Field>> {
    let of_kernel = |name: String| {
        let value = row.figure(&name).map_or("-".into(), printed);
        (Some(name.clone()), vec![name, value])
    };
    let contents: Vec<(Option<String>, Vec<String>)> = match summary.of_kernels {
        true => compared(summary, row).into_iter().map(of_kernel).collect(),
        false => vec![(None, shown(summary).iter().map(|it| value(row, it)).collect())],
    };
    let style = if row.role == Role::Ideal { FAINT } else { Style::new() };
    let line = |(at, (figure, texts)): (usize, (Option<String>, Vec<String>))| {
        let mut fields = of_axes(summary, &row.setting, row.vcpus, new_setting && at == 0);
        let arm = if at == 0 { row.arm.clone() } else { String::new() };
        fields.extend(std::iter::once(arm).chain(texts).map(|text| Field { text, style }));
        fields.extend(of_headline(summary, &row.setting, &row.arm, figure.as_deref()));
        fields
    };
    contents.into_iter().enumerate().map(line).collect()
}

/// The figure of an arm, with its interval where the column has one.
pub(crate) fn value(row: &Row, figure: &Figure) -> String {
    let (column, is_ideal) = (figure.column, row.role == Role::Ideal);
    let Some(told) = row.figure(figure.name) else { return column.none.into() };
    if figure.needs_lock && is_ideal {
        // No vCPU waits: an apparent wait is a slice that ends between two timestamps.
        return column.none.into();
    }
    let at_least = if row.at_least.iter().any(|name| name == figure.name) { "> " } else { "" };
    match (figure.center, &told.estimate) {
        (Some(Center::Median), _) if figure.unit == Unit::Vcpus && told.median > 0.0 => {
            format!("{}/{}", figure.unit.show(told.median), row.vcpus)
        }
        (Some(Center::Median), _) => figure.unit.show(told.median),
        (Some(Center::Most), _) => format!("{:.0}", told.most),
        // The ideal's own efficiency is 1 by definition, or the serial bound's share of it: its interval says nothing.
        (_, Some(it)) if column.has_interval => {
            let interval =
                if is_ideal && figure.unit == Unit::Share { NO_INTERVAL.into() } else { plus_minus(it) };
            format!("{at_least}{}{interval}", figure.unit.show(it.hodges_lehmann))
        }
        (_, Some(it)) => format!("{at_least}{}", figure.unit.show(it.hodges_lehmann)),
        // A figure that is 0 in some runs has a mean, and no estimate.
        (_, None) if 2 * told.runs > row.runs && figure.unit != Unit::Share => {
            let interval = if column.has_interval { NO_INTERVAL } else { "" };
            format!("{}{interval}", figure.unit.show(told.mean))
        }
        (_, None) => column.none.into(),
    }
}

/// As wide as an interval.
const NO_INTERVAL: &str = "         ";

/// Columns between the kernel's name and the first comparison.
const OF_KERNELS: [&str; 2] = ["figure", "value"];

/// The figures that are compared, each once; where none is, all but the lock events.
fn compared(summary: &Summary, row: &Row) -> Vec<String> {
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

/// `12.3 k pages/s +- 2.1 %`, or the range where there is no estimate.
fn printed(figure: &Told) -> String {
    let unit = &figure.unit;
    match &figure.estimate {
        Some(estimate) => format!("{} {unit}{}", si(estimate.hodges_lehmann), plus_minus(estimate)),
        None if figure.least == figure.most => format!("{} {unit}", si(figure.least)),
        None => format!("{} to {} {unit}", si(figure.least), si(figure.most)),
    }
}

/// The table without what there is no room for.
pub(super) fn fitting(mut header: Vec<String>, mut lines: Vec<Vec<Field>>) -> (Vec<String>, Vec<Vec<Field>>) {
    for (_, column, is_column) in least_missed() {
        if width(&header, &lines) <= WIDTH {
            break;
        }
        let Some(at) = header.iter().position(|name| name == column.heading) else { continue };
        for line in lines.iter_mut().filter(|line| !line.is_empty()) {
            if is_column {
                line.remove(at);
            } else {
                let text = line[at].text.split(" +-").next().unwrap_or_default();
                line[at].text = text.trim_end().into();
            }
        }
        if is_column {
            header.remove(at);
        }
    }
    (header, lines)
}

/// Intervals and columns that a reader can do without, the least missed first: the report and `--verbose` have all. The interval of the
/// efficiency says nearly the same as that of the throughput.
fn least_missed() -> Vec<(u8, Column, bool)> {
    let parts = FIGURES.iter().flat_map(|Figure { column, .. }| {
        let (interval, whole) = column.gives_way;
        [interval.map(|at| (at, *column, false)), whole.map(|at| (at, *column, true))]
    });
    let mut parts: Vec<_> = parts.flatten().collect();
    parts.sort_by_key(|(at, ..)| *at);
    parts
}

fn width(header: &[String], lines: &[Vec<Field>]) -> usize {
    let widths = widths(header, lines);
    widths.iter().map(|width| width + GAP.len()).sum::<usize>().saturating_sub(GAP.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_leaves_out_no_more_than_it_must() {
        let table = |arm: &str| {
            let columns = [
                ("ratio", "8"),
                ("lock", arm),
                ("throughput", "519 k/s +- 2.8 %"),
                ("efficiency", "0.866 +- 2.8 %"),
                ("fairness", "0.933"),
                ("starved", "0"),
                ("long waits", "> 10.3 ms"),
                ("PV on/off", "1720x (1610 to 1850) +"),
            ];
            let (header, line) =
                columns.map(|(name, text)| (name.to_owned(), Field::new(text))).into_iter().unzip();
            fitting(header, vec![line, vec![]])
        };
        let (header, lines) = table("tas");
        assert!(width(&header, &lines) <= WIDTH && header.len() == 8, "{header:?}");
        let (header, lines) = table("qspinlock pv on, hints");
        assert!(width(&header, &lines) <= WIDTH, "{header:?}");
        assert!(
            !header.contains(&"fairness".to_owned()) && header.contains(&"starved".to_owned()),
            "{header:?}"
        );
        assert_eq!((lines[0][2].text.as_str(), lines[0][3].text.as_str()), ("519 k/s", "0.866 +- 2.8 %"));
        assert_eq!(lines[0].len(), header.len());
    }
}
