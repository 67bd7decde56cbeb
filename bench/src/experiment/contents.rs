//! Contents of an experiment file, once it is read: bounds of keys, and all that is set. The schema has the keys.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use haltkick_vmm::{Entry, FILE_PREFIX, Span};

use super::measure::Measure;
use super::outline::{OutlineComparison, OutlineControl};
use super::published::Published;
use super::source::{At, Source};
use crate::record::place::{beside, is_taken, slug};
use crate::settings::{Settings, Value, default_name, table};
use crate::text::exit::Result;

/// Keys whose values are files that a kernel boots with.
pub(super) const FILES: &[&str] = &["kernel", "initrd"];
/// Most cells of an experiment, which are all made before the first one runs.
const MOST_CELLS: usize = 10_000;
/// Least and most of what counts blocks.
pub(super) const BLOCKS: RangeInclusive<u32> = 1..=100_000;
/// Most times that a disturbed run is made again: what is disturbed that often is disturbed always.
pub(crate) const MOST_RETRIES: u32 = 100;

#[derive(Clone, Debug)]
pub(crate) struct Experiment {
    pub(crate) source: Source,
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) blocks: u32,
    /// Further blocks, of what is vaguer, until every ratio is known this well.
    pub(crate) target_precision: Option<f64>,
    /// No block begins that would end later.
    pub(crate) max_time: Option<Span>,
    /// How often a run that was disturbed is made again.
    pub(crate) retry_disturbed: u32,
    /// Blocks per trial, where verdicts are to be counted over many trials.
    pub(crate) trial_blocks: Option<u32>,
    /// Whether to run no lock-free cells, so that there is no efficiency and more time for ratios.
    pub(crate) without_ideal: bool,
    /// Whether to report the uncontended cost of each lock.
    pub(crate) lock_costs: bool,
    /// Settings of all cells, and the kernel of all arms, as far as it is the same.
    pub(crate) settings: Patch,
    /// Settings that vary together; none is one without settings.
    pub(crate) points: Vec<PointValues>,
    /// Settings that vary each by itself, at each of the points.
    pub(crate) axes: Vec<Axis>,
    pub(crate) arms: Vec<Arm>,
    pub(crate) comparisons: Vec<OutlineComparison>,
    /// The A/A pair; an axis that it does not name may have any value.
    pub(crate) control: Option<OutlineControl>,
    pub(crate) published: Vec<Published>,
    pub(super) quick: Option<Quick>,
    /// How many machines like each, on which comparisons are simulated, too, and where that is asked for.
    pub(super) robust: Option<(u32, At)>,
}

/// Settings, those of the kernel that an arm boots too, with the place where each was given.
#[derive(Clone, Debug, Default)]
pub(crate) struct Patch {
    pub(crate) settings: Settings,
    pub(super) places: BTreeMap<String, Option<At>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Axis {
    pub(crate) key: String,
    pub(crate) values: Vec<(String, Option<At>)>,
}

/// Values that settings have together, and where they were given.
#[derive(Clone, Debug)]
pub(crate) struct PointValues(pub(crate) Vec<(String, String)>, pub(crate) At);

/// A thing to compare.
#[derive(Clone, Debug)]
pub(crate) struct Arm {
    pub(crate) name: String,
    pub(crate) patch: Patch,
    /// Values of axes at which it stands, where it does not stand everywhere.
    pub(crate) only: Vec<(String, String)>,
}

impl Arm {
    /// Whether it is to be run at `setting`. An axis that the command line has displaced limits nothing.
    pub(crate) fn stands_at(&self, setting: &[(String, String)]) -> bool {
        self.only.iter().all(|(key, value)| {
            setting.iter().find(|(axis, _)| axis == key).is_none_or(|(_, other)| other == value)
        })
    }
}

/// Lock of Linux, with which those of lock objects are compared.
const LINUX: &str = "qspinlock";

/// Every combination of these with one value of each list; the last list varies fastest.
pub(super) fn combined<T: Clone>(first: Vec<Vec<T>>, lists: impl Iterator<Item = Vec<T>>) -> Vec<Vec<T>> {
    lists.fold(first, |all, list| {
        let with = |so_far: &Vec<T>, value: &T| so_far.iter().chain([value]).cloned().collect();
        all.iter().flat_map(|so_far| list.iter().map(move |value| with(so_far, value))).collect()
    })
}

/// Refuses `cells` if an experiment cannot have as many.
pub(super) fn check_cells(cells: usize) -> std::result::Result<(), String> {
    match cells > MOST_CELLS {
        true => Err(format!(
            "{cells} cells, and an experiment has at most {MOST_CELLS}: leave values out, or make several experiments"
        )),
        false => Ok(()),
    }
}

#[derive(Clone, Debug)]
pub(super) struct Quick {
    pub(super) blocks: Option<u32>,
    /// Values of the grid that are left.
    pub(super) axes: Vec<Axis>,
    /// Names of the arms that are left, if not all are.
    pub(super) arms: Option<Vec<(String, At)>>,
    pub(super) patch: Patch,
}

impl Patch {
    /// Sets one setting and remembers where; without a place it came from the command line.
    pub(super) fn set(&mut self, key: &str, value: &str, at: Option<At>) -> std::result::Result<(), String> {
        self.settings.set(key, value)?;
        self.places.insert(key.into(), at);
        Ok(())
    }

    /// The place where `key` was given, if it was: `Some(None)` is the command line.
    pub(crate) fn place(&self, key: &str) -> Option<Option<&At>> {
        self.places.get(key).map(Option::as_ref)
    }

    /// Settings of `self`, and of `below` where `self` has none, as [`Settings::over`] has it.
    pub(super) fn over(&self, below: &Self) -> Self {
        let mut places = below.places.clone();
        places.extend(self.places.clone());
        Self { settings: self.settings.clone().over(&below.settings), places }
    }

