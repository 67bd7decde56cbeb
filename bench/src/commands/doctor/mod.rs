//! `haltkick doctor`: what this host can do, what will spoil a measurement, and what to do about it. It changes nothing. What
//! only describes a host is left to `lscpu`, `turbostat` and `tuned-adm`; the manifest has it as facts.

mod capability;
mod host_file;
mod machine;
pub(crate) mod quiet;

use std::fmt::Write as _;
use std::path::Path;

use anstyle::{AnsiColor, Style};
use haltkick_vmm::{Image, Run};
use serde::Serialize;

use crate::cli::{DoctorArgs, Format};
use crate::host::cpulist;
use crate::results::directory::write_whole;
use crate::settings::{Settings, Supply};
use crate::text::exit::{Exit, Failure, Result};
use crate::text::output;
use crate::text::pages::{BIG_HOSTS, TROUBLESHOOTING};
use crate::text::wrap::lines;

/// Column at which values begin.
const INDENT: usize = 29;

/// How a finding bears on measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Level {
    /// As it should be.
    Good,
    /// Worth knowing when reading figures.
    Note,
    /// This host does not tell.
    Unknown,
    /// Will spoil measurements.
    Spoils,
    /// A change is needed before runs are possible.
    Missing,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Finding {
    /// Subject of the check.
    pub(crate) name: &'static str,
    /// How it bears on measurements.
    pub(crate) level: Level,
    /// Its value; null if the host does not tell.
    pub(crate) value: Option<String>,
    /// Why it matters; without a value, why there is none.
    pub(crate) why: String,
    /// How to change it.
    pub(crate) change: Option<String>,
}

/// Output of `doctor --format json`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Examination {
    /// "haltkick.doctor".
    pub(crate) schema: &'static str,
    /// 1.
    pub(crate) schema_version: u32,
    /// Everything that was looked at.
    pub(crate) findings: Vec<Finding>,
}

impl Finding {
    /// A finding about a fact that is good, or worth knowing, and that no change would improve.
    fn told(
        name: &'static str,
        fact: std::result::Result<String, String>,
        why: &str,
        is_good: impl FnOnce(&str) -> bool,
    ) -> Self {
        Self::of_fact(name, fact, why, |value| (if is_good(value) { Level::Good } else { Level::Note }, None))
    }

    /// A finding about a fact: `judge` says how its value bears on measurements and how to change it.
    fn of_fact(
        name: &'static str,
        fact: std::result::Result<String, String>,
        why: &str,
        judge: impl FnOnce(&str) -> (Level, Option<&'static str>),
    ) -> Self {
        match fact {
            Err(reason) => Self { name, level: Level::Unknown, value: None, why: reason, change: None },
            Ok(value) => {
                let (level, change) = judge(&value);
                let change = change.map(String::from);
                Self { name, level, value: Some(value), why: why.into(), change }
            }
        }
    }
}

pub(crate) fn doctor(args: &DoctorArgs) -> Result<Exit> {
    if let Some(path) = &args.write_machine {
        return write(path, machine::measured);
    }
    if let Some(path) = &args.write_host {
        return write(path, host_file::measured);
    }
    let mut findings = capability::findings();
    findings.extend(quiet::findings());
    let missing = findings.iter().any(|finding| finding.level == Level::Missing);
    if args.format == Format::Json {
        let examination = Examination { schema: "haltkick.doctor", schema_version: 1, findings };
        output::data(&output::to_indented_json(&examination)?)?;
    } else {
        output::data(&show(&findings))?;
    }
    Ok(if missing { Exit::HostLacks } else { Exit::Done })
}

/// The built-in image, and a run of it on this host with these settings.
fn plain_run(given: &[(&str, &str)]) -> Result<(Image, Run)> {
    let (image, allowed) = (Image::embedded(), cpulist::allowed()?);
    let settings = Settings::default().with(given.iter().copied()).map_err(Failure::internal)?;
    let run = settings
        .resolve(Supply { image: &image, allowed: &allowed })
        .map_err(|wrong| Failure::internal(format!("{}: {}", wrong.about, wrong.message)))?;
    Ok((image, run))
}

/// Writes a file that must not be there yet: the text that `measure` makes for the name of what it describes, and says what it adds.
fn write(path: &Path, measure: impl FnOnce(&str) -> Result<(String, String)>) -> Result<Exit> {
    if path.exists() {
        return Err(Failure::usage(format!("{}: exists already: choose another name", path.display())));
    }
    let name = path.file_stem().map_or_else(|| "here".into(), |stem| stem.to_string_lossy());
    let (text, said) = measure(&name)?;
    write_whole(path, &text)?;
    let path = output::shown(path);
    output::data(&format!("{path}: {said} {path}\n"))?;
    Ok(Exit::Done)
}

/// Findings as text: what is good in one line each, the rest with reasons.
fn show(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let (mark, style) = mark(finding.level);
        let value = finding.value.as_deref().unwrap_or("not known");
        let values = lines(value, INDENT, INDENT);
        let (first, more) = values.split_first().expect("there is a value");
        let _ = writeln!(text, "{style}{mark:<8}{style:#}{:<20} {}", finding.name, first.trim_start());
        let dim = Style::new().dimmed();
        let why = lines(&finding.why, INDENT, INDENT).into_iter().map(|line| format!("{dim}{line}{dim:#}"));
        let change = finding.change.iter().map(|change| format!("to change it: {change}"));
        let change = change.flat_map(|change| lines(&change, INDENT, INDENT));
        for line in more.iter().cloned().chain(why).chain(change) {
            let _ = writeln!(text, "{line}");
        }
    }
    let levels = [Level::Good, Level::Note, Level::Unknown, Level::Spoils, Level::Missing];
    let counts = levels.map(|level| findings.iter().filter(|it| it.level == level).count());
    let [good, notes, unknown, spoil, missing] = counts;
    let _ = writeln!(
        text,
        "\n{good} good, {notes} to know, {unknown} not known, {spoil} will spoil measurements, {missing} missing"
    );
    let _ = writeln!(
        text,
        "how to prepare a machine: {BIG_HOSTS}; what to do about a message: {TROUBLESHOOTING}"
    );
    text
}

fn mark(level: Level) -> (&'static str, Style) {
    match level {
        Level::Good => ("good", AnsiColor::Green.on_default()),
        Level::Note => ("note", AnsiColor::Cyan.on_default()),
        Level::Unknown => ("?", Style::new().dimmed()),
        Level::Spoils => ("spoils", AnsiColor::Yellow.on_default().bold()),
        Level::Missing => ("missing", AnsiColor::Red.on_default().bold()),
    }
}
