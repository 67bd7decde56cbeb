//! Experiment files: what is compared, at which settings, how often.
//!
//! Every complaint about a file names its line and column.

pub(crate) mod measure;
pub(crate) mod origins;
pub(crate) mod plan;
mod reader;

use std::fmt;
use std::fs;
use std::ops::Range;
use std::path::Path;

use toml::de::DeTable;

use crate::cli::{Overrides, percent};
use crate::experiment::measure::Measure;
use crate::settings::Settings;
use crate::settings::vm::{self, Vm};
use crate::text::duration::Span;
use crate::text::exit::{Failure, Result};
use crate::text::nearest;

use reader::Reader;

/// Most times that a disturbed run is made again: what is disturbed that often is disturbed always.
pub(crate) const MOST_RETRIES: u32 = 100;

/// Version of the file format.
const FORMAT: i64 = 1;

/// Experiments that come with the program: name and text.
pub(crate) const BUILT_IN: [(&str, &str); 15] = [
    ("overcommit", include_str!("../../experiments/overcommit.toml")),
    ("locks", include_str!("../../experiments/locks.toml")),
    ("qspinlock", include_str!("../../experiments/qspinlock.toml")),
    ("unfair", include_str!("../../experiments/unfair.toml")),
    ("work-conserving", include_str!("../../experiments/work-conserving.toml")),
    ("hand-off", include_str!("../../experiments/hand-off.toml")),
    ("osq", include_str!("../../experiments/osq.toml")),
    ("sleeping-locks", include_str!("../../experiments/sleeping-locks.toml")),
    ("hostile", include_str!("../../experiments/hostile.toml")),
    ("fault", include_str!("../../experiments/fault.toml")),
    ("grant", include_str!("../../experiments/grant.toml")),
    ("rwlock", include_str!("../../experiments/rwlock.toml")),
    ("aa", include_str!("../../experiments/aa.toml")),
    ("injected", include_str!("../../experiments/injected.toml")),
    ("instrument", include_str!("../../experiments/instrument.toml")),
];

/// Where a file came from and what it says.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// A path, or the name of a built-in experiment.
    pub(crate) origin: String,
    pub(crate) text: String,
}

/// Byte range in the source.
pub(crate) type At = Range<usize>;

/// An experiment as its file has it.
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
    /// Whether to report what each lock costs when nobody contends for it.
    pub(crate) lock_costs: bool,
    pub(crate) settings: Patch,
    /// Settings that vary together; none is one without settings.
    pub(crate) points: Vec<PointValues>,
    /// Settings that vary each by itself, at each of the points.
    pub(crate) axes: Vec<Axis>,
    pub(crate) arms: Vec<Arm>,
    pub(crate) comparisons: Vec<Comparison>,
    pub(crate) control: Option<Control>,
    quick: Option<Quick>,
}

/// Settings with the place where each was given.
#[derive(Clone, Debug, Default)]
pub(crate) struct Patch {
    pub(crate) settings: Settings,
    places: Vec<(String, Option<At>)>,
}

/// Stands between the name of an arm and that of a guest which runs beside its first.
pub(crate) const BESIDE: &str = " / ";

/// What the figures of `guest`, which runs beside the first of `arm`, are called.
pub(crate) fn beside(arm: &str, guest: &str) -> String {
    format!("{arm}{BESIDE}{guest}")
}

/// A setting that the experiment varies.
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

/// A ratio to report.
#[derive(Clone, Debug)]
pub(crate) struct Comparison {
    pub(crate) of: Measure,
    pub(crate) name: String,
    pub(crate) arm: String,
    pub(crate) baseline: String,
}

/// The A/A pair.
#[derive(Clone, Debug)]
pub(crate) struct Control {
    pub(crate) arm: String,
    /// Values of axes; an axis that is not named may have any value.
    pub(crate) setting: Vec<(String, String)>,
}

#[derive(Clone, Debug)]
struct Quick {
    blocks: Option<u32>,
    patch: Patch,
}

impl Source {
    /// A built-in experiment by name, or a file by path.
    pub(crate) fn find(name: &str) -> Result<Self> {
        if let Some((origin, text)) = BUILT_IN.iter().find(|(built_in, _)| *built_in == name) {
            return Ok(Self { origin: (*origin).into(), text: (*text).into() });
        }
        let is_path = name.contains('/') || name.ends_with(".toml") || fs::exists(name).unwrap_or(false);
        if !is_path {
            let names = BUILT_IN.map(|(name, _)| name);
            return Err(Failure::usage(format!(
                "{} (a file of one's own is given by its path)",
                nearest::unknown("experiment", name, &names)
            )));
        }
        let text = fs::read_to_string(name).map_err(|error| {
            Failure::usage(format!("{name}: {error}: give a readable file or a built-in name"))
        })?;
        Ok(Self { origin: name.into(), text })
    }

