//! Sweeps: what an experiment file says, from `--vary` and flags. What comes out is the text of such a file, so that all else
//! works as it does for one.

use std::fmt::Write as _;
use std::str::FromStr;

use super::source::{FORMAT, SWEEP, Source};
use crate::settings::{Kind, Setting, Settings, table};
use crate::text::exit::{Failure, Result};
use crate::text::nearest;

/// A setting and its values: `lock=ticket,mcs`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Vary {
    /// Its name in files.
    key: &'static str,
    values: Vec<String>,
}

/// What is varied, and what is said of all cells.
pub(crate) struct Sweep<'a> {
    pub(crate) vary: &'a [Vary],
    pub(crate) settings: &'a Settings,
    /// What ratios are to; an empty name is that of the first arm.
    pub(crate) baseline: Option<&'a str>,
    pub(crate) blocks: u32,
}

/// Settings under this heading are compared.
const COMPARED: &str = "Lock";
/// Unless somebody says how long windows are, or how much work is to be done. Blocks make figures precise, not long windows.
const WINDOW: [(&str, &str); 2] = [("window", "200ms"), ("min-turns", "8")];

impl FromStr for Vary {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (key, values) = text
            .split_once('=')
            .filter(|(key, _)| !key.is_empty())
            .ok_or_else(|| format!("'{text}' is no KEY=VALUE,..., such as lock=ticket,mcs"))?;
        let setting = table::named(key)?;
        if matches!(setting.kind, Kind::Guests) {
            return Err(
                "several guests are varied in an experiment file: see docs/experiment-files.md".into()
            );
        }
        let separator = if values.contains(';') { ';' } else { ',' };
        let values: Vec<String> = values
            .split(separator)
            .map(|value| value.trim().to_owned())
            .filter(|value| !value.is_empty())
            .collect();
        for (i, value) in values.iter().enumerate() {
            read(setting, value, separator)?;
            if values[..i].contains(value) {
                return Err(format!("{value} stands there twice"));
            }
        }
        if values.is_empty() {
            Err(format!("{key} has no values"))
        } else {
            Ok(Self { key: setting.name, values })
        }
    }
}

/// Whether `value` can be one of `setting`.
fn read(setting: &Setting, value: &str, separator: char) -> std::result::Result<(), String> {
    let checked = setting.read(value).and_then(|value| setting.check(&value));
    let has_commas = matches!(setting.kind, Kind::Deschedule | Kind::Cpus);
    checked.map_err(|error| match separator {
        ',' if has_commas => format!("{error} (a semicolon separates values that have commas in them)"),
        _ => error,
    })
}

/// One of the things that are compared.
struct Compared<'a> {
    name: String,
    settings: Vec<(&'a str, &'a str)>,
}

