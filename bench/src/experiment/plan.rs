//! From an experiment to cells, each with its lock-free companion, and from a seed to their order.
//!
//! A block is one pass over all cells. Within a block the settings come in shuffled order; at each setting the
//! lock-free cell comes first, then the arms in shuffled order. So the arms that are compared run within a second
//! of each other, every arm has its ideal in the same block, and the lock-free cells of two successive settings
//! bracket the arms between them: where these two differ, the host has changed meanwhile.

use std::collections::BTreeMap;
use std::time::Duration;

use haltkick_vmm::{Guest, Image, Ours, Refused, Rules, Run};
use rand::SeedableRng as _;
use rand::rngs::ChaCha8Rng;
use rand::seq::SliceRandom as _;

use super::contents::{Arm, Axis, Experiment, Patch, combined};
use super::outline::{Outline, OutlineAxis, OutlineControl};
use crate::record::place::{LOCK_FREE, Place, Role, slug};
use crate::settings::{Supply, rounds};
use crate::text::exit::{Failure, Result};

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) outline: Outline,
    pub(crate) points: Vec<Point>,
    pub(crate) seed: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Point {
    /// Lock-free cells; several only if arms differ in more than the lock.
    pub(crate) ideals: Vec<Cell>,
    pub(crate) arms: Vec<Cell>,
}

#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) id: String,
    pub(crate) arm: String,
    pub(crate) role: Role,
    pub(crate) setting: BTreeMap<String, String>,
    pub(crate) run: Run,
    /// Id of the lock-free cell that gives its ideal; none for that cell itself.
    pub(crate) ideal: Option<String>,
}

impl Plan {
    pub(crate) fn new(experiment: &Experiment, supply: Supply<'_>, seed: u64) -> Result<Self> {
        experiment.check_size()?;
        let mut points = Vec::new();
        for setting in settings_of_grid(experiment) {
            points.push(point(experiment, supply, &setting)?);
        }
        let control = add_control(experiment, &mut points);
        Ok(Self { outline: outline(experiment, control), points, seed })
    }

    pub(crate) fn block(&self, block: u32) -> Vec<&Cell> {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream(u64::from(block));
        let mut points: Vec<&Point> = self.points.iter().collect();
        points.shuffle(&mut rng);
        let mut order = Vec::new();
        for point in points {
            for cells in [&point.ideals, &point.arms] {
                let mut cells: Vec<&Cell> = cells.iter().collect();
                cells.shuffle(&mut rng);
                order.extend(cells);
            }
        }
        order
    }

    /// All cells in the order of the file.
    pub(crate) fn cells(&self) -> impl Iterator<Item = &Cell> {
        self.points.iter().flat_map(|point| point.ideals.iter().chain(&point.arms))
    }
}

impl Cell {
    /// The place of this cell's run of `block` in the experiment.
    pub(crate) fn place(&self, experiment: &str, block: u32, order_index: u64) -> Place {
        Place {
            experiment: experiment.into(),
            cell_id: self.id.clone(),
            arm: self.arm.clone(),
            role: self.role,
            setting: self.setting.clone(),
            block,
            order_index,
            replaces: vec![],
        }
    }
}

type Setting = Vec<(String, String)>;

/// Every combination of a point and the axes' values; the last axis varies fastest.
fn settings_of_grid(experiment: &Experiment) -> Vec<Setting> {
    let mut settings: Vec<Setting> = experiment.points.iter().map(|point| point.0.clone()).collect();
    if settings.is_empty() {
        settings.push(vec![]);
    }
    let values =
        |axis: &Axis| axis.values.iter().map(|(value, _)| (axis.key.clone(), value.clone())).collect();
    combined(settings, experiment.axes.iter().map(values))
}

fn point(experiment: &Experiment, supply: Supply<'_>, setting: &Setting) -> Result<Point> {
    let cell = |arm: &str, role, run, ideal| Cell {
        id: cell_id(experiment, arm, setting),
        arm: arm.into(),
        role,
        setting: setting.iter().cloned().collect(),
        run,
        ideal,
    };
    let mut point = Point { ideals: vec![], arms: vec![] };
    for arm in experiment.arms.iter().filter(|arm| arm.stands_at(setting)) {
        let run = resolve(experiment, arm, setting, supply)?;
        let has_ideal = !experiment.without_ideal && run.linux().is_none();
        let free = if has_ideal { lock_free(&run, supply.image) } else { None };
        let ideal = free.map(|free| {
            let ideals = &mut point.ideals;
            let known = ideals.iter().position(|cell| cell.run == free);
            let at = known.unwrap_or_else(|| {
                let serial = if ideals.is_empty() { String::new() } else { format!(" {}", ideals.len() + 1) };
                ideals.push(cell(&format!("{LOCK_FREE}{serial}"), Role::Ideal, free, None));
                ideals.len() - 1
            });
            ideals[at].id.clone()
        });
        point.arms.push(cell(&arm.name, Role::Arm, run, ideal));
    }
    Ok(point)
}