    /// Where a place begins, counted from 1.
    pub(crate) fn line_and_column(&self, at: &At) -> (usize, usize) {
        let before = &self.text[..at.start.min(self.text.len())];
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        (before.matches('\n').count() + 1, column)
    }

    /// A complaint about the place `at`.
    pub(crate) fn complain(&self, at: Option<&At>, message: impl fmt::Display) -> Failure {
        let (line, column) = self.line_and_column(at.unwrap_or(&(0..0)));
        Failure::experiment(format!("{}:{line}:{column}: {message}", self.origin))
    }
}

impl Patch {
    /// Sets one setting and remembers where; without a place it came from the command line.
    fn set(&mut self, key: &str, value: &str, at: Option<At>) -> std::result::Result<(), String> {
        self.settings.set(key, value)?;
        self.places.retain(|(known, _)| known != key);
        self.places.push((key.into(), at));
        Ok(())
    }

    /// Where `key` was given, if it was: `Some(None)` is the command line.
    pub(crate) fn place(&self, key: &str) -> Option<Option<&At>> {
        self.places.iter().find(|(known, _)| known == key).map(|(_, at)| at.as_ref())
    }
}

impl Experiment {
    pub(crate) fn parse(source: Source) -> Result<Self> {
        let tree = DeTable::parse(&source.text).map_err(|error| {
            let message = error.message().lines().collect::<Vec<_>>().join(", ");
            source.complain(error.span().as_ref(), message)
        })?;
        let mut top = Reader::new(&source, tree.get_ref(), tree.span());
        top.format()?;
        let experiment = Self {
            name: top.required_text("name")?,
            title: top.required_text("title")?,
            blocks: top.count("blocks")?.unwrap_or(10),
            target_precision: top.parsed("target-precision", percent)?,
            max_time: top.parsed("max-time", str::parse)?,
            retry_disturbed: top.number("retry-disturbed", 0..=MOST_RETRIES)?.unwrap_or(0),
            trial_blocks: top.count("trial-blocks")?,
            without_ideal: top.flag("without-ideal")?,
            lock_costs: top.flag("lock-costs")?,
            settings: top.table("settings")?.map(|mut table| table.patch()).transpose()?.unwrap_or_default(),
            points: top.tables("point")?.into_iter().map(|table| table.point()).collect::<Result<_>>()?,
            axes: top.table("grid")?.map(|mut table| table.axes()).transpose()?.unwrap_or_default(),
            arms: top.tables("arm")?.into_iter().map(|mut table| table.arm()).collect::<Result<_>>()?,
            comparisons: vec![],
            control: None,
            quick: top.table("quick")?.map(|mut table| table.quick()).transpose()?,
            source: source.clone(),
        };
        let experiment = experiment.with_references(&mut top)?;
        top.finish(&[
            "format",
            "name",
            "title",
            "blocks",
            "target-precision",
            "max-time",
            "retry-disturbed",
            "trial-blocks",
            "without-ideal",
            "lock-costs",
            "settings",
            "point",
            "grid",
            "arm",
            "compare",
            "control",
            "quick",
        ])?;
        Ok(experiment)
    }

    /// Reads what refers to arms and axes, now that they are known.
    fn with_references(mut self, top: &mut Reader<'_>) -> Result<Self> {
        if self.arms.is_empty() {
            return Err(top.source.complain(None, "no [[arm]]: an experiment compares at least one"));
        }
        for (i, arm) in self.arms.iter().enumerate() {
            if self.arms[..i].iter().any(|other| slug(&other.name) == slug(&arm.name)) {
                let at = arm.patch.place("name").flatten();
                return Err(top.source.complain(at, format!("two arms are called '{}'", arm.name)));
            }
        }
        self.check_points()?;
        self.check_settings()?;
        let varying = self.varying();
        for (arm, table) in self.arms.iter_mut().zip(top.tables("arm")?) {
            arm.only = table.only(&varying)?;
        }
        let with_beside = self.arms_and_beside();
        let names: Vec<&str> = with_beside.iter().map(String::as_str).collect();
        self.comparisons = top
            .tables("compare")?
            .into_iter()
            .map(|mut table| table.comparison(&names))
            .collect::<Result<_>>()?;
        self.control = top.table("control")?.map(|mut table| table.control(&names, &varying)).transpose()?;
        Ok(self)
    }

