//! Sweeps: what an experiment file says, from `--vary` and flags. What comes out is the text of such a file, so that all else
//! works as it does for one.

use std::fmt::Write as _;
use std::path::Path;
use std::str::FromStr;

use haltkick_vmm::FILE_PREFIX;

use super::contents::{FILES, check_cells, combined};
use super::measure::Measure;
use super::source::{FORMAT, SWEEP, Source};
use crate::settings::table::{self, CMDLINE, NOPVSPIN, boots};
use crate::settings::{Kind, Setting, Settings};
use crate::text::exit::{Failure, Result};
use crate::text::nearest;
use crate::text::output::in_toml;

/// A sweep: the settings that vary, and the settings of all cells.
#[derive(Clone, Copy)]
pub(crate) struct Sweep<'a> {
    pub(crate) vary: &'a [Vary],
    pub(crate) settings: &'a Settings,
    /// Baseline of the ratios; an empty name is that of the first arm.
    pub(crate) baseline: Option<&'a str>,
    /// Measures of the ratios; if empty, those of a file that names none.
    pub(crate) of: &'a [Measure],
    pub(crate) blocks: u32,
    /// Machines like each, for a verdict on what comparisons depend on.
    pub(crate) robust: Option<u32>,
}

/// Settings under this heading are compared.
const COMPARED: &str = "Lock";
/// Window of a sweep without a length of windows or an amount of work. Blocks make figures precise, not long windows.
const WINDOW: &str = "200ms";

struct Compared<'a> {
    name: String,
    settings: Vec<(&'a str, String)>,
}