impl Sweep<'_> {
    /// The experiment that this is.
    pub(crate) fn source(&self) -> Result<Source> {
        self.check()?;
        let (arms, grid): (Vec<&Vary>, Vec<&Vary>) =
            self.vary.iter().partition(|vary| self.is_compared(vary));
        let names = |of: &[&Vary]| of.iter().map(|vary| vary.key).collect::<Vec<_>>().join(", ");
        let title = match &grid[..] {
            [] => format!("Sweep of {}", names(&arms)),
            grid => format!("Sweep of {} over {}", names(&arms), names(grid)),
        };
        let arms = combinations(&arms);
        let mut text = format!("format = {FORMAT}\nname = \"sweep\"\ntitle = {}\n", quoted(&title));
        let _ = writeln!(text, "blocks = {}\nretry-disturbed = 2", self.blocks);
        let _ = writeln!(text, "\n[settings]\n{}", lines(&self.common()));
        if !grid.is_empty() {
            text += "\n[grid]\n";
        }
        for vary in &grid {
            let values: Vec<String> = vary.values.iter().map(|value| value_in_file(value)).collect();
            let _ = writeln!(text, "{} = [{}]", vary.key, values.join(", "));
        }
        for arm in &arms {
            let settings: Vec<(&str, String)> =
                arm.settings.iter().map(|(key, value)| (*key, (*value).into())).collect();
            let _ = writeln!(text, "\n[[arm]]\nname = {}\n{}", quoted(&arm.name), lines(&settings));
        }
        text += &self.comparisons(&arms)?;
        let _ = writeln!(text, "\n[control]\narm = {}", quoted(&arms[0].name));
        Ok(Source { origin: SWEEP.into(), text })
    }

    /// Whether `vary` makes arms: settings of the lock do, and without any of them the last one.
    fn is_compared(&self, vary: &Vary) -> bool {
        let is_of_lock = |vary: &Vary| {
            let compared = table::TABLE.iter().filter(|(heading, _)| *heading == COMPARED);
            compared.flat_map(|(_, rows)| rows.iter()).any(|setting| setting.name == vary.key)
        };
        if self.vary.iter().any(is_of_lock) { is_of_lock(vary) } else { self.vary.last() == Some(vary) }
    }

    /// Nothing is said twice.
    fn check(&self) -> Result<()> {
        let same = |key: &str, other: &str| {
            key == other || table::find(key).is_some_and(|setting| setting.instead_of == Some(other))
        };
        for (i, vary) in self.vary.iter().enumerate() {
            if let Some(other) = self.vary[..i].iter().find(|other| same(other.key, vary.key)) {
                let (key, other) = (vary.key, other.key);
                return Err(Failure::usage(format!("--vary {key}: --vary {other} says that already")));
            }
            if let Some((setting, _)) =
                self.settings.all_given().find(|(setting, _)| same(setting.name, vary.key))
            {
                let (key, flag) = (vary.key, setting.flag.unwrap_or(setting.name));
                return Err(Failure::usage(format!(
                    "--vary {key}: --{flag} says the same for all cells: leave one out"
                )));
            }
        }
        Ok(())
    }

    /// What all cells have in common.
    fn common(&self) -> Vec<(&'static str, String)> {
        let mut common: Vec<(&str, String)> =
            self.settings.all_given().map(|(setting, value)| (setting.name, value.to_string())).collect();
        let says =
            |key: &str| self.settings.given(key).is_some() || self.vary.iter().any(|vary| vary.key == key);
        // A simulated machine has windows of its own, and fixed work has its own end.
        let simulated = self.settings.given("engine").is_some_and(|engine| engine.text() == "sim");
        if !["window", "min-turns", "work"].into_iter().any(says) && !simulated {
            common.extend(WINDOW.map(|(key, value)| (key, value.to_owned())));
        }
        common
    }

    fn comparisons(&self, arms: &[Compared<'_>]) -> Result<String> {
        let Some(wanted) = self.baseline else { return Ok(String::new()) };
        let [first, _, ..] = arms else {
            return Err(Failure::usage(
                "--compare: there is only one thing to compare: --vary a second value",
            ));
        };
        let is_wanted = |arm: &&Compared<'_>| {
            let values: Vec<&str> = arm.settings.iter().map(|(_, value)| *value).collect();
            arm.name == wanted || values.join(" ") == wanted
        };
        let baseline = if wanted.is_empty() { Some(first) } else { arms.iter().find(is_wanted) };
        let Some(baseline) = baseline else {
            let names: Vec<&str> = arms.iter().map(|arm| arm.name.as_str()).collect();
            return Err(Failure::usage(format!("--compare: {}", nearest::unknown("arm", wanted, &names))));
        };
        let mut text = String::new();
        for arm in arms.iter().filter(|arm| arm.name != baseline.name) {
            let name = quoted(&format!("{}/{}", arm.name, baseline.name));
            let (arm, baseline) = (quoted(&arm.name), quoted(&baseline.name));
            let _ = writeln!(text, "\n[[compare]]\nname = {name}\narm = {arm}\nbaseline = {baseline}");
        }
        Ok(text)
    }
}

/// Every combination of their values; the last varies fastest.
fn combinations<'a>(vary: &[&'a Vary]) -> Vec<Compared<'a>> {
    let mut all = vec![vec![]];
    for vary in vary {
        let extended = all.iter().flat_map(|so_far: &Vec<(&'a str, &'a str)>| {
            let with =
                |value: &'a String| so_far.iter().copied().chain([(vary.key, value.as_str())]).collect();
            vary.values.iter().map(with)
        });
        all = extended.collect();
    }
    let name = |settings: &[(&str, &str)]| {
        let words = settings.iter().map(|(key, value)| match *key {
            "lock" => (*value).to_owned(),
            key => format!("{key} {value}"),
        });
        words.collect::<Vec<_>>().join(" ")
    };
    all.into_iter().map(|settings| Compared { name: name(&settings), settings }).collect()
}

fn lines(settings: &[(&str, String)]) -> String {
    let lines: Vec<String> =
        settings.iter().map(|(key, value)| format!("{key} = {}", value_in_file(value))).collect();
    lines.join("\n")
}

/// A value as a file has it: numbers bare, all else in quotes.
fn value_in_file(value: &str) -> String {
    match value.parse::<i64>() {
        Ok(number) if number.to_string() == value => value.to_owned(),
        _ => quoted(value),
    }
}

