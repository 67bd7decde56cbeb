//! `--dry-run`: the cells that would be run, about how long that takes, and what differences it can show: by the newest results of the
//! experiment on this host.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use haltkick_vmm::Span;

use crate::analysis::summary::{Comparison, Summary};
use crate::analysis::{consistency, significance};
use crate::experiment::plan::{Cell, Plan};
use crate::host::identity::Host;
use crate::measure::progress::Planned;
use crate::measure::session::{MOST_TIMES_PLANNED, Rule};
use crate::record::place::Role;
use crate::results::manifest::Manifest;
use crate::show::table::{Field, layout};
use crate::text::output;
use crate::text::quantity::{patience, percent, significant};

/// The cells in the order of the file, then how many runs that is, and the time that they take. What they can show is known by earlier
/// results.
pub(super) fn show(plan: &Plan, rule: Rule, time: Duration, earlier: Option<&Earlier>) -> String {
    let axes = plan.outline.axes.iter().map(|axis| axis.key.clone());
    let shows = earlier.map(|_| SHOWS.to_owned());
    let heads = axes.chain(["arm", "vCPUs", "pCPUs", "window"].map(String::from)).chain(shows);
    let header: Vec<String> = heads.chain(["cell".to_owned()]).collect();
    // A verdict rests on these.
    let blocks = plan.outline.trial_blocks.unwrap_or(rule.blocks);
    let of_cell = |cell| {
        let shows = earlier.map(|earlier| smallest_difference(plan, cell, blocks, earlier));
        line(plan, cell, shows)
    };
    let lines: Vec<Vec<Field>> = plan.cells().map(of_cell).collect();
    let mut text = layout(&header, &lines, plan.outline.axes.len());
    let _ = writeln!(
        text,
        "{} cells in each of {} blocks: {} runs, about {}",
        lines.len(),
        rule.blocks,
        lines.len() * rule.blocks as usize,
        patience(time.as_secs_f64())
    );
    for remark in remarks(plan, rule).into_iter().chain(what_shows(plan, blocks, earlier)) {
        let _ = writeln!(text, "{remark}");
    }
    text
}

/// Head of the column with the smallest difference that can be shown.
const SHOWS: &str = "shows";

/// Column of the arm that the headline compares; empty in the other lines, and where nothing is known of the setting.
fn smallest_difference(plan: &Plan, cell: &Cell, blocks: u32, earlier: &Earlier) -> String {
    let of_headline = plan.outline.comparisons.first().is_some_and(|headline| headline.arm == cell.arm);
    if !of_headline || cell.role != Role::Arm {
        return String::new();
    }
    let found = earlier.headline.iter().find(|it| it.setting == cell.setting);
    let estimate = found.and_then(|it| it.ratio.as_ref());
    match estimate.and_then(|estimate| significance::smallest_difference(estimate, blocks)) {
        None => "-".into(),
        Some(share) if share < 1.0 => percent(share),
        Some(share) => format!("{}x", significant(1.0 + share)),
    }
}

/// Explanation of the column, or how to get it.
fn what_shows(plan: &Plan, blocks: u32, earlier: Option<&Earlier>) -> Option<String> {
    let name = &plan.outline.comparisons.first()?.name;
    Some(match earlier {
        Some(Earlier { path, is_valid, .. }) => {
            let invalid = if *is_valid { "" } else { ", which are invalid: a quiet host shows smaller ones" };
            format!(
                "{SHOWS}: the smallest difference in '{name}' that {blocks} blocks can show, by the scatter of the results in {}{invalid}",
                output::shown(path)
            )
        }
        None => format!(
            "the smallest difference in '{name}' that {blocks} blocks can show is not known: ./experiments-out has no results of \
             this experiment from this host; --blocks 3 makes some"
        ),
    })
}