fn cell_id(experiment: &Experiment, arm: &str, setting: &Setting) -> String {
    let parts = setting.iter().map(|(key, value)| format!("{key}-{}", part_of_id(experiment, key, value)));
    std::iter::once(slug(arm)).chain(parts).collect::<Vec<_>>().join("_")
}

/// A value in a cell's id, which is part of a file's name. Values that look alike there, as paths and command lines may, have
/// their number behind them.
fn part_of_id(experiment: &Experiment, key: &str, value: &str) -> String {
    const LONGEST: usize = 60;
    let short = |value: &str| slug(value).chars().take(LONGEST).collect::<String>();
    let varying = experiment.varying();
    let values = varying.iter().filter(|axis| axis.key == key).flat_map(|axis| &axis.values);
    let before = values.map(|(value, _)| value).take_while(|each| *each != value);
    match before.filter(|each| short(each) == short(value)).count() {
        0 => short(value),
        alike => format!("{}~{}", short(value), alike + 1),
    }
}

fn resolve(experiment: &Experiment, arm: &Arm, setting: &Setting, supply: Supply<'_>) -> Result<Run> {
    let has_kernel = experiment.has_kernels();
    let mut patch = experiment.patch_of(arm, setting);
    if let Some(window) = patch.settings.given("window")
        && patch.settings.given("min-turns").is_none()
        && !(has_kernel || is_window_chosen(experiment, arm))
    {
        let with_turns = format!("{}/{}", window.text(), rounds::LEAST);
        patch.settings.set("window", &with_turns).expect("turns may stand behind a window");
    }
    let blamed = |wrong| blame(experiment, arm, &patch, &wrong);
    if has_kernel {
        return experiment.boot(&patch)?.run(&patch.settings, supply).map_err(blamed);
    }
    patch.settings.resolve(supply).map_err(blamed)
}

/// Whether a window is to be as long as it says: that of the command line, and one that tells cells apart. Others are lengthened until
/// they hold enough rounds.
fn is_window_chosen(experiment: &Experiment, arm: &Arm) -> bool {
    let varies = experiment.varying().iter().any(|axis| axis.key == "window");
    varies || arm.patch.place("window").is_some() || experiment.settings.place("window") == Some(None)
}

/// Says where an impossible setting was given, of those in `patch`.
fn blame(experiment: &Experiment, arm: &Arm, patch: &Patch, wrong: &Refused) -> Failure {
    let message = format!("arm '{}': {}: {}", arm.name, wrong.about, wrong.message);
    match patch.place(wrong.about) {
        Some(None) => Failure::usage(message),
        Some(at) => experiment.source.complain(at, message),
        None => experiment.source.complain(arm.patch.place("name").flatten(), message),
    }
}

/// Adds the second half of the A/A pair next to the first.
fn add_control(experiment: &Experiment, points: &mut [Point]) -> Option<OutlineControl> {
    let control = experiment.control.as_ref()?;
    let matches = |cell: &Cell| {
        cell.arm == control.arm
            && control
                .setting
                .iter()
                .all(|(key, value)| cell.setting.get(key).is_none_or(|other| other == value))
    };
    let at = points.iter().position(|point| point.arms.iter().any(matches)).unwrap_or(points.len() / 2);
    let point = &mut points[at];
    let twin = point.arms.iter().find(|cell| cell.arm == control.arm)?.clone();
    let setting = twin.setting.clone();
    point.arms.push(Cell { id: format!("{}_control", twin.id), role: Role::Control, ..twin });
    Some(OutlineControl { arm: control.arm.clone(), setting })
}

fn outline(experiment: &Experiment, control: Option<OutlineControl>) -> Outline {
    let axis =
        |Axis { key, values }| OutlineAxis { key, values: values.into_iter().map(|it| it.0).collect() };
    Outline {
        experiment: experiment.name.clone(),
        title: experiment.title.clone(),
        blocks: experiment.blocks,
        trial_blocks: experiment.trial_blocks,
        lock_costs: experiment.lock_costs,
        axes: experiment.varying().into_iter().map(axis).collect(),
        arms: experiment.arms_and_beside(),
        comparisons: experiment.comparisons.clone(),
        control,
        published: experiment.published.clone(),
    }
}

/// Window of the cell without a lock: on a simulated machine a quarter, or what a figure needs. Nothing disturbs it there, and it would
/// take most of the time, since all of its vCPUs execute all along.
fn free_window(run: &Run) -> Duration {
    let enough = (run.window / 4).max(rounds::last(run, rounds::LEAST));
    let enough = rounds::whole(enough, rounds::period(run));
    if run.engine.is_simulated() { enough.min(run.window) } else { run.window }
}