/// A text in quotes: what JSON makes of it is one of TOML's basic strings.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Experiment;

    fn sweep(vary: &[&str], given: &[(&str, &str)], baseline: Option<&str>) -> Result<Source> {
        let vary: Vec<Vary> = vary.iter().map(|vary| vary.parse().unwrap()).collect();
        let mut settings = Settings::default();
        given.iter().for_each(|(key, value)| settings.set(key, value).unwrap());
        Sweep { vary: &vary, settings: &settings, baseline, blocks: 7 }.source()
    }

    fn experiment(vary: &[&str], given: &[(&str, &str)], baseline: Option<&str>) -> Experiment {
        Experiment::parse(sweep(vary, given, baseline).unwrap()).unwrap()
    }

    #[test]
    fn settings_of_the_lock_are_compared_and_all_others_make_the_grid() {
        let it =
            experiment(&["lock=ticket,mcs", "slice=100us,1ms", "ratio=2,8"], &[("hold", "5us")], Some(""));
        let arms: Vec<&str> = it.arms.iter().map(|arm| arm.name.as_str()).collect();
        let axes: Vec<&str> = it.axes.iter().map(|axis| axis.key.as_str()).collect();
        assert_eq!((arms, axes, it.blocks), (vec!["ticket", "mcs"], vec!["slice", "ratio"], 7));
        assert_eq!(it.settings.settings.given("hold").map(ToString::to_string).as_deref(), Some("5us"));
        assert_eq!(it.settings.settings.given("window").map(ToString::to_string).as_deref(), Some("200ms"));
        let compared: Vec<_> =
            it.comparisons.iter().map(|it| (it.arm.as_str(), it.baseline.as_str())).collect();
        assert_eq!(compared, [("mcs", "ticket")]);
        assert_eq!(it.control.unwrap().arm, "ticket");
    }

    #[test]
    fn without_a_setting_of_the_lock_the_last_is_compared_and_several_give_every_combination() {
        let it = experiment(&["ratio=2,8", "slice=100us,1ms"], &[], None);
        assert_eq!((it.arms[0].name.as_str(), it.axes[0].key.as_str()), ("slice 100us", "ratio"));
        assert!(it.comparisons.is_empty());
        let it = experiment(&["lock=qspinlock,ticket", "pv=on,off"], &[], Some("ticket off"));
        let arms: Vec<&str> = it.arms.iter().map(|arm| arm.name.as_str()).collect();
        assert_eq!(arms, ["qspinlock pv on", "qspinlock pv off", "ticket pv on", "ticket pv off"]);
        assert!(it.comparisons.len() == 3 && it.comparisons.iter().all(|it| it.baseline == "ticket pv off"));
    }

    #[test]
    fn values_with_commas_are_separated_by_semicolons_and_awkward_ones_are_quoted() {
        let it =
            experiment(&["deschedule=none;holder,rate=100,for=5ms"], &[("cpus", "0-1"), ("seed", "7")], None);
        let policy = it.arms[1].patch.settings.given("deschedule").map(ToString::to_string);
        assert_eq!(policy.as_deref(), Some("holder,rate=100,for=5ms"));
        assert_eq!(quoted("a \"b\" \\ c"), r#""a \"b\" \\ c""#);
        let error = "deschedule=holder,rate=100".parse::<Vary>().unwrap_err();
        assert!(error.contains("a semicolon separates values"), "{error}");
    }

    #[test]
    fn windows_are_left_alone_where_something_else_ends_them() {
        for given in [("window", "1s"), ("min-turns", "3"), ("work", "1s"), ("engine", "sim")] {
            let text = sweep(&["lock=ticket,mcs"], &[given], None).unwrap().text;
            assert!(!text.contains("200ms"), "{given:?}: {text}");
        }
    }

    #[test]
    fn what_is_said_twice_or_compared_with_nothing_is_refused() {
        for (vary, given, baseline, expected) in [
            (&["ratio=1,2", "vcpus=4"][..], &[][..], None, "--vary vcpus: --vary ratio says that already"),
            (&["slice=1ms", "slice=2ms"], &[], None, "--vary slice: --vary slice says that already"),
            (&["ratio=1,2"], &[("vcpus", "4")], None, "--vary ratio: --vcpus says the same"),
            (&["window=1s,2s"], &[("window", "1s")], None, "--vary window: --duration says the same"),
            (&["lock=tas"], &[], Some(""), "--compare: there is only one thing to compare"),
            (
                &["lock=tas,ticket"],
                &[],
                Some("tikcet"),
                "--compare: unknown arm 'tikcet': did you mean 'ticket'?",
            ),
        ] {
            let failure = sweep(vary, given, baseline).unwrap_err();
            assert!(failure.message.starts_with(expected), "{failure}");
        }
        for (text, expected) in [
            ("lock", "'lock' is no KEY=VALUE,..."),
            ("lokc=tas", "unknown setting 'lokc': did you mean 'lock'?"),
            ("ratio=1,1", "1 stands there twice"),
            ("ratio=,", "ratio has no values"),
            ("slice=1", "'1' has no unit"),
            ("slice=1us", "1us is out of range"),
            ("vm=lock=tas", "several guests are varied in an experiment file"),
        ] {
            let error = text.parse::<Vary>().unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