/// Remarks about what makes it take longer, or less long.
fn remarks(plan: &Plan, rule: Rule) -> Vec<String> {
    let mut remarks = Vec::new();
    if plan.cells().any(|cell| Planned::of(cell).is_limit) {
        remarks.push("less, since fixed work and kernels end when they are done".to_owned());
    }
    if plan.cells().any(|cell| cell.run.min_sections > 0) {
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

fn line(plan: &Plan, cell: &Cell, shows: Option<String>) -> Vec<Field> {
    let of_axis = |key: &String| cell.setting.get(key).cloned().unwrap_or_default();
    let axes = plan.outline.axes.iter().map(|axis| of_axis(&axis.key));
    let again = if cell.role == Role::Control { " (again)" } else { "" };
    let vcpus: Vec<String> = cell.run.guests.iter().map(|guest| guest.vcpus.to_string()).collect();
    let most = if Planned::of(cell).is_limit { "<= " } else { "" };
    let of_run = [
        format!("{}{again}", cell.arm),
        vcpus.join("+"),
        cell.run.cpus.len().to_string(),
        format!("{most}{}", Span(cell.run.window)),
    ];
    axes.chain(of_run).chain(shows).chain([cell.id.clone()]).map(Field::new).collect()
}

pub(super) struct Earlier {
    pub(super) path: PathBuf,
    /// The comparison that is the headline of the plan, by setting.
    pub(super) headline: Vec<Comparison>,
    /// Whether the headline keeps its validity.
    pub(super) is_valid: bool,
}

/// The newest directory in `within` that has the headline of `plan` with an interval, measured on `host`, or simulated where
/// the plan is. A directory that cannot be read has none.
pub(super) fn newest(within: &Path, plan: &Plan, host: &Host) -> Option<Earlier> {
    let of = plan.outline.comparisons.first()?;
    let entries = fs::read_dir(within).ok()?.flatten();
    let manifests = entries.filter_map(|entry| Some((Manifest::read(&entry.path()).ok()?, entry.path())));
    let of_experiment = manifests.filter(|(manifest, _)| {
        manifest.outline.experiment == plan.outline.experiment && manifest.host.identity() == host.identity()
    });
    let mut found: Vec<(Manifest, PathBuf)> = of_experiment.collect();
    found.sort_by(|(a, _), (b, _)| b.started.cmp(&a.started));
    let is_simulated = plan.cells().any(|cell| cell.run.engine.is_simulated());
    let is_headline = |it: &Comparison| {
        (&it.arm, &it.baseline, &it.of) == (&of.arm, &of.baseline, &of.of)
            && it.ratio.as_ref().is_some_and(|ratio| ratio.interval.is_some())
    };
    found.into_iter().find_map(|(manifest, path)| {
        let records = consistency::last_attempts(&manifest.records(&path).ok()?);
        if records.iter().any(|record| record.settings.is_simulated() != is_simulated) {
            return None;
        }
        let Summary { comparisons: mut headline, lost, .. } = Summary::new(&manifest.outline, &records);
        headline.retain(is_headline);
        let is_valid = lost.is_empty();
        (!headline.is_empty()).then_some(Earlier { path, headline, is_valid })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::synthetic::{Scratch, Shape, Sketch, World};
    use crate::results::directory::{self, Directory};
    use crate::text::output::to_indented_json;

    const TIME: Duration = Duration::from_secs(5);

    #[test]
    fn earlier_results_tell_what_the_plan_can_show() {
        let arms = Sketch::new().axis("ratio", &["1", "8"]).arm("a", "tas").arm("b", "mcs");
        let sketch = arms.compared().control("b");
        let (plan, rule) = (sketch.plan(24), Rule { blocks: 24, ..Rule::default() });
        assert!(show(&plan, rule, TIME, None).contains("'b/a' that 24 blocks can show is not known"));
        let before = sketch.plan(6);
        let world = World::new(1).shape(Shape::LogNormal(0.05));
        let mut headline = world.summary(&before).comparisons;
        headline.retain(|it| it.setting["ratio"] == "8");
        let half_width = headline[0].ratio.as_ref().unwrap().half_width().unwrap();
        let earlier = Earlier { path: "experiments-out/b".into(), headline, is_valid: true };
        let text = show(&plan, rule, TIME, Some(&earlier));
        let line = |id: &str| text.lines().find(|line| line.ends_with(&format!(" {id}"))).unwrap();
        assert!(line("b_ratio-1").contains("  -  "), "nothing is known of this setting: {text}");
        assert!(!line("a_ratio-8").contains(" %") && !line("b_ratio-1_control").contains(" %"), "{text}");
        let (percent, _) = line("b_ratio-8").split_once(" %").unwrap();
        let share = percent.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap() / 100.0;
        assert!(share > 0.01 && share < half_width / 1.5, "{share} after {half_width}: {text}");
    }

    /// Leaves the results of an experiment of `blocks` blocks that began at this hour.
    fn leave(within: &Path, name: &str, hour: u32, blocks: u32, world: &World) {
        let plan = plan(blocks);
        let mut manifest = world.manifest(&plan);
        manifest.started = format!("2026-01-01T{hour:02}:00:00Z");
        let mut results = Directory::create(&within.join(name)).unwrap();
        results.write(directory::MANIFEST, &to_indented_json(&manifest).unwrap()).unwrap();
        results.append(&directory::lines(&world.records(&plan)).unwrap()).unwrap();
    }

    fn plan(blocks: u32) -> Plan {
        let arms = Sketch::two().axis("ratio", &["1", "8"]);
        arms.compared().plan(blocks)
    }

    #[test]
    fn the_newest_results_of_this_host_that_have_an_interval_are_found() {
        let scratch = Scratch::new("earlier");
        let within = scratch.path();
        let world = |seed| World::new(seed).shape(Shape::LogNormal(0.005));
        let host = Host { host_id: Some("host-a".into()), ..Host::default() };
        assert!(newest(&within.join("none"), &plan(8), &host).is_none());
        leave(within, "old", 1, 6, &world(1));
        leave(within, "new", 2, 6, &world(2).disturbed(|asked, _| asked.ours.lock == "tas"));
        leave(within, "one-block", 3, 1, &world(3));
        leave(within, "elsewhere", 4, 6, &world(4).host_id(Some("host-b")));
        fs::create_dir(within.join("empty")).unwrap();
        let found = newest(within, &plan(8), &host).unwrap();
        assert_eq!((found.path, found.is_valid, found.headline.len()), (within.join("new"), false, 2));
        fs::remove_dir_all(within.join("new")).unwrap();
        let found = newest(within, &plan(8), &host).unwrap();
        assert_eq!((found.path, found.is_valid), (within.join("old"), true));
    }
}