    /// Names of all arms, each followed by those of the guests that run beside its first.
    pub(crate) fn arms_and_beside(&self) -> Vec<String> {
        let of_arm = |arm: &Arm| {
            let settings = arm.patch.settings.clone().over(&self.settings.settings);
            let name = |(index, vm): (usize, &Vm)| {
                let guest = vm.name.clone().unwrap_or_else(|| vm::default_name(index));
                beside(&arm.name, &guest)
            };
            let others: Vec<String> = settings.vm.iter().enumerate().skip(1).map(name).collect();
            std::iter::once(arm.name.clone()).chain(others).collect::<Vec<_>>()
        };
        self.arms.iter().flat_map(of_arm).collect()
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

    /// All points have values for the same settings, none of them in the grid, and no two the same.
    fn check_points(&self) -> Result<()> {
        let Some(first) = self.points.first() else { return Ok(()) };
        let keys = |point: &PointValues| point.0.iter().map(|(key, ..)| key.clone()).collect::<Vec<_>>();
        for (i, point) in self.points.iter().enumerate() {
            let complain = |message: &str| Err(self.source.complain(Some(&point.1), message));
            if keys(point) != keys(first) {
                return complain("all [[point]]s must set the same settings, in the same order");
            }
            if let Some((key, _)) =
                point.0.iter().find(|(key, _)| self.axes.iter().any(|axis| axis.key == *key))
            {
                return complain(&format!("{key} is in [grid] too"));
            }
            if self.points[..i].iter().any(|other| other.0 == point.0) {
                return complain("this [[point]] stands here twice");
            }
        }
        Ok(())
    }

    /// What varies is set nowhere else. (vCPUs are given by their number or by their ratio to the pCPUs.)
    fn check_settings(&self) -> Result<()> {
        let same = |a: &str, b: &str| a == b || [a, b].iter().all(|key| matches!(*key, "vcpus" | "ratio"));
        for axis in self.varying() {
            let set = self.settings.places.iter().find(|(key, _)| same(key, &axis.key));
            if let Some((key, at)) = set {
                let (key, axis) = (key, &axis.key);
                let varies =
                    if self.axes.iter().any(|other| other.key == *axis) { "[grid]" } else { "[[point]]" };
                let message = if key == axis {
                    format!("{key} is in {varies} too")
                } else {
                    format!("{key} stands against {axis} in {varies}: both say how many vCPUs there are")
                };
                return Err(self.source.complain(at.as_ref(), message));
            }
        }
        Ok(())
    }

    /// Applies what the command line says.
    pub(crate) fn apply(&mut self, overrides: &Overrides) -> Result<()> {
        if overrides.quick {
            let quick = self.quick.take().ok_or_else(|| {
                let origin = &self.source.origin;
                Failure::usage(format!(
                    "{origin} has no [quick] part: drop --quick, or use --blocks and --window"
                ))
            })?;
            self.blocks = quick.blocks.unwrap_or(self.blocks);
            for (key, at) in &quick.patch.places {
                self.settings.places.retain(|(known, _)| known != key);
                self.settings.places.push((key.clone(), at.clone()));
            }
            self.settings.settings = quick.patch.settings.over(&self.settings.settings);
        }
        // Who asks for a number of blocks wants that number.
        if overrides.quick || overrides.blocks.is_some() {
            self.target_precision = None;
        }
        self.blocks = overrides.blocks.unwrap_or(self.blocks);
        let flags = [
            ("cpus", overrides.cpus.as_ref().map(ToString::to_string)),
            ("sched", overrides.sched.map(|sched| format!("{sched:?}").to_lowercase())),
            ("window", overrides.window.as_ref().map(ToString::to_string)),
        ];
        for (key, value) in flags {
            if let Some(value) = value {
                self.override_setting(key, &value)
                    .map_err(|error| Failure::usage(format!("--{key}: {error}")))?;
            }
        }
        for (key, value) in &overrides.sets {
            self.override_setting(key, value)
                .map_err(|error| Failure::usage(format!("--set {key}: {error}")))?;
        }
        if let Some(ratios) = &overrides.ratios {
            self.override_axis("ratio", ratios.iter().map(ToString::to_string).collect());
        }
        Ok(())
    }

    /// Leaves out ratios of the file that a machine with so many pCPUs is too large for; returns them.
    pub(crate) fn leave_out_ratios(&mut self, pcpus: usize, most_vcpus: usize) -> Vec<String> {
        let fits =
            |ratio: &str| ratio.parse().is_ok_and(|ratio: usize| ratio.saturating_mul(pcpus) <= most_vcpus);
        let Some(axis) = self.axes.iter_mut().find(|axis| axis.key == "ratio") else { return vec![] };
        // What was asked for on the command line is not left out but complained about.
        let (kept, left_out): (Vec<_>, Vec<_>) =
            axis.values.drain(..).partition(|(ratio, at)| at.is_none() || fits(ratio));
        axis.values = kept;
        let left_out: Vec<String> = left_out.into_iter().map(|(ratio, _)| ratio).collect();
        if let Some(control) = &mut self.control {
            control.setting.retain(|(key, value)| key != "ratio" || !left_out.contains(value));
        }
        left_out
    }

    /// A setting for all cells: arms and axes give way to it.
    fn override_setting(&mut self, key: &str, value: &str) -> std::result::Result<(), String> {
        let key = if key == "duration" { "window" } else { key };
        let displaced: &[&str] = if matches!(key, "vcpus" | "ratio") { &["vcpus", "ratio"] } else { &[key] };
        Settings::default().set(key, value)?;
        if self.axes.iter().any(|axis| displaced.contains(&axis.key.as_str())) {
            self.axes.retain(|axis| !displaced.contains(&axis.key.as_str()) || axis.key == key);
            self.override_axis(key, vec![value.into()]);
            return Ok(());
        }
        let in_points =
            |point: &PointValues| point.0.iter().any(|(key, _)| displaced.contains(&key.as_str()));
        if self.points.iter().any(in_points) {
            return Err("the points of this experiment set it: change a copy of the file (--print)".into());
        }
        if let Some(arm) =
            self.arms.iter().find(|arm| displaced.iter().any(|key| arm.patch.place(key).is_some()))
        {
            return Err(format!("arm '{}' sets it itself: change a copy of the file (--print)", arm.name));
        }
        self.settings.set(key, value, None)
    }

    fn override_axis(&mut self, key: &str, values: Vec<String>) {
        let values = values.into_iter().map(|value| (value, None)).collect();
        match self.axes.iter_mut().find(|axis| axis.key == key) {
            Some(axis) => axis.values = values,
            None => self.axes.push(Axis { key: key.into(), values }),
        }
    }
}

/// The guests and the settings of a guest-set file.
pub(crate) fn guest_set(path: &Path) -> Result<Settings> {
    let text = fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("{}: {error}: give a readable file", path.display())))?;
    let source = Source { origin: path.display().to_string(), text };
    let tree = DeTable::parse(&source.text).map_err(|error| {
        source.complain(error.span().as_ref(), error.message().lines().collect::<Vec<_>>().join(", "))
    })?;
    let top = Reader::new(&source, tree.get_ref(), tree.span());
    top.format()?;
    let patch = top.table("settings")?.map(|mut table| table.patch()).transpose()?.unwrap_or_default();
    let vm = top.tables("vm")?.iter().map(Reader::vm).collect::<Result<Vec<_>>>()?;
    top.finish(&["format", "settings", "vm"])?;
    if vm.is_empty() {
        return Err(source.complain(None, "no [[vm]]: a guest set has at least one"));
    }
    Ok(Settings { vm, ..patch.settings })
}