/// Returns the cell without a lock, if the image has such a thing. Settings that only concern locks have their defaults.
pub(crate) fn lock_free(run: &Run, image: &Image) -> Option<Run> {
    let lock = &image.locks.iter().find(|lock| lock.is_lock_free())?.name;
    let Rules { sched, share, slice, .. } = run.rules;
    let plain = Run::default();
    let free = Run {
        rules: Rules { sched, share, slice, ..plain.rules },
        preempted_by: plain.preempted_by,
        deschedule: plain.deschedule,
        min_sections: plain.min_sections,
        attribution: plain.attribution,
        live: plain.live,
        guests: run.guests.iter().map(|guest| without_lock(guest, lock)).collect(),
        ..run.clone()
    };
    Some(free.with_window(free_window(run)))
}

/// Returns the guest with the lock-free `lock` around its work.
fn without_lock(guest: &Guest, lock: &str) -> Guest {
    let mut guest = Guest { pv: Guest::default().pv, ..guest.clone() };
    if let Some(ours) = guest.ours_mut() {
        let plain = Ours::default();
        ours.lock = lock.into();
        ours.patch = plain.patch;
        ours.preempted_hint = plain.preempted_hint;
        ours.spin_threshold = plain.spin_threshold;
        ours.spin_rounds = plain.spin_rounds;
        ours.lock_parameter = plain.lock_parameter;
        ours.slice_margin = plain.slice_margin;
        // A guest that folds alone may lose its time to a neighbour: the ideal is one that does not.
        ours.fold = plain.fold;
    }
    guest
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use haltkick_vmm::Engine;

    use super::*;
    use crate::experiment::overrides::Overrides;
    use crate::measure::synthetic::{Sketch, experiment, overrides, planned};

    /// Windows in milliseconds of an experiment with these lines, after these changes.
    fn windows(settings: &str, arm: &str, overrides: &Overrides) -> Vec<u128> {
        let head = "without-ideal = true\n[settings]";
        let mut it = experiment(&format!("{head}\n{settings}\n[[arm]]\nname = 'a'\n{arm}\n")).unwrap();
        it.apply(overrides).unwrap();
        planned(&it).unwrap().cells().map(|cell| cell.run.window.as_millis()).collect()
    }

    #[test]
    fn the_seed_decides_the_order_and_each_block_has_its_own() {
        let order = |seed: u64, block: u32| {
            let plan = Plan { seed, ..Sketch::two().axis("ratio", &["1", "2", "4", "8"]).plan(3) };
            plan.block(block).iter().map(|cell| cell.id.clone()).collect::<Vec<_>>()
        };
        assert_eq!(order(1, 0), order(1, 0));
        assert!(order(1, 0) != order(2, 0) && order(1, 0) != order(1, 1));
    }

    #[test]
    fn a_simulated_cell_without_a_lock_is_shorter() {
        let run = Run { window: Duration::from_millis(20), ..Run::default() };
        let machine = haltkick_vmm::machines::presets()[0].machine();
        let simulated = Run { engine: Engine::Sim(Arc::new(machine)), ..run.clone() };
        let window = |run: &Run| lock_free(run, &Image::embedded()).unwrap().window.as_millis();
        let rules = Rules { slice: Duration::from_millis(1), ..run.rules };
        let guests = vec![Guest { vcpus: 4, ..Guest::default() }];
        let crowded = Run { cpus: vec![0, 1], guests, rules, ..simulated.clone() };
        assert_eq!([&run, &simulated, &crowded].map(window), [20, 5, 16], "eight rounds of two slices");
    }

    #[test]
    fn a_plan_lengthens_windows_unless_somebody_chose_them() {
        let set = |key, value| overrides(&[(key, value)]);
        let of_command_line = Overrides { window: Some("5ms".parse().unwrap()), ..Overrides::default() };
        let short = "window = \"5ms\"\nratio = 8";
        for (settings, arm, overrides, expected) in [
            (short, "", Overrides::default(), vec![64]),
            (short, "", set("slice", "3ms"), vec![192]),
            (short, "", set("ratio", "1"), vec![5]),
            (short, "", set("window", "5ms/2"), vec![16]),
            (short, "", set("window", "6ms"), vec![6]),
            (short, "", of_command_line, vec![5]),
            ("ratio = 8", "window = \"5ms\"", Overrides::default(), vec![5]),
            ("window = \"5ms/2\"\nratio = 8", "", Overrides::default(), vec![16]),
            ("ratio = 8\n[grid]\nwindow = [\"5ms\", \"9ms\"]", "", Overrides::default(), vec![5, 9]),
        ] {
            assert_eq!(windows(settings, arm, &overrides), expected, "{settings} {arm} {overrides:?}");
        }
    }
}
