//! The experiment behind `haltkick flips`: two arms on several machines.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::str::FromStr;

use super::source::{FORMAT, SWEEP, Source};
use super::sweep::{as_long_as_given, quoted, value_in_file};
use super::vary::{named, read};
use crate::settings::Settings;

/// One of the two: a lock with settings.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Arm {
    /// As it was written.
    pub(crate) name: String,
    settings: Vec<(&'static str, String)>,
}

impl FromStr for Arm {
    type Err = String;

    /// `qspinlock,pv=off`: a word without a key is the lock.
    fn from_str(text: &str) -> Result<Self, String> {
        let setting = |word: &str| {
            let (key, value) = word.split_once('=').unwrap_or(("lock", word));
            let key = named(key)?;
            read(key, value, ';')?;
            Ok((key, value.to_owned()))
        };
        let settings: Vec<_> = text.split(',').map(setting).collect::<Result<_, String>>()?;
        for (i, (key, _)) in settings.iter().enumerate() {
            if settings[..i].iter().any(|(other, _)| other == key) {
                return Err(format!("{key} stands there twice"));
            }
        }
        Ok(Self { name: text.into(), settings })
    }
}

/// The file that runs `arm` and `baseline` on each of `machines`, with `seeds` seeds each. The ratio is that of `arm`; where
/// several guests run at once, of all of them together.
pub(crate) fn source(
    [arm, baseline]: [&Arm; 2],
    machines: &[PathBuf],
    seeds: u32,
    settings: &Settings,
) -> Source {
    let mut text = format!("format = {FORMAT}\nname = \"flips\"\ntitle = ");
    let _ = writeln!(text, "{}", quoted(&format!("{} and {} on several machines", arm.name, baseline.name)));
    let _ = writeln!(text, "blocks = {seeds}\nwithout-ideal = true\n\n[settings]\nengine = \"sim\"");
    for (setting, value) in settings.all_given() {
        if !["engine", "machine"].contains(&setting.name) {
            let _ = writeln!(text, "{} = {}", setting.name, value_in_file(setting.name, &value.to_string()));
        }
    }
    if let Some((key, value)) = as_long_as_given(settings) {
        let _ = writeln!(text, "{key} = {value}");
    }
    let machines: Vec<String> = machines.iter().map(|path| quoted(&path.display().to_string())).collect();
    let _ = writeln!(text, "\n[grid]\nmachine = [{}]", machines.join(", "));
    for arm in [arm, baseline] {
        let _ = writeln!(text, "\n[[arm]]\nname = {}", quoted(&arm.name));
        for (key, value) in &arm.settings {
            let _ = writeln!(text, "{key} = {}", value_in_file(key, value));
        }
    }
    let (arm, baseline) = (quoted(&arm.name), quoted(&baseline.name));
    let _ = writeln!(text, "\n[[compare]]\nname = \"flips\"\narm = {arm}\nbaseline = {baseline}");
    if settings.given("vm").is_some()
        || settings.given("guests").is_some_and(|guests| guests.number_u32() > 1)
    {
        text += "of = \"all-guests\"\n";
    }
    Source { origin: SWEEP.into(), text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Experiment;
    use crate::experiment::measure::Measure;

    #[test]
    fn two_arms_are_compared_on_every_machine() {
        let [arm, baseline]: [Arm; 2] = ["qspinlock-wc", "qspinlock,pv=off"].map(|arm| arm.parse().unwrap());
        let mut settings = Settings::default();
        settings.set("think", "2us").unwrap();
        settings.set("machine", "skylake-8s").unwrap();
        let machines = ["a b.toml", "c.toml"].map(PathBuf::from);
        let it = Experiment::parse(source([&arm, &baseline], &machines, 5, &settings)).unwrap();
        assert_eq!(
            it.arms.iter().map(|arm| arm.name.as_str()).collect::<Vec<_>>(),
            ["qspinlock-wc", "qspinlock,pv=off"]
        );
        assert_eq!((it.axes.len(), it.axes[0].key.as_str(), it.blocks), (1, "machine", 5));
        let given = |key| it.settings.settings.given(key).map(ToString::to_string);
        assert_eq!((given("think").as_deref(), given("machine")), (Some("2us"), None));
        assert_eq!(it.comparisons.len(), 1);
        assert_eq!(it.comparisons[0].of, Measure::Throughput);
        settings.set("guests", "2").unwrap();
        let it = Experiment::parse(source([&arm, &baseline], &machines, 5, &settings)).unwrap();
        assert_eq!(it.comparisons[0].of, Measure::AllGuests);
    }

    #[test]
    fn arms_that_make_no_sense_are_refused() {
        for (text, expected) in [
            ("mcs,pw=on", "unknown setting 'pw'"),
            ("mcs,ticket", "lock stands there twice"),
            ("mcs,slice=1", "'1' has no unit"),
        ] {
            let error = text.parse::<Arm>().unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
