//! Experiment files: what is compared, at which settings, how often. Guest-set files: guests that run at the same time.
//!
//! Every complaint about a file names its line and column.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::json;

use super::contents::{Axis, Experiment, PointValues};
use super::reader::{Reader, stands_against};
use super::schema::SCHEMA;
use super::source::Source;
use crate::record::place::{is_taken, slug};
use crate::settings::{self, Settings, Vm, table};
use crate::text::exit::Result;
use crate::text::nearest;
use crate::text::quantity::percentage;

impl Experiment {
    pub(crate) fn parse(source: Source) -> Result<Self> {
        let tree = source.tree()?;
        let top = Reader::top(&source, &tree, &SCHEMA)?;
        let experiment = Self {
            name: top.required_text("name")?,
            title: top.required_text("title")?,
            blocks: top.number("blocks")?.unwrap_or(10),
            target_precision: top.parsed("target-precision", percentage)?,
            max_time: top.parsed("max-time", str::parse)?,
            retry_disturbed: top.number("retry-disturbed")?.unwrap_or(0),
            trial_blocks: top.number("trial-blocks")?,
            without_ideal: top.flag("without-ideal")?,
            lock_costs: top.flag("lock-costs")?,
            settings: top.table("settings")?.map(|table| table.settings()).transpose()?.unwrap_or_default(),
            points: top.tables("point")?.into_iter().map(|table| table.point()).collect::<Result<_>>()?,
            axes: top.table("grid")?.map(|table| table.axes()).transpose()?.unwrap_or_default(),
            arms: top.tables("arm")?.into_iter().map(|table| table.arm()).collect::<Result<_>>()?,
            comparisons: vec![],
            control: None,
            published: vec![],
            quick: top.table("quick")?.map(|table| table.quick()).transpose()?,
            robust: top.table("robust")?.map(|table| table.robust()).transpose()?,
            source: source.clone(),
        };
        experiment.with_references(&top)
    }

    /// Reads what refers to arms and axes, now that they are known.
    fn with_references(mut self, top: &Reader<'_>) -> Result<Self> {
        if self.arms.is_empty() {
            return Err(top.source.complain(None, "no [[arm]]: an experiment compares at least one"));
        }
        let mut slugs = BTreeSet::new();
        for arm in &self.arms {
            let at = arm.patch.place("name").flatten();
            if is_taken(&arm.name) {
                let message =
                    format!("'{}' is the name of cells without a lock: give the arm another", arm.name);
                return Err(top.source.complain(at, message));
            }
            if !slugs.insert(slug(&arm.name)) {
                return Err(top.source.complain(at, format!("two arms are called '{}'", arm.name)));
            }
        }
        self.check_points()?;
        self.check_settings()?;
        let varying = self.varying();
        for (arm, table) in self.arms.iter_mut().zip(top.tables("arm")?) {
            arm.only = table.point_of("only", &varying)?;
        }
        let with_beside = self.arms_and_beside();
        let names: Vec<&str> = with_beside.iter().map(String::as_str).collect();
        self.comparisons = top
            .tables("compare")?
            .into_iter()
            .map(|table| table.comparison(&names))
            .collect::<Result<_>>()?;
        for (i, comparison) in self.comparisons.iter().enumerate() {
            if self.comparisons[..i].iter().any(|other| other.name == comparison.name) {
                let what = format!("two [[compare]] are called '{}'", comparison.name);
                return Err(top.source.complain(None, what));
            }
        }
        // Guests alongside have no runs of their own.
        let arms: Vec<&str> = self.arms.iter().map(|arm| arm.name.as_str()).collect();
        self.control = top.table("control")?.map(|table| table.control(&arms, &varying)).transpose()?;
        self.published = self.read_published(top)?;
        self.check_boots()?;
        self.check_quick()?;
        Ok(self)
    }

    /// Checks that a first look leaves arms and values of the grid that there are.
    fn check_quick(&self) -> Result<()> {
        let Some(quick) = &self.quick else { return Ok(()) };
        for Axis { key, values } in &quick.axes {
            let of_grid = self.axes.iter().filter(|axis| axis.key == *key).flat_map(|axis| &axis.values);
            let known: Vec<&String> = of_grid.map(|(known, _)| known).collect();
            if let Some((value, at)) = values.iter().find(|(value, _)| !known.contains(&value)) {
                let message = format!("{key} = {value} is not in [grid], of which --quick takes a part");
                return Err(self.source.complain(at.as_ref(), message));
            }
        }
        let names: Vec<&str> = self.arms.iter().map(|arm| arm.name.as_str()).collect();
        match quick.arms.iter().flatten().find(|(name, _)| !names.contains(&name.as_str())) {
            Some((name, at)) => Err(self.source.complain(Some(at), nearest::unknown("arm", name, &names))),
            None => Ok(()),
        }
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

    /// Checks that what varies is set nowhere else. (vCPUs are given by their number or by their ratio to the pCPUs.)
    fn check_settings(&self) -> Result<()> {
        let same =
            |a: &str, b: &str| a == b || table::find(a).is_some_and(|setting| setting.instead_of == Some(b));
        let varying = self.varying();
        for (i, axis) in varying.iter().enumerate() {
            if let Some(other) = varying[..i].iter().find(|other| same(&other.key, &axis.key)) {
                let at = axis.values.first().and_then(|(_, at)| at.as_ref());
                return Err(self.source.complain(at, stands_against(&axis.key, &other.key)));
            }
        }
        for axis in varying {
            let quick = self.quick.iter().flat_map(|quick| &quick.patch.places);
            // Command lines are no conflict: both are used.
            let is_set = |(key, _): &(&String, _)| same(key, &axis.key) && *key != table::CMDLINE;
            if let Some((key, at)) = self.settings.places.iter().chain(quick).find(is_set) {
                let (key, axis) = (key, &axis.key);
                let varies =
                    if self.axes.iter().any(|other| other.key == *axis) { "[grid]" } else { "[[point]]" };
                let message = if key == axis {
                    format!("{key} is in {varies} too")
                } else {
                    format!("{}, in {varies}", stands_against(key, axis))
                };
                return Err(self.source.complain(at.as_ref(), message));
            }
        }
        Ok(())
    }
}

/// One line about an experiment, for `haltkick list experiments`.
pub(crate) fn summary(text: &str) -> String {
    let source = Source { origin: String::new(), text: text.into() };
    Experiment::parse(source).map_or_else(|failure| failure.message, |experiment| experiment.title)
}

/// The guests and the settings of a guest-set file.
pub(crate) fn read_guest_set(path: &Path) -> Result<Settings> {
    let source = Source::read(path, "give a readable file")?;
    let tree = source.tree()?;
    let settings = json!({ "properties": settings::schemas(false) });
    let schema = json!({ "properties": { "format": {}, "settings": settings, "vm": {} } });
    let top = Reader::top(&source, &tree, &schema)?;
    let patch = top.table("settings")?.map(|table| table.settings()).transpose()?.unwrap_or_default();
    let vm = top.tables("vm")?.iter().map(Reader::vm).collect::<Result<Vec<_>>>()?;
    if vm.is_empty() {
        return Err(source.complain(None, "no [[vm]]: a guest set has at least one"));
    }
    let guests = vm.iter().map(Vm::to_string).collect::<Vec<_>>().join("; ");
    let with = patch.settings.with([("vm", guests.as_str())]);
    with.map_err(|error| source.complain(None, error))
}
