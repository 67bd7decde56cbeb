//! `[robust]`, or `--robust`: whether comparisons depend on what is guessed of a simulated machine. Each machine of the experiment is followed by
//! machines like it, which are values of its axis like any other.

use super::contents::{Axis, Experiment};
use super::overrides::Overrides;
use crate::settings::machines;
use crate::text::exit::{Failure, Result};

/// Seeds that an interval needs at least.
const LEAST_BLOCKS: u32 = 5;
/// Machines like each, unless the file says how many.
pub(super) const POINTS: u32 = 12;
/// How many it may say.
pub(super) const MOST_POINTS: std::ops::RangeInclusive<u32> = 4..=200;

impl Experiment {
    /// Adds the machines that `--robust` asks for, or else `[robust]`; that section adds none to a first look, whose few seeds could
    /// not tell.
    pub(super) fn add_machines_like(&mut self, overrides: &Overrides) -> Result<()> {
        let (points, section) = match (overrides.robust, self.robust.clone()) {
            (Some(points), _) => (points, None),
            (None, Some((points, section))) if !overrides.quick => (points, Some(section)),
            _ => return Ok(()),
        };
        self.follow_machines(points, section.is_some()).map_err(|message| match &section {
            Some(section) => self.source.complain(Some(section), format!("[robust]: {message}")),
            None => Failure::usage(format!("--robust: {message}")),
        })
    }

    /// Adds `points` machines like it behind each machine. A refusal's advice is about the section (`of_file`), or about the flag.
    fn follow_machines(&mut self, points: u32, of_file: bool) -> std::result::Result<(), String> {
        const KEY: &str = "machine";
        let given = |key| self.settings.settings.given(key).map(|value| value.to_string());
        if given("engine").as_deref() != Some("sim") {
            let advice = if of_file { "set engine = \"sim\" in [settings]" } else { "--set engine=sim" };
            return Err(format!("only simulated machines have guesses: {advice}"));
        }
        if !of_file && self.comparisons.is_empty() {
            return Err("this experiment compares nothing".into());
        }
        if self.blocks < LEAST_BLOCKS {
            return Err(format!("{} blocks are too few seeds: at least {LEAST_BLOCKS}", self.blocks));
        }
        // Its runs would be of one machine under the names of all.
        self.is_set_by_none(&[KEY]).map_err(|error| format!("all arms need the same {KEY}: {error}"))?;
        if !self.axes.iter().any(|axis| axis.key == KEY) {
            let in_file = "set a machine in [settings], or machines in [grid]";
            let machine = given(KEY).ok_or(if of_file { in_file } else { "--set machine=NAME" })?;
            self.axes.insert(0, Axis { key: KEY.into(), values: vec![(machine, None)] });
            self.settings.settings.forget(KEY);
            self.settings.places.remove(KEY);
        }
        let like = |(machine, place): &(String, Option<_>)| {
            let others =
                (1..=points).map(|number| (machines::name_like(machine, number, points), place.clone()));
            std::iter::once((machine.clone(), place.clone())).chain(others).collect::<Vec<_>>()
        };
        for axis in self.axes.iter_mut().filter(|axis| axis.key == KEY) {
            axis.values = axis.values.iter().flat_map(like).collect();
        }
        Ok(())
    }
}
