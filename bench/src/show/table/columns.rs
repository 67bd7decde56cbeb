//! Columns of a table whose arms are locks, and which of them a terminal has room for.

use super::{FAINT, Field, kernels, of_axes, of_headline, plus_minus, together};
use crate::analysis::statistics::Estimate;
use crate::analysis::summary::{Row, Summary};
use crate::experiment::place::Role;
use crate::show::legend::{FAIRNESS, HALF_OF_TIME, LONG_WAITS, STARVED};
use crate::text::quantity::{si, significant, time_ns};
use crate::text::wrap::WIDTH;

const THROUGHPUT: &str = "throughput";
const COMPLETION: &str = "completion";
const EFFICIENCY: &str = "efficiency";
const IN_LOCKS: &str = "in locks";

/// Columns of an experiment that counts what fits into a window.
const WINDOW: [&str; 4] = [THROUGHPUT, EFFICIENCY, FAIRNESS, LONG_WAITS];
/// Columns of one that waits until a fixed amount of work is done.
const FIXED_WORK: [&str; 4] = [COMPLETION, EFFICIENCY, FAIRNESS, IN_LOCKS];

/// Columns that say the setting stand before the arm's name.
pub(super) fn names_at(summary: &Summary) -> usize {
    summary.outline.axes.len() + usize::from(!summary.outline.tells_vcpus())
}

pub(super) fn header(summary: &Summary) -> Vec<String> {
    let mut header: Vec<String> = summary.outline.axes.iter().map(|axis| axis.key.clone()).collect();
    if !summary.outline.tells_vcpus() {
        header.push("vCPUs".into());
    }
    if summary.is_of_kernels() {
        header.extend(kernels::HEADER.map(String::from));
    } else if !summary.together.is_empty() {
        header.push("lock".into());
        header.extend(together::HEADER.map(String::from));
    } else {
        header.push("lock".into());
        header.extend(if has_fixed_work(summary) { FIXED_WORK } else { WINDOW }.map(String::from));
        if has_starved(summary) {
            header.insert(header.len() - 1, STARVED.into());
        }
        header.extend(summary.counts_overtaking().then(|| "overtaken".into()));
    }
    header.extend(summary.outline.comparisons.first().map(|it| it.name.clone()));
    header
}

fn has_starved(summary: &Summary) -> bool {
    summary.rows.iter().any(|row| row.starved_vcpus.is_some_and(|starved| starved > 0.0))
}

fn has_fixed_work(summary: &Summary) -> bool {
    summary.rows.iter().any(|row| row.completion_ns.is_some())
}

pub(super) fn line(summary: &Summary, row: &Row, new_setting: bool) -> Vec<Field> {
    let mut fields = of_axes(summary, &row.setting, row.vcpus, new_setting);
    let named = fields.len();
    fields.push(Field::new(row.arm.as_str()));
    fields.push(Field::new(if has_fixed_work(summary) { completion(row) } else { throughput(row) }));
    let plain = |estimate: &Option<Estimate>, show: fn(f64) -> String| {
        Field::new(estimate.as_ref().map_or("-".into(), |it| show(it.hodges_lehmann)))
    };
    fields.push(Field::new(efficiency(row)));
    fields.push(plain(&row.jain, significant));
    if has_starved(summary) {
        fields.push(Field::new(starved(row)));
    }
    fields.push(if has_fixed_work(summary) {
        plain(&row.lock_cpu_share, |share| format!("{} %", significant(share * 100.0)))
    } else {
        Field::new(long_waits(row))
    });
    if summary.counts_overtaking() {
        fields.push(Field::new(overtaken(row)));
    }
    if row.role == Role::Ideal {
        for field in &mut fields[named..] {
            field.style = FAINT;
        }
    }
    fields.extend(of_headline(summary, &row.setting, &row.arm, None));
    fields
}

fn throughput(row: &Row) -> String {
    let shown = |it: &Estimate| format!("{}/s{}", si(it.hodges_lehmann), plus_minus(it));
    let without_interval = || format!("{}/s        ", si(row.mean_per_second));
    row.acquisitions_per_second.as_ref().map_or_else(without_interval, shown)
}

fn completion(row: &Row) -> String {
    let shown = |it: &Estimate| format!("{}{}", time_ns(it.hodges_lehmann), plus_minus(it));
    row.completion_ns.as_ref().map_or("not done".into(), shown)
}

fn efficiency(row: &Row) -> String {
    // The ideal's own efficiency is 1 by definition, or the serial bound's share of it: its interval says nothing.
    let shown = |it: &Estimate| {
        let interval = if row.role == Role::Ideal { "         ".into() } else { plus_minus(it) };
        format!("{}{interval}", significant(it.hodges_lehmann))
    };
    row.efficiency.as_ref().map_or("-".into(), shown)
}