impl Sweep<'_> {
    /// The experiment that this is. `elsewhere`: as a file in another directory says it, which names those of kernels by their whole
    /// paths.
    pub(crate) fn source(&self, elsewhere: bool) -> Result<Source> {
        self.check()?;
        let lines = |settings: &[(&str, String)]| {
            let line = |(key, value): &(&str, String)| {
                let whole = || std::path::absolute(value).ok().map(|path| path.display().to_string());
                let path = if elsewhere && FILES.contains(key) { whole() } else { None };
                format!("{key} = {}", value_in_file(key, path.as_deref().unwrap_or(value)))
            };
            settings.iter().map(line).collect::<Vec<_>>().join("\n")
        };
        let (arms, grid): (Vec<&Vary>, Vec<&Vary>) =
            self.vary.iter().partition(|vary| self.is_compared(vary));
        let names = |of: &[&Vary]| of.iter().map(|vary| vary.key).collect::<Vec<_>>().join(", ");
        let title = match &grid[..] {
            [] => format!("Sweep of {}", names(&arms)),
            grid => format!("Sweep of {} over {}", names(&arms), names(grid)),
        };
        let arms = combinations(&arms);
        let mut text = format!("format = {FORMAT}\nname = \"sweep\"\ntitle = {}\n", in_toml(&title));
        let _ = writeln!(text, "blocks = {}\nretry-disturbed = 2", self.blocks);
        let _ = writeln!(text, "\n[settings]\n{}", lines(&self.common()));
        if !grid.is_empty() {
            text += "\n[grid]\n";
        }
        for vary in &grid {
            let values: Vec<String> =
                vary.values.iter().map(|value| value_in_file(vary.key, value)).collect();
            let _ = writeln!(text, "{} = [{}]", vary.key, values.join(", "));
        }
        for arm in &arms {
            let _ = writeln!(text, "\n[[arm]]\nname = {}\n{}", in_toml(&arm.name), lines(&arm.settings));
        }
        text += &self.comparisons(&arms)?;
        let _ = writeln!(text, "\n[control]\narm = {}", in_toml(&arms[0].name));
        if let Some(points) = self.robust {
            let _ = writeln!(text, "\n[robust]\npoints = {points}");
        }
        Ok(Source { origin: SWEEP.into(), text })
    }

    fn has_kernels(&self) -> bool {
        let given = self.settings.all_given().map(|(setting, _)| setting.name);
        given.chain(self.vary.iter().map(|vary| vary.key)).any(boots)
    }

    /// Whether `vary` makes arms: settings of the lock do, and kernels, and without any of them the last one.
    fn is_compared(&self, vary: &Vary) -> bool {
        let is_of_lock = |vary: &Vary| {
            let compared = table::TABLE.iter().filter(|(heading, _)| *heading == COMPARED);
            let mut compared = compared.flat_map(|(_, rows)| rows.iter());
            boots(vary.key) || compared.any(|setting| setting.name == vary.key)
        };
        if self.vary.iter().any(is_of_lock) { is_of_lock(vary) } else { self.vary.last() == Some(vary) }
    }

    /// Refuses settings that are said twice, and more cells than an experiment may have.
    fn check(&self) -> Result<()> {
        let cells = self.vary.iter().map(|vary| vary.values.len()).fold(1, usize::saturating_mul);
        check_cells(cells).map_err(|error| Failure::usage(format!("--vary: {error}")))?;
        let same = |key: &str, other: &str| {
            key == other || table::find(key).is_some_and(|setting| setting.instead_of == Some(other))
        };
        // Command lines are no conflict: both are used.
        let given = self.settings.all_given().filter(|(setting, _)| setting.name != CMDLINE);
        let mut said: Vec<(&str, String)> =
            given.map(|(it, _)| (it.name, format!("--{}", it.flag.unwrap_or(it.name)))).collect();
        for Vary { key, .. } in self.vary {
            if let Some((_, flag)) = said.iter().find(|(other, _)| same(other, key)) {
                return Err(Failure::usage(format!("--vary {key}: {flag} says the same: leave one out")));
            }
            said.push((*key, format!("--vary {key}")));
        }
        if self.has_kernels() && self.baseline.is_some() && self.of.is_empty() {
            return Err(Failure::usage(
                "--compare: kernels are compared by figures that they print: --of figure:NAME says by which",
            ));
        }
        Ok(())
    }

    fn common(&self) -> Vec<(&'static str, String)> {
        let common = self.settings.all_given().map(|(setting, value)| {
            // A plan would lengthen a window of the command line.
            let is_final = setting.name == "window" && self.settings.given("min-turns").is_none();
            let turns = if is_final && !self.has_kernels() { "/0" } else { "" };
            (setting.name, format!("{value}{turns}"))
        });
        let mut common: Vec<(&str, String)> = common.collect();
        let says =
            |key: &str| self.settings.given(key).is_some() || self.vary.iter().any(|vary| vary.key == key);
        // A simulated machine has windows of its own, and fixed work has its own end, as kernels have.
        let simulated = self.settings.given("engine").is_some_and(|engine| engine.text() == "sim");
        if !["window", "work"].into_iter().any(says) && !simulated && !self.has_kernels() {
            common.push(("window", WINDOW.into()));
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
            let values: Vec<&str> = arm.settings.iter().map(|(_, value)| value.as_str()).collect();
            arm.name == wanted || values.join(" ") == wanted
        };
        let baseline = if wanted.is_empty() { Some(first) } else { arms.iter().find(is_wanted) };
        let Some(baseline) = baseline else {
            let names: Vec<&str> = arms.iter().map(|arm| arm.name.as_str()).collect();
            return Err(Failure::usage(format!("--compare: {}", nearest::unknown("arm", wanted, &names))));
        };
        let mut text = String::new();
        let measures = if self.of.is_empty() { &[Measure::default()] } else { self.of };
        for (i, of) in measures.iter().enumerate() {
            // No two comparisons have one name.
            let what = of.figure().map_or_else(|| String::from(of.clone()), String::from);
            let what = if i == 0 { String::new() } else { format!(", {what}") };
            for arm in arms.iter().filter(|arm| arm.name != baseline.name) {
                let name = in_toml(&format!("{}/{}{what}", arm.name, baseline.name));
                let (arm, baseline) = (in_toml(&arm.name), in_toml(&baseline.name));
                let _ = writeln!(text, "\n[[compare]]\nname = {name}\narm = {arm}\nbaseline = {baseline}");
                if *of != Measure::default() {
                    let _ = writeln!(text, "of = {}", in_toml(&String::from(of.clone())));
                }
            }
        }
        Ok(text)
    }
}

