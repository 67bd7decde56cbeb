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
        let given = |key| self.settings.settings.given(key).map(ToString::to_string);
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
            self.settings.places.retain(|(key, _)| key != KEY);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::synthetic::experiment;

    fn machines_of(text: &str, overrides: &Overrides) -> Vec<String> {
        let arms = "[[arm]]\nname = 'a'\n[[arm]]\nname = 'b'\n[[compare]]\nname = 'b/a'\narm = 'b'\nbaseline = 'a'\n";
        let settings = "blocks = 5\n[quick]\nblocks = 1\n[settings]\nengine = 'sim'\n";
        let mut experiment = experiment(&format!("{settings}{text}{arms}")).unwrap();
        experiment.apply(overrides).unwrap();
        let axis = experiment.axes.iter().find(|axis| axis.key == "machine");
        axis.map(|axis| axis.values.iter().map(|(value, _)| value.clone()).collect()).unwrap_or_default()
    }

    #[test]
    fn each_machine_is_followed_by_machines_like_it() {
        let text = |section: &str| format!("machine = 'nehalem-2s'\n{section}");
        let (section, quick) =
            (text("[robust]\npoints = 4\n"), Overrides { quick: true, ..Overrides::default() });
        let like = ["nehalem-2s", "nehalem-2s~1/4", "nehalem-2s~2/4", "nehalem-2s~3/4", "nehalem-2s~4/4"];
        assert_eq!(machines_of(&section, &Overrides::default()), like);
        assert_eq!(machines_of(&section, &quick), [""; 0], "a first look has too few seeds");
        let two = "[robust]\n[grid]\nmachine = ['milan-1s', 'nehalem-2s']\n";
        let found = machines_of(two, &Overrides::default());
        assert_eq!((found.len(), found[0].as_str(), found[13].as_str()), (26, "milan-1s", "nehalem-2s"));
        // The flag stands for the section, in a first look, too.
        for (text, quick) in [(text(""), false), (section, true)] {
            let blocks = quick.then_some(5);
            let found =
                machines_of(&text, &Overrides { robust: Some(5), quick, blocks, ..Overrides::default() });
            assert_eq!((found.len(), found[5].as_str()), (6, "nehalem-2s~5/5"));
        }
    }
}