/// `23/46`: vCPUs that completed nothing.
fn starved(row: &Row) -> String {
    row.starved_vcpus.map_or("-".into(), |starved| match starved {
        0.0 => "0".into(),
        starved => format!("{}/{}", significant_count(starved), row.vcpus),
    })
}

/// Sections that others began in the worst wait.
fn overtaken(row: &Row) -> String {
    row.overtaken_most.map_or("-".into(), |most| most.to_string())
}

/// A median of counts: whole, or a half.
fn significant_count(count: f64) -> String {
    if count.fract() == 0.0 { format!("{count:.0}") } else { format!("{count:.1}") }
}

/// Half of all time spent waiting went into waits at least this long.
fn long_waits(row: &Row) -> String {
    if row.role == Role::Ideal {
        // No vCPU waits: an apparent wait is a slice that ends between two timestamps.
        return "-".into();
    }
    let at_least = if row.at_least.iter().any(|name| name == HALF_OF_TIME) { "> " } else { "" };
    row.wait_half_of_time_ns
        .as_ref()
        .map_or("-".into(), |it| format!("{at_least}{}", time_ns(it.hodges_lehmann)))
}

/// A part of a table that a reader can do without.
enum Part {
    /// The interval of a column's figures.
    Interval(&'static str),
    Column(&'static str),
}

/// Parts that a terminal leaves out until the table fits, in this order. The interval of the efficiency says nearly the same as that
/// of the throughput; the report and `--verbose` have all.
const LEAST_MISSED: [Part; 5] = [
    Part::Interval(THROUGHPUT),
    Part::Interval(COMPLETION),
    Part::Column(FAIRNESS),
    Part::Column(LONG_WAITS),
    Part::Column(STARVED),
];

/// The table without what there is no room for.
pub(super) fn fitting(mut header: Vec<String>, mut lines: Vec<Vec<Field>>) -> (Vec<String>, Vec<Vec<Field>>) {
    for part in LEAST_MISSED {
        if width(&header, &lines) <= WIDTH {
            break;
        }
        let (Part::Interval(name) | Part::Column(name)) = part;
        let Some(at) = header.iter().position(|column| column == name) else { continue };
        for line in lines.iter_mut().filter(|line| !line.is_empty()) {
            match part {
                Part::Column(_) => _ = line.remove(at),
                Part::Interval(_) => {
                    let text = line[at].text.split(" +-").next().unwrap_or_default();
                    line[at].text = text.trim_end().into();
                }
            }
        }
        if matches!(part, Part::Column(_)) {
            header.remove(at);
        }
    }
    (header, lines)
}

fn width(header: &[String], lines: &[Vec<Field>]) -> usize {
    let of_column = |(at, name): (usize, &String)| {
        let of_lines = lines.iter().filter_map(|line| line.get(at)).map(|field| field.text.chars().count());
        of_lines.fold(name.chars().count(), usize::max) + super::GAP.len()
    };
    header.iter().enumerate().map(of_column).sum::<usize>().saturating_sub(super::GAP.len())
}

#[cfg(test)]
mod tests {
    use anstyle::Style;

    use super::*;

    fn table(arm: &str) -> (Vec<String>, Vec<Vec<Field>>) {
        let header = ["ratio", "lock", THROUGHPUT, EFFICIENCY, FAIRNESS, STARVED, LONG_WAITS, "PV on/off"];
        let fields = [
            "8",
            arm,
            "519 k/s +- 2.8 %",
            "0.866 +- 2.8 %",
            "0.933",
            "0",
            "> 10.3 ms",
            "1720x (1610 to 1850) +",
        ];
        let line = fields.map(|text| Field { text: text.into(), style: Style::new() }).into();
        fitting(header.map(String::from).into(), vec![line, vec![]])
    }

    #[test]
    fn a_table_leaves_out_no_more_than_it_must() {
        let (header, lines) = table("tas");
        assert!(width(&header, &lines) <= WIDTH && header.len() == 8, "{header:?}");
        let (header, lines) = table("qspinlock pv on, hints");
        assert!(width(&header, &lines) <= WIDTH, "{header:?}");
        assert!(!header.contains(&FAIRNESS.to_owned()) && header.contains(&STARVED.to_owned()), "{header:?}");
        assert_eq!((lines[0][2].text.as_str(), lines[0][3].text.as_str()), ("519 k/s", "0.866 +- 2.8 %"));
        assert_eq!(lines[0].len(), header.len());
    }
}