/// Every combination of their values; the last varies fastest.
fn combinations<'a>(vary: &[&'a Vary]) -> Vec<Compared<'a>> {
    let values = |vary: &&'a Vary| vary.values.iter().map(|value| (vary.key, value.clone())).collect();
    let all: Vec<Vec<(&'a str, String)>> = combined(vec![vec![]], vary.iter().map(values));
    let name = |settings: &[(&str, String)]| {
        let words = settings.iter().map(|(key, value)| match *key {
            "lock" => value.clone(),
            key if value.is_empty() => format!("no {key}"),
            key => format!("{key} {value}"),
        });
        words.collect::<Vec<_>>().join(" ")
    };
    all.into_iter().map(|settings| Compared { name: name(&settings), settings }).collect()
}

/// A value as a file has it: numbers bare, and what is true or false, all else in quotes.
fn value_in_file(key: &str, value: &str) -> String {
    match value.parse::<i64>() {
        Ok(number) if number.to_string() == value && !boots(key) => value.to_owned(),
        _ if key == NOPVSPIN => value.to_owned(),
        _ => in_toml(value),
    }
}

/// A setting with the values that it is to have, one after the other, as `--vary` gives them: `lock=ticket,mcs`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Vary {
    /// Its name in files.
    key: &'static str,
    values: Vec<String>,
}

impl Vary {
    pub(crate) fn count(&self) -> usize {
        self.values.len()
    }

    pub(crate) fn first(&self) -> Self {
        Self { key: self.key, values: self.values[..1].to_vec() }
    }

    /// Whether the last value is a file that a guest is made of: a lock object, or what boots.
    pub(crate) fn ends_in_file(&self) -> bool {
        let is_object = self.values.last().is_some_and(|value| value.starts_with(FILE_PREFIX));
        FILES.contains(&self.key) || is_object
    }
}

impl FromStr for Vary {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (key, values) = text
            .split_once('=')
            .filter(|(key, _)| !key.is_empty())
            .ok_or_else(|| format!("'{text}' is no KEY=VALUE,..., such as lock=ticket,mcs"))?;
        let setting = table::named(key)?;
        let key = setting.name;
        if matches!(setting.kind, Kind::Guests) {
            return Err(
                "several guests are varied in an experiment file: see docs/experiment-files.md".into()
            );
        }
        let is_of_cmdline = key == CMDLINE;
        if is_of_cmdline && values.contains(',') && !values.contains(';') {
            return Err(format!(
                "{key}: a semicolon separates values, since words of a command line may have commas in them: {values:?} is one"
            ));
        }
        let separator = if is_of_cmdline || values.contains(';') { ';' } else { ',' };
        let values: Vec<String> = values
            .split(separator)
            .map(|value| value.trim().to_owned())
            // No words are a command line, too.
            .filter(|value| is_of_cmdline || !value.is_empty())
            .collect();
        check_cells(values.len())?;
        if let Some(path) = path_with_comma(&values).filter(|_| separator == ',') {
            return Err(format!(
                "{path} has a comma in its name, which separates values: write semicolons between all values, as in \
                 '{key}={FILE_PREFIX}a,b.o;{FILE_PREFIX}c.o'"
            ));
        }
        for (i, value) in values.iter().enumerate() {
            check_value(setting, value, separator)?;
            if values[..i].contains(value) {
                return Err(format!("{value} stands there twice"));
            }
        }
        if values.is_empty() { Err(format!("{key} has no values")) } else { Ok(Self { key, values }) }
    }
}

/// A path that commas take apart: there is such a file, and none by the name of its first part.
fn path_with_comma(values: &[String]) -> Option<String> {
    let whole = |from: usize| (from + 2..=values.len()).map(move |to| values[from..to].join(","));
    let bare = |value: &str| value.strip_prefix(FILE_PREFIX).unwrap_or(value).to_owned();
    let is_apart = |from: &usize| !Path::new(&bare(&values[*from])).is_file();
    let mut paths = (0..values.len()).filter(is_apart).flat_map(whole).map(|path| bare(&path));
    paths.find(|path| Path::new(path).is_file())
}

fn check_value(setting: &'static Setting, value: &str, separator: char) -> std::result::Result<(), String> {
    let checked = setting.read(value).and_then(|value| setting.check(&value));
    let has_commas = matches!(setting.kind, Kind::Deschedule | Kind::Cpus);
    checked.map_err(|error| match separator {
        ',' if has_commas => format!("{error} (a semicolon separates values that have commas in them)"),
        _ => error,
    })
}
