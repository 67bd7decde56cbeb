//! `--dry-run`: the cells that would be run, and about how long that takes.

use std::fmt::Write as _;

use crate::experiment::place::Role;
use crate::experiment::plan::{Cell, Plan};
use crate::measure::progress::{self, Planned};
use crate::measure::records::guests;
use crate::measure::rule::{MOST_TIMES_PLANNED, Rule};
use crate::text::duration::Span;
use crate::text::quantity::patience;

/// The cells in the order of the file, then how many runs that is.
pub(super) fn show(plan: &Plan, rule: Rule) -> String {
    let axes = plan.outline.axes.iter().map(|axis| axis.key.clone());
    let heads = axes.chain(["arm", "vCPUs", "pCPUs", "window", "cell"].map(String::from));
    let mut lines = vec![heads.collect::<Vec<_>>()];
    lines.extend(plan.cells().map(|cell| line(plan, cell)));
    let mut text = aligned(&lines);
    let cells = plan.cells().count();
    let whole = progress::of_whole(plan, rule.blocks);
    let _ = writeln!(
        text,
        "\n{cells} cells in each of {} blocks: {} runs, about {}",
        rule.blocks,
        cells * rule.blocks as usize,
        patience(whole.as_secs_f64())
    );
    for remark in remarks(plan, rule) {
        let _ = writeln!(text, "{remark}");
    }
    text
}

/// What makes it take longer, or less long.
fn remarks(plan: &Plan, rule: Rule) -> Vec<String> {
    let mut remarks = Vec::new();
    if plan.cells().any(|cell| Planned::of(cell).is_limit) {
        remarks.push("less, since fixed work and kernels end when they are done".to_owned());
    }
    if plan.cells().any(|cell| guests(&cell.config).any(|guest| guest.min_sections > 0)) {
        remarks.push("more where windows are doubled until min-sections are done, up to 16 times".into());
    }
    if let Some(target) = rule.target_precision {
        let most = rule.blocks.saturating_mul(MOST_TIMES_PLANNED);
        let percent = target * 100.0;
        remarks.push(format!("more blocks until every ratio is known to {percent} %, {most} at most"));
    }
    if rule.retries > 0 {
        remarks.push(format!(
            "more where runs are disturbed: such a run is made again, {} times at most",
            rule.retries
        ));
    }
    if let Some(max_time) = rule.max_time {
        remarks.push(format!("no block begins that would end after {}", patience(max_time.as_secs_f64())));
    }
    remarks
}

fn line(plan: &Plan, cell: &Cell) -> Vec<String> {
    let of_axis = |key: &String| cell.setting.get(key).cloned().unwrap_or_default();
    let mut line: Vec<String> = plan.outline.axes.iter().map(|axis| of_axis(&axis.key)).collect();
    let again = if cell.role == Role::Control { " (again)" } else { "" };
    let vcpus: Vec<String> = guests(&cell.config).map(|guest| guest.vcpus.to_string()).collect();
    let most = if Planned::of(cell).is_limit { "<= " } else { "" };
    line.extend([
        format!("{}{again}", cell.arm),
        vcpus.join("+"),
        cell.config.cpus.len().to_string(),
        format!("{most}{}", Span(cell.config.window)),
        cell.id.clone(),
    ]);
    line
}

/// Columns beside each other, the last as wide as it is.
fn aligned(lines: &[Vec<String>]) -> String {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for line in lines {
        let fields = line.iter().zip(&widths).map(|(field, width)| format!("{field:<width$}"));
        let _ = writeln!(text, "{}", fields.collect::<Vec<_>>().join("  ").trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::measure::synthetic::Sketch;

    #[test]
    fn every_cell_has_a_line_and_what_may_take_longer_is_said() {
        let plan =
            Sketch::new().axis("ratio", &["1", "8"]).arm("a", "tas").arm("b", "mcs").control("a").plan(4);
        let rule = Rule { blocks: 4, target_precision: None, max_time: None, retries: 0 };
        let text = show(&plan, rule);
        for cell in plan.cells() {
            assert_eq!(
                text.lines().filter(|line| line.ends_with(&format!(" {}", cell.id))).count(),
                1,
                "{text}"
            );
        }
        assert!(text.contains("\n7 cells in each of 4 blocks: 28 runs, about "), "{text}");
        assert!(text.lines().last().unwrap().starts_with("7 cells"), "nothing else is to be said: {text}");
        let rule = Rule {
            retries: 2,
            target_precision: Some(0.08),
            max_time: Some(Duration::from_secs(85)),
            ..rule
        };
        let text = show(&plan, rule);
        for remark in ["known to 8 %, 80 at most", "again, 2 times at most", "after 1 min 25 s"] {
            assert!(text.contains(remark), "{remark}: {text}");
        }
    }
}
