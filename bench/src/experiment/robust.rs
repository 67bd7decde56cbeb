//! `[robust]`: whether comparisons depend on what is guessed of a simulated machine. Each machine of the experiment is followed by
//! machines like it, which are values of its axis like any other.

use super::contents::{Axis, Experiment};
use crate::settings::machines;
use crate::text::exit::Result;

/// Seeds that an interval needs at least.
const LEAST_BLOCKS: u32 = 5;
/// Machines like each, unless the file says how many.
pub(super) const POINTS: u32 = 12;
/// How many it may say.
pub(super) const MOST_POINTS: std::ops::RangeInclusive<u32> = 4..=200;

impl Experiment {
    /// Adds the machines that `[robust]` asks for; none to a first look, whose few seeds could not tell.
    pub(super) fn add_machines_like(&mut self, is_quick: bool) -> Result<()> {
        const KEY: &str = "machine";
        let Some((points, section)) = self.robust.clone().filter(|_| !is_quick) else { return Ok(()) };
        let complain =
            |message: String| Err(self.source.complain(Some(&section), format!("[robust]: {message}")));
        let given = |key| self.settings.settings.given(key).map(ToString::to_string);
        if given("engine").as_deref() != Some("sim") {
            return complain(
                "only simulated machines have guesses: set engine = \"sim\" in [settings]".into(),
            );
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
            (None, None) => return complain("set a machine in [settings], or machines in [grid]".into()),
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
    use super::super::overrides::Overrides;
    use super::super::source::Source;
    use super::*;
    use crate::text::exit::{Exit, Failure};

    const ARMS: &str = "[[arm]]\nname = \"a\"\n[[arm]]\nname = \"b\"\n";

    fn applied(text: &str, quick: bool) -> Result<Experiment> {
        let text = format!("format = 1\nname = \"x\"\ntitle = \"X\"\n{text}{ARMS}[quick]\nblocks = 1\n");
        let mut experiment = Experiment::parse(Source { origin: "x.toml".into(), text })?;
        experiment.apply(&Overrides { quick, ..Overrides::default() })?;
        Ok(experiment)
    }

    fn machines_of(text: &str, quick: bool) -> Vec<String> {
        let axes = applied(text, quick).unwrap().axes;
        let axis = axes.iter().find(|axis| axis.key == "machine");
        axis.map(|axis| axis.values.iter().map(|(value, _)| value.clone()).collect()).unwrap_or_default()
    }

    #[test]
    fn each_machine_is_followed_by_machines_like_it() {
        let one =
            "blocks = 5\n[settings]\nengine = \"sim\"\nmachine = \"nehalem-2s\"\n[robust]\npoints = 4\n";
        let like = ["nehalem-2s", "nehalem-2s~1/4", "nehalem-2s~2/4", "nehalem-2s~3/4", "nehalem-2s~4/4"];
        assert_eq!(machines_of(one, false), like);
        assert_eq!(machines_of(one, true), [""; 0], "a first look has too few seeds");
        let two = "blocks = 5\n[settings]\nengine = \"sim\"\n[robust]\n[grid]\nmachine = [\"milan-1s\", \"nehalem-2s\"]\n";
        let found = machines_of(two, false);
        assert_eq!((found.len(), found[0].as_str(), found[13].as_str()), (26, "milan-1s", "nehalem-2s"));
    }

    #[test]
    fn what_cannot_be_robust_is_refused() {
        let machine = "machine = \"nehalem-2s\"\n";
        for (text, expected) in [
            (format!("blocks = 5\n[settings]\n{machine}[robust]\n"), "only simulated machines have guesses"),
            (
                format!("blocks = 4\n[settings]\nengine = \"sim\"\n{machine}[robust]\n"),
                "4 blocks are too few seeds",
            ),
            ("blocks = 5\n[settings]\nengine = \"sim\"\n[robust]\n".into(), "set a machine in [settings]"),
            (
                format!(
                    "blocks = 5\n[settings]\nengine = \"sim\"\n{machine}[robust]\n[[arm]]\nname = \"c\"\n{machine}"
                ),
                "x.toml:8:1: [robust]: all arms need the same machine: arm 'c' sets it itself",
            ),
            ("[robust]\npoints = 3\n".into(), "'points' must be a whole number from 4 to 200"),
            ("[robust]\npionts = 3\n".into(), "unknown key 'pionts'"),
        ] {
            let Failure { exit, message } = applied(&text, false).unwrap_err();
            assert_eq!(exit, Exit::BadExperiment, "{message}");
            assert!(message.starts_with("x.toml:") && message.contains(expected), "{message}");
        }
    }
}
