//! Experiment files: what is compared, at which settings, how often.
//!
//! Every complaint about a file names its line and column.

use std::fmt;
use std::fs;
use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::cli::Overrides;
use crate::exit::{Failure, Result};
use crate::nearest;
use crate::rate::Measure;
use crate::settings::{KEYS, Settings};
use crate::vm::{self, Vm};

/// Version of the file format.
const FORMAT: i64 = 1;

/// Experiments that come with the program: name and text.
pub(crate) const BUILT_IN: [(&str, &str); 14] = [
    ("overcommit", include_str!("../experiments/overcommit.toml")),
    ("locks", include_str!("../experiments/locks.toml")),
    ("qspinlock", include_str!("../experiments/qspinlock.toml")),
    ("unfair", include_str!("../experiments/unfair.toml")),
    ("work-conserving", include_str!("../experiments/work-conserving.toml")),
    ("hand-off", include_str!("../experiments/hand-off.toml")),
    ("osq", include_str!("../experiments/osq.toml")),
    ("sleeping-locks", include_str!("../experiments/sleeping-locks.toml")),
    ("hostile", include_str!("../experiments/hostile.toml")),
    ("fault", include_str!("../experiments/fault.toml")),
    ("grant", include_str!("../experiments/grant.toml")),
    ("rwlock", include_str!("../experiments/rwlock.toml")),
    ("aa", include_str!("../experiments/aa.toml")),
    ("injected", include_str!("../experiments/injected.toml")),
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
    /// Blocks per trial, where verdicts are to be counted over many trials.
    pub(crate) trial_blocks: Option<u32>,
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

/// What the figures of `guest`, which runs beside the first of `arm`, are called.
pub(crate) fn beside(arm: &str, guest: &str) -> String {
    format!("{arm} / {guest}")
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
            trial_blocks: top.count("trial-blocks")?,
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
            "trial-blocks",
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
        let with_beside = self.arms_and_beside();
        let names: Vec<&str> = with_beside.iter().map(String::as_str).collect();
        self.comparisons = top
            .tables("compare")?
            .into_iter()
            .map(|mut table| table.comparison(&names))
            .collect::<Result<_>>()?;
        self.control =
            top.table("control")?.map(|mut table| table.control(&names, &self.varying())).transpose()?;
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

/// One table of the file, with complaints that know where it is.
struct Reader<'a> {
    source: &'a Source,
    table: &'a DeTable<'a>,
    at: At,
}

type Node<'a> = Spanned<DeValue<'a>>;

impl<'a> Reader<'a> {
    fn new(source: &'a Source, table: &'a DeTable<'a>, at: At) -> Self {
        Self { source, table, at }
    }

    fn get(&self, key: &str) -> Option<&'a Node<'a>> {
        self.table.iter().find(|(name, _)| name.get_ref() == key).map(|(_, value)| value)
    }

    /// Keys and values in the order of the file.
    fn entries(&self) -> Vec<(&'a str, At, &'a Node<'a>)> {
        let mut entries: Vec<_> =
            self.table.iter().map(|(key, value)| (key.get_ref().as_ref(), key.span(), value)).collect();
        entries.sort_by_key(|(_, at, _)| at.start);
        entries
    }

    fn complain(&self, at: &At, message: impl fmt::Display) -> Failure {
        self.source.complain(Some(at), message)
    }

    /// Refuses keys that nobody knows.
    fn finish(&self, known: &[&str]) -> Result<()> {
        match self.entries().into_iter().find(|(key, ..)| !known.contains(key)) {
            None => Ok(()),
            Some((key, at, _)) => Err(self.complain(&at, nearest::unknown("key", key, known))),
        }
    }

    fn format(&self) -> Result<()> {
        let Some(node) = self.get("format") else {
            return Err(self
                .source
                .complain(None, format!("no 'format': begin the file with format = {FORMAT}")));
        };
        match scalar(node.get_ref()).and_then(|text| text.parse::<i64>().ok()) {
            Some(FORMAT) => Ok(()),
            _ => Err(self
                .complain(&node.span(), format!("another format than {FORMAT}, the one this version reads"))),
        }
    }

    fn text(&self, key: &str) -> Result<Option<String>> {
        let Some(node) = self.get(key) else { return Ok(None) };
        match node.get_ref().as_str() {
            Some(text) if !text.is_empty() => Ok(Some(text.to_owned())),
            _ => Err(self.complain(&node.span(), format!("'{key}' must be a text in quotes"))),
        }
    }

    fn required_text(&self, key: &str) -> Result<String> {
        self.text(key)?.ok_or_else(|| self.complain(&self.at, format!("'{key}' is missing here")))
    }

    fn count(&self, key: &str) -> Result<Option<u32>> {
        let Some(node) = self.get(key) else { return Ok(None) };
        let count = node.get_ref().as_integer().and_then(|integer| integer.as_str().parse().ok());
        match count {
            Some(count @ 1..=100_000) => Ok(Some(count)),
            _ => Err(self.complain(&node.span(), format!("'{key}' must be a whole number from 1 to 100000"))),
        }
    }

    fn flag(&self, key: &str) -> Result<bool> {
        let Some(node) = self.get(key) else { return Ok(false) };
        let flag = node.get_ref().as_bool();
        flag.ok_or_else(|| self.complain(&node.span(), format!("'{key}' must be true or false")))
    }

    fn table(&self, key: &str) -> Result<Option<Reader<'a>>> {
        let Some(node) = self.get(key) else { return Ok(None) };
        match node.get_ref().as_table() {
            Some(table) => Ok(Some(Reader::new(self.source, table, node.span()))),
            None => Err(self.complain(&node.span(), format!("'{key}' must be a table: write [{key}]"))),
        }
    }

    fn tables(&self, key: &str) -> Result<Vec<Reader<'a>>> {
        let Some(node) = self.get(key) else { return Ok(vec![]) };
        let wrong =
            || self.complain(&node.span(), format!("'{key}' must be a list of tables: write [[{key}]]"));
        let array = node.get_ref().as_array().ok_or_else(wrong)?;
        array
            .iter()
            .map(|node| {
                let table = node.get_ref().as_table().ok_or_else(wrong)?;
                Ok(Reader::new(self.source, table, node.span()))
            })
            .collect()
    }

    /// All keys as settings, except those in `others`.
    fn settings(&self, others: &[&str]) -> Result<Patch> {
        let mut patch = Patch::default();
        let known: Vec<&str> = KEYS.iter().chain(others).copied().collect();
        self.finish(&known)?;
        for (key, key_at, node) in self.entries() {
            if others.contains(&key) {
                continue;
            }
            let value = self.scalar(node)?;
            patch
                .set(key, &value, Some(key_at))
                .map_err(|error| self.complain(&node.span(), format!("{key}: {error}")))?;
        }
        Ok(patch)
    }

    fn scalar(&self, node: &Node<'_>) -> Result<String> {
        scalar(node.get_ref())
            .ok_or_else(|| self.complain(&node.span(), "a number, or a text in quotes, is expected here"))
    }

    fn vm(&self) -> Result<Vm> {
        let mut vm = Vm::default();
        for (key, key_at, node) in self.entries() {
            let value = self.scalar(node)?;
            vm.set(key, &value).map_err(|error| self.complain(&key_at, error))?;
        }
        Ok(vm)
    }

    fn patch(&mut self) -> Result<Patch> {
        self.settings(&[])
    }

    fn axes(&mut self) -> Result<Vec<Axis>> {
        self.finish(KEYS)?;
        self.entries().into_iter().map(|(key, at, node)| self.axis(key, &at, node)).collect()
    }

    fn axis(&self, key: &str, at: &At, node: &'a Node<'a>) -> Result<Axis> {
        let values = node.get_ref().as_array().filter(|values| !values.is_empty());
        let values =
            values.ok_or_else(|| self.complain(at, format!("'{key}' must be a list, such as [1, 2]")))?;
        let mut axis = Axis { key: key.into(), values: vec![] };
        for node in values {
            let value = self.scalar(node)?;
            Settings::default().set(key, &value).map_err(|error| self.complain(&node.span(), error))?;
            if axis.values.iter().any(|(known, _)| *known == value) {
                return Err(self.complain(&node.span(), format!("{value} stands in the list twice")));
            }
            axis.values.push((value, Some(node.span())));
        }
        Ok(axis)
    }

    fn point(&self) -> Result<PointValues> {
        self.settings(&[])?;
        let values = self.entries().into_iter().map(|(key, _, node)| Ok((key.into(), self.scalar(node)?)));
        Ok(PointValues(values.collect::<Result<_>>()?, self.at.clone()))
    }

    fn arm(&mut self) -> Result<Arm> {
        let name = self.required_text("name")?;
        let mut patch = self.settings(&["name"])?;
        patch.places.push(("name".into(), self.get("name").map(Spanned::span)));
        Ok(Arm { name, patch })
    }

    fn comparison(&mut self, arms: &[&str]) -> Result<Comparison> {
        self.finish(&["name", "arm", "baseline", "of"])?;
        Ok(Comparison {
            of: self.measure()?,
            name: self.required_text("name")?,
            arm: self.reference("arm", arms)?,
            baseline: self.reference("baseline", arms)?,
        })
    }

    fn measure(&self) -> Result<Measure> {
        let Some(word) = self.text("of")? else { return Ok(Measure::default()) };
        let measures = [Measure::Throughput, Measure::LockCpu];
        measures.into_iter().find(|measure| measure.word() == word).ok_or_else(|| {
            let at = self.get("of").map_or(self.at.clone(), Spanned::span);
            self.complain(&at, nearest::unknown("measure", &word, &measures.map(Measure::word)))
        })
    }

    fn reference(&self, key: &str, arms: &[&str]) -> Result<String> {
        let name = self.required_text(key)?;
        if arms.contains(&name.as_str()) {
            return Ok(name);
        }
        let at = self.get(key).map_or(self.at.clone(), Spanned::span);
        Err(self.complain(&at, nearest::unknown("arm", &name, arms)))
    }

    fn control(&mut self, arms: &[&str], axes: &[Axis]) -> Result<Control> {
        let mut known = vec!["arm"];
        known.extend(axes.iter().map(|axis| axis.key.as_str()));
        self.finish(&known)?;
        let mut setting = vec![];
        for axis in axes {
            let Some(node) = self.get(&axis.key) else { continue };
            let value = self.scalar(node)?;
            if !axis.values.iter().any(|(known, _)| *known == value) {
                let message = format!(
                    "{} = {value} is in no [grid] or [[point]], so that there is no such cell",
                    axis.key
                );
                return Err(self.complain(&node.span(), message));
            }
            setting.push((axis.key.clone(), value));
        }
        Ok(Control { arm: self.reference("arm", arms)?, setting })
    }

    fn quick(&mut self) -> Result<Quick> {
        Ok(Quick { blocks: self.count("blocks")?, patch: self.settings(&["blocks"])? })
    }
}

/// The text of a number or of a text in quotes.
fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.clone().into_owned()),
        DeValue::Integer(integer) => Some(integer.as_str().replace('_', "")),
        _ => None,
    }
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
    fn complaints_name_line_and_column_and_what_was_meant() {
        for (rest, expected) in [
            ("[settings]\nhodl = \"1us\"\n", "x.toml:5:1: unknown key 'hodl': did you mean 'hold'?"),
            ("[settings]\nhold = 5\n", "x.toml:5:8: hold: '5' has no unit: write 5ns, 5us, 5ms or 5s"),
            ("[settings]\nhold = [1]\n", "x.toml:5:8: a number, or a text in quotes, is expected here"),
            ("blocks = 0\n", "x.toml:4:10: 'blocks' must be a whole number from 1 to 100000"),
            (
                "[[point]]\nhold = \"1us\"\n[[point]]\nthink = \"1us\"\n[[arm]]\nname = \"a\"\n",
                "x.toml:6:1: all [[point]]s must set the same settings, in the same order",
            ),
            (
                "[[point]]\nratio = 1\n[grid]\nratio = [1]\n[[arm]]\nname = \"a\"\n",
                "x.toml:4:1: ratio is in [grid] too",
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