/// A name as part of a cell's id: lower case, words joined by hyphens.
pub(crate) fn slug(name: &str) -> String {
    let words = name.split(|c: char| !c.is_alphanumeric() && c != '.').filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("-").to_lowercase()
}

/// One line about an experiment, for `haltkick list experiments`.
pub(crate) fn summary(text: &str) -> String {
    let source = Source { origin: String::new(), text: text.into() };
    Experiment::parse(source).map_or_else(|failure| failure.message, |experiment| experiment.title)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINIMAL: &str = "format = 1\nname = \"x\"\ntitle = \"X\"\n";

    fn parse(text: &str) -> Result<Experiment> {
        Experiment::parse(Source { origin: "x.toml".into(), text: text.into() })
    }

    fn complaint(rest: &str) -> String {
        parse(&format!("{MINIMAL}{rest}")).unwrap_err().message
    }

    #[test]
    fn every_built_in_experiment_is_read() {
        for (name, text) in BUILT_IN {
            let experiment = parse(text).unwrap();
            assert_eq!(experiment.name, name);
            let names_pair = experiment.control.is_some() || experiment.trial_blocks.is_some();
            assert!(names_pair, "{name} has no A/A pair");
        }
    }

    #[test]
    fn axes_and_arms_keep_the_order_of_the_file() {
        let experiment = parse(&format!(
            "{MINIMAL}[grid]\nratio = [8, 1]\nhold = [\"2us\", \"1us\"]\n[[arm]]\nname = \"z\"\n[[arm]]\nname = \"a\"\n"
        ))
        .unwrap();
        let axes: Vec<&str> = experiment.axes.iter().map(|axis| axis.key.as_str()).collect();
        let arms: Vec<&str> = experiment.arms.iter().map(|arm| arm.name.as_str()).collect();
        assert_eq!((axes, arms), (vec!["ratio", "hold"], vec!["z", "a"]));
        assert_eq!(experiment.axes[0].values[0].0, "8");
    }

    #[test]
    fn an_arm_stands_only_where_it_says() {
        let mut experiment = parse(&format!(
            "{MINIMAL}[grid]\nratio = [8, 1]\nhold = [\"2us\", \"1us\"]\n[[arm]]\nname = \"a\"\n[[arm]]\nname = \"b\"\n\
             only = {{ ratio = 8, hold = \"1us\" }}\n"
        ))
        .unwrap();
        let setting = |ratio: &str, hold: &str| {
            [("ratio", ratio), ("hold", hold)].map(|(key, value)| (key.to_owned(), value.to_owned()))
        };
        let [a, b] = &experiment.arms[..] else { panic!("two arms") };
        for (ratio, hold, stands) in [("8", "1us", true), ("8", "2us", false), ("1", "1us", false)] {
            assert_eq!(
                (a.stands_at(&setting(ratio, hold)), b.stands_at(&setting(ratio, hold))),
                (true, stands)
            );
        }
        let overrides = Overrides { sets: vec![("vcpus".into(), "6".into())], ..Overrides::default() };
        experiment.apply(&overrides).unwrap();
        assert!(experiment.arms[1].stands_at(&[("vcpus".into(), "6".into()), ("hold".into(), "1us".into())]));
    }

    #[test]
    fn complaints_name_line_and_column_and_what_was_meant() {
        for (rest, expected) in [
            ("[settings]\nhodl = \"1us\"\n", "x.toml:5:1: unknown key 'hodl': did you mean 'hold'?"),
            ("[settings]\nhold = 5\n", "x.toml:5:8: hold: '5' has no unit: write 5ns, 5us, 5ms or 5s"),
            ("[settings]\nhold = [1]\n", "x.toml:5:8: a number, or a text in quotes, is expected here"),
            ("retry-disturbed = -1\n", "x.toml:4:19: 'retry-disturbed' must be a whole number from 0 to 100"),
            ("blocks = 0\n", "x.toml:4:10: 'blocks' must be a whole number from 1 to 100000"),
            ("target-precision = \"5\"\n", "x.toml:4:20: target-precision: write a percentage, such as 2%"),
            ("max-time = \"5\"\n", "x.toml:4:12: max-time: '5' has no unit: write 5ns, 5us, 5ms or 5s"),
            (
                "[[point]]\nhold = \"1us\"\n[[point]]\nthink = \"1us\"\n[[arm]]\nname = \"a\"\n",
                "x.toml:6:1: all [[point]]s must set the same settings, in the same order",
            ),
            (
                "[[point]]\nratio = 1\n[grid]\nratio = [1]\n[[arm]]\nname = \"a\"\n",
                "x.toml:4:1: ratio is in [grid] too",
            ),
            (
                "[settings]\nratio = 8\n[grid]\nratio = [1, 2]\n[[arm]]\nname = \"a\"\n",
                "x.toml:5:1: ratio is in [grid] too",
            ),
            (
                "[settings]\nvcpus = 8\n[grid]\nratio = [1, 2]\n[[arm]]\nname = \"a\"\n",
                "x.toml:5:1: vcpus stands against ratio in [grid]: both say how many vCPUs there are",
            ),
            (
                "[settings]\nhold = \"1us\"\n[[point]]\nhold = \"1us\"\n[[arm]]\nname = \"a\"\n",
                "x.toml:5:1: hold is in [[point]] too",
            ),
            ("[[point]]\nhold = 5\n", "x.toml:5:8: hold: '5' has no unit: write 5ns, 5us, 5ms or 5s"),
            ("[grid]\nratio = 5\n", "x.toml:5:1: 'ratio' must be a list, such as [1, 2]"),
            ("[grid]\nratio = [1, 1]\n", "x.toml:5:13: 1 stands in the list twice"),
            ("", "x.toml:1:1: no [[arm]]: an experiment compares at least one"),
            ("[[arm]]\nlock = \"tas\"\n", "x.toml:4:1: 'name' is missing here"),
            ("[[arm]]\nname = \"a\"\n[[arm]]\nname = \"a\"\n", "x.toml:7:8: two arms are called 'a'"),
            (
                "[[arm]]\nname = \"tas\"\n[[compare]]\nname = \"c\"\narm = \"tsa\"\nbaseline = \"tas\"\n",
                "x.toml:8:7: unknown arm 'tsa': did you mean 'tas'?",
            ),
            (
                "[grid]\nratio = [1]\n[[arm]]\nname = \"a\"\n[control]\narm = \"a\"\nratio = 2\n",
                "x.toml:10:9: ratio = 2 is in no [grid] or [[point]], so that there is no such cell",
            ),
            (
                "[grid]\nratio = [1]\n[[arm]]\nname = \"a\"\nonly = { ratio = 2 }\n",
                "x.toml:8:18: ratio = 2 is in no [grid] or [[point]], so that there is no such cell",
            ),
            (
                "[grid]\nratio = [1]\n[[arm]]\nname = \"a\"\nonly = { ratoi = 1 }\n",
                "x.toml:8:10: unknown key 'ratoi': did you mean 'ratio'?",
            ),
        ] {
            assert_eq!(complaint(rest), expected);
        }
    }

    #[test]
    fn broken_toml_is_located() {
        let message = complaint("[settings\n");
        assert!(message.starts_with("x.toml:4:"), "{message}");
        assert!(!message.contains('\n'), "{message}");
    }

    #[test]
    fn another_format_is_refused() {
        assert!(parse("format = 2\n").unwrap_err().message.starts_with("x.toml:1:10: another format than 1"));
        assert!(parse("name = \"x\"\n").unwrap_err().message.contains("begin the file with format = 1"));
    }

    #[test]
    fn the_command_line_displaces_what_the_file_says() {
        let mut experiment = parse(BUILT_IN[0].1).unwrap();
        let overrides = Overrides {
            quick: true,
            sets: vec![("hold".into(), "5us".into()), ("vcpus".into(), "6".into())],
            blocks: Some(2),
            ..Overrides::default()
        };
        experiment.apply(&overrides).unwrap();
        assert_eq!(experiment.blocks, 2);
        assert_eq!(experiment.settings.settings.hold, Some("5us".parse().unwrap()));
        assert!(experiment.axes.is_empty() || experiment.axes[0].key == "vcpus", "{:?}", experiment.axes);
    }

    #[test]
    fn a_setting_that_tells_the_arms_apart_cannot_be_overridden() {
        let mut experiment = parse(BUILT_IN[0].1).unwrap();
        let overrides = Overrides { sets: vec![("lock".into(), "mcs".into())], ..Overrides::default() };
        let failure = experiment.apply(&overrides).unwrap_err();
        assert!(failure.message.contains("arm 'tas' sets it itself"), "{failure}");
    }

    #[test]
    fn a_large_machine_leaves_out_the_ratios_that_it_is_too_large_for() {
        let mut experiment = parse(BUILT_IN[0].1).unwrap();
        assert_eq!(experiment.leave_out_ratios(2, 1024), [""; 0]);
        assert_eq!(experiment.leave_out_ratios(100, 1024), ["16", "32"]);
        assert_eq!(experiment.axes[0].values.len(), 4);
        experiment.apply(&Overrides { ratios: Some(vec![16]), ..Overrides::default() }).unwrap();
        assert_eq!(experiment.leave_out_ratios(100, 1024), [""; 0], "asked for on the command line");
    }

    #[test]
    fn slugs_are_fit_for_shells_and_file_names() {
        assert_eq!(slug("qspinlock PV on"), "qspinlock-pv-on");
        assert_eq!(slug("+3 % (hold=1.03us)"), "3-hold-1.03us");
    }
}
