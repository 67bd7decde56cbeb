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
        const KEY: &str = "machine";
        let (points, section) = match (overrides.robust, self.robust.clone()) {
            (Some(points), _) => (points, None),
            (None, Some((points, section))) if !overrides.quick => (points, Some(section)),
            _ => return Ok(()),
        };
        let complain = |message: String| {
            Err(match &section {
                Some(section) => self.source.complain(Some(section), format!("[robust]: {message}")),
                None => Failure::usage(format!("--robust: {message}")),
            })
        };
        // The advice is about what was given.
        let advice = |of_file: &'static str, of_flag: &'static str| match section {
            Some(_) => of_file,
            None => of_flag,
        };
        let given = |key| self.settings.settings.given(key).map(ToString::to_string);
        if given("engine").as_deref() != Some("sim") {
            let advice = advice("set engine = \"sim\" in [settings]", "--set engine=sim");
            return complain(format!("only simulated machines have guesses: {advice}"));
        }
        if section.is_none() && self.comparisons.is_empty() {
            return complain("this experiment compares nothing".into());
        }
        if self.blocks < LEAST_BLOCKS {
            let blocks = self.blocks;
            return complain(format!("{blocks} blocks are too few seeds: at least {LEAST_BLOCKS}"));
        }
        // Its runs would be of one machine under the names of all.
        if let Err(error) = self.is_set_by_none(&[KEY]) {
            return complain(format!("all arms need the same {KEY}: {error}"));
        }
        let in_axes = self.axes.iter().position(|axis| axis.key == KEY);
        let at = match (in_axes, given(KEY)) {
            (Some(at), _) => at,
            (None, Some(machine)) => {
                self.axes.insert(0, Axis { key: KEY.into(), values: vec![(machine, None)] });
                self.settings.settings.forget(KEY);
                self.settings.places.retain(|(key, _)| key != KEY);
                0
            }
            (None, None) => {
                let advice =
                    advice("set a machine in [settings], or machines in [grid]", "--set machine=NAME");
                return complain(advice.into());
            }
        };
        let like = |(machine, place): &(String, Option<_>)| {
            let others =
                (1..=points).map(|number| (machines::name_like(machine, number, points), place.clone()));
            std::iter::once((machine.clone(), place.clone())).chain(others).collect::<Vec<_>>()
        };
        self.axes[at].values = self.axes[at].values.iter().flat_map(like).collect();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::synthetic::experiment;
    use crate::text::exit::{Exit, Failure};

    const COMPARED: &str = "[[compare]]\nname = 'b/a'\narm = 'b'\nbaseline = 'a'\n";
    const SIM: &str = "[settings]\nengine = 'sim'\n";
    const MACHINE: &str = "machine = 'nehalem-2s'\n";
    fn applied(text: &str, overrides: &Overrides) -> Result<Experiment> {
        let arms = "[[arm]]\nname = 'a'\n[[arm]]\nname = 'b'\n[quick]\nblocks = 1\n";
        let mut experiment = experiment(&format!("{text}{arms}"))?;
        experiment.apply(overrides)?;
        Ok(experiment)
    }

    fn machines_of(text: &str, overrides: &Overrides) -> Vec<String> {
        let axes = applied(text, overrides).unwrap().axes;
        let axis = axes.iter().find(|axis| axis.key == "machine");
        axis.map(|axis| axis.values.iter().map(|(value, _)| value.clone()).collect()).unwrap_or_default()
    }

    #[test]
    fn each_machine_is_followed_by_machines_like_it() {
        let one = format!("blocks = 5\n{SIM}{MACHINE}[robust]\npoints = 4\n");
        let like = ["nehalem-2s", "nehalem-2s~1/4", "nehalem-2s~2/4", "nehalem-2s~3/4", "nehalem-2s~4/4"];
        assert_eq!(machines_of(&one, &Overrides::default()), like);
        let quick = Overrides { quick: true, ..Overrides::default() };
        assert_eq!(machines_of(&one, &quick), [""; 0], "a first look has too few seeds");
        let two = format!("blocks = 5\n{SIM}[robust]\n[grid]\nmachine = ['milan-1s', 'nehalem-2s']\n");
        let found = machines_of(&two, &Overrides::default());
        assert_eq!((found.len(), found[0].as_str(), found[13].as_str()), (26, "milan-1s", "nehalem-2s"));
    }

    /// By the section, or in the flag's terms.
    #[test]
    fn what_cannot_be_robust_is_refused() {
        const SECTION: &str = "[robust]\n";
        let (sim, both) = ("engine = 'sim'\n", format!("engine = 'sim'\n{MACHINE}"));
        let (c, compared) = (format!("[[arm]]\nname = 'c'\n{MACHINE}"), format!("{SECTION}{COMPARED}"));
        let same_machine = "all arms need the same machine: arm 'c' sets it itself";
        let asked = |points| Overrides { robust: points, ..Overrides::default() };
        for (points, blocks, settings, rest, expected) in [
            (None, 5, MACHINE, SECTION, "only simulated machines have guesses"),
            (None, 4, &both, SECTION, "4 blocks are too few seeds"),
            (None, 5, sim, SECTION, "set a machine in [settings]"),
            (None, 5, &both, &format!("{SECTION}{c}"), &format!("x.toml:8:1: [robust]: {same_machine}")),
            (Some(4), 5, "", &compared, "only simulated machines have guesses: --set engine=sim"),
            (Some(4), 5, sim, &compared, "--set machine=NAME"),
            (Some(4), 5, &both, "", "this experiment compares nothing"),
            (Some(4), 4, &both, COMPARED, "4 blocks are too few seeds: at least 5"),
            (Some(4), 5, &both, &format!("{COMPARED}{c}"), same_machine),
        ] {
            let text = format!("blocks = {blocks}\n[settings]\n{settings}{rest}");
            let Failure { exit, message } = applied(&text, &asked(points)).unwrap_err();
            let (start, code) = match points {
                Some(_) => (format!("--robust: {expected}"), Exit::Usage),
                None => ("x.toml:".into(), Exit::BadExperiment),
            };
            assert!(message.starts_with(&start) && message.contains(expected), "{text}{message}");
            assert_eq!(exit, code, "{message}");
        }
    }

    #[test]
    fn the_flag_asks_in_the_place_of_the_section() {
        let asked = Overrides { robust: Some(5), ..Overrides::default() };
        for section in ["", "[robust]\npoints = 4\n"] {
            let text = format!("blocks = 5\n{SIM}{MACHINE}{section}{COMPARED}");
            let found = machines_of(&text, &asked);
            assert_eq!((found.len(), found[5].as_str()), (6, "nehalem-2s~5/5"));
            let quick = Overrides { quick: true, blocks: Some(5), ..asked.clone() };
            assert_eq!(machines_of(&text, &quick), found, "it was asked for, so that it is done");
        }
    }
}