    /// The text of a setting, if it is given.
    pub(super) fn text(&self, key: &str) -> Option<&str> {
        self.settings.given(key).map(Value::text)
    }

    /// Keys of [`table::BOOT`] that are given, each with its place.
    pub(super) fn said(&self) -> impl Iterator<Item = (&'static str, Option<&At>)> {
        table::BOOT.iter().filter_map(|row| Some((row.name, self.place(row.name)?)))
    }
}

impl Experiment {
    /// Names of all arms, each followed by those of the guests that run alongside its first.
    pub(crate) fn arms_and_beside(&self) -> Vec<String> {
        // Several guests, one by one or by their number.
        let varying = self.varying().into_iter().filter(|axis| axis.key == "vm" || axis.key == "guests");
        let each =
            varying.flat_map(|axis| axis.values.into_iter().map(move |it| vec![(axis.key.clone(), it.0)]));
        let grid: Vec<Vec<(String, String)>> = std::iter::once(vec![]).chain(each).collect();
        let mut all = vec![];
        for arm in &self.arms {
            let (first, guests) = (all.len(), |at: &Vec<_>| self.patch_of(arm, at).settings.guests());
            all.push(arm.name.clone());
            for (index, vm) in grid.iter().flat_map(|at| guests(at).into_iter().enumerate().skip(1)) {
                let name = beside(&arm.name, &vm.name.unwrap_or_else(|| default_name(index)));
                if !all[first..].contains(&name) {
                    all.push(name);
                }
            }
        }
        all
    }

    /// Refuses more cells than an experiment may have. Counts them: none is made.
    pub(super) fn check_size(&self) -> Result<()> {
        let at_once = [self.points.len().max(1), self.arms.len()];
        let cells = at_once.into_iter().chain(self.axes.iter().map(|axis| axis.values.len()));
        let cells = cells.fold(1, usize::saturating_mul);
        let longest = self.axes.iter().max_by_key(|axis| axis.values.len());
        let at = longest.and_then(|axis| axis.values.first()?.1.as_ref());
        check_cells(cells).map_err(|error| self.source.complain(at, error))
    }

    /// The locks that it names, some of them several times.
    pub(crate) fn locks(&self) -> Vec<String> {
        let patches = std::iter::once(&self.settings).chain(self.arms.iter().map(|arm| &arm.patch));
        let given = patches.flat_map(|patch| patch.settings.locks()).map(String::from);
        let varying = self.varying().into_iter().filter(|axis| axis.key == "lock");
        given.chain(varying.flat_map(|axis| axis.values).map(|(value, _)| value)).collect()
    }

    /// Adds arms for a lock object: one for each form that it has, compared with Linux' lock, native and paravirtual, where the file has it.
    ///
    /// # Errors
    /// That there is an arm of that name already.
    pub(crate) fn add_object(&mut self, lock: &Entry) -> std::result::Result<(), String> {
        let file = lock.name.strip_prefix(FILE_PREFIX).unwrap_or(&lock.name);
        let short = file.rsplit('/').next().unwrap_or(file);
        let is_linux = |arm: &&Arm| {
            arm.only.is_empty() && arm.patch.settings.given("lock").is_some_and(|lock| lock.text() == LINUX)
        };
        let baselines: Vec<String> = self.arms.iter().filter(is_linux).map(|arm| arm.name.clone()).collect();
        let native = lock.has_native().then(|| ("off", short.to_owned()));
        let paravirt = lock.has_paravirt().then(|| ("on", format!("{short} pv")));
        for (pv, name) in native.into_iter().chain(paravirt) {
            if self.arms.iter().any(|arm| slug(&arm.name) == slug(&name)) || is_taken(&name) {
                return Err(format!("there is an arm '{name}' already: give the file another name"));
            }
            let mut patch = Patch::default();
            patch.set("lock", &lock.name, None)?;
            patch.set("pv", pv, None)?;
            self.comparisons.extend(baselines.iter().map(|baseline| OutlineComparison {
                of: Measure::default(),
                name: format!("{name} / {baseline}"),
                arm: name.clone(),
                baseline: baseline.clone(),
            }));
            self.arms.push(Arm { name, patch, only: vec![] });
        }
        Ok(())
    }

    /// All that is set for `arm` at `setting`: over the common settings what that point of the grid sets, and over it the arm's own.
    pub(super) fn patch_of(&self, arm: &Arm, setting: &[(String, String)]) -> Patch {
        let mut patch = Patch::default();
        for (key, value) in setting {
            let mut of_axes = self.axes.iter().filter(|axis| axis.key == *key).flat_map(|axis| &axis.values);
            let of_axis = of_axes.find(|(each, _)| each == value).map(|(_, at)| at.clone());
            let sets = |point: &&PointValues| point.0.iter().any(|it| (&it.0, &it.1) == (key, value));
            let of_point = || self.points.iter().find(sets).map(|point| point.1.clone());
            patch.set(key, value, of_axis.unwrap_or_else(of_point)).expect("what varies was read before");
        }
        arm.patch.over(&patch.over(&self.settings))
    }

    /// Everything that varies, with its values: what the points set, then the grid.
    pub(crate) fn varying(&self) -> Vec<Axis> {
        let mut axes: Vec<Axis> = vec![];
        for (key, value) in self.points.iter().flat_map(|point| &point.0) {
            let value = (value.clone(), None);
            match axes.iter_mut().find(|axis| axis.key == *key) {
                Some(axis) if axis.values.contains(&value) => {}
                Some(axis) => axis.values.push(value),
                None => axes.push(Axis { key: key.clone(), values: vec![value] }),
            }
        }
        axes.extend(self.axes.iter().cloned());
        axes
    }
}
