//! `haltkick list`: what there is to choose from.

use clap::ValueEnum as _;
use haltkick_vmm::hosts::{self, HostPreset};
use haltkick_vmm::machines::{Preset, presets};
use haltkick_vmm::{ARMS, Entry, Target};
use serde::Serialize;

use crate::cli::{Format, ListArgs, Listed};
use crate::commands::guest_image;
use crate::experiment::{self, BUILT_IN};
use crate::record::figures::{Better, Center, FIGURES, Figure};
use crate::settings::layouts;
use crate::text::exit::{Exit, Result};
use crate::text::output;

/// Output of `list --format json`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Listing {
    /// "haltkick.list".
    pub(crate) schema: &'static str,
    /// 1.
    pub(crate) schema_version: u32,
    /// Kind of the listed things: "locks", "workloads", "points", "experiments", "hosts", "machines" or "figures".
    pub(crate) of: &'static str,
    /// In the order in which the program has them.
    pub(crate) entries: Vec<Choice>,
}

/// One thing to choose from.
#[derive(Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Choice {
    /// Its name on the command line and in files.
    pub(crate) name: String,
    /// Summary in a line.
    pub(crate) summary: String,
    /// Values of `pv` that a lock can have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pv: Option<Vec<&'static str>>,
    /// Values of `layout` that a lock can have; the first is the default, and none means that it has one only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) layouts: Option<Vec<String>>,
    /// Times that a workload reports besides waits and holds, as in `times_ns` of a record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) times: Option<Vec<String>>,
    /// Kind of vCPU that passes a point: "holder", "head" or "waiter".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) who: Option<&'static str>,
    /// Unit of a figure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unit: Option<&'static str>,
    /// Better direction of a figure: "more" or "less".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) better: Option<&'static str>,
    /// Value of a figure that stands for the runs of a cell in summaries: "estimate", "median" or "most".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) summary_has: Option<&'static str>,
    /// CPUs of a machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cpus: Option<u32>,
}

pub(crate) fn list(args: &ListArgs) -> Result<Exit> {
    let Some(what) = args.what else {
        output::data(&kinds())?;
        return Ok(Exit::Done);
    };
    let image = || guest_image::load(args.guest.as_deref(), []);
    let with_arms = || guest_image::load(args.guest.as_deref(), ARMS.iter().map(|arm| arm.name));
    let (of, entries) = match what {
        Listed::Experiments => {
            ("experiments", BUILT_IN.map(|(name, file)| choice(name, &experiment::summary(file))).into())
        }
        Listed::Hosts => ("hosts", hosts::presets().iter().map(host).collect()),
        Listed::Locks => ("locks", locks(&with_arms()?.locks)),
        Listed::Machines => ("machines", presets().iter().map(machine).collect()),
        Listed::Points => ("points", image()?.points.iter().map(point).collect()),
        Listed::Figures => ("figures", FIGURES.iter().map(figure).collect()),
        Listed::Workloads => ("workloads", image()?.workloads.iter().map(workload).collect()),
    };
    match args.format {
        Format::Table => output::data(&text(what, &entries))?,
        Format::Json => {
            let listing = Listing { schema: "haltkick.list", schema_version: 1, of, entries };
            output::json(&listing)?;
        }
    }
    Ok(Exit::Done)
}

/// The words that `haltkick list` takes.
fn kinds() -> String {
    let of_kind = |kind: &Listed| {
        let word = kind.to_possible_value().expect("no kind is hidden");
        let about = word.get_help().map(ToString::to_string).unwrap_or_default();
        format!("haltkick list {:<12} {about}\n", word.get_name())
    };
    Listed::value_variants().iter().map(of_kind).collect()
}

fn choice(name: &str, summary: &str) -> Choice {
    Choice { name: name.into(), summary: summary.into(), ..Choice::default() }
}

/// A lock in several layouts is listed once, by the first.
fn locks(locks: &[Entry]) -> Vec<Choice> {
    let mut listed: Vec<Choice> = Vec::new();
    for lock in locks {
        let name = lock.name.split('/').next().unwrap_or_default();
        if listed.iter().any(|other| other.name == name) {
            continue;
        }
        let pv = match (lock.has_native(), lock.has_paravirt()) {
            (true, true) => vec!["on", "off"],
            (false, true) => vec!["on"],
            _ => vec!["off"],
        };
        let layouts = Some(layouts(locks, name).into_iter().map(String::from).collect());
        listed.push(Choice { pv: Some(pv), layouts, ..choice(name, &lock.summary) });
    }
    listed
}

fn machine(preset: &Preset) -> Choice {
    let machine = preset.machine();
    Choice { cpus: Some(machine.topology.cpus()), ..choice(&machine.name, &machine.title) }
}

fn host(preset: &HostPreset) -> Choice {
    let host = preset.host();
    choice(&host.name, &host.title)
}

fn figure(figure: &Figure) -> Choice {
    let better = figure.better.map(|better| if better == Better::More { "more" } else { "less" });
    let summary_has = figure.center.map(|center| match center {
        Center::HodgesLehmann => "estimate",
        Center::Median => "median",
        Center::Most => "most",
    });
    let unit = Some(figure.unit.word());
    Choice { unit, better, summary_has, ..choice(figure.name, figure.about) }
}

fn point(point: &Entry) -> Choice {
    let who = Target::of_point(point).map(Target::name);
    Choice { who, ..choice(&point.name, &point.summary) }
}

fn workload(workload: &Entry) -> Choice {
    let times = Some(workload.times.iter().filter(|name| !name.is_empty()).cloned().collect());
    Choice { times, ..choice(&workload.name, &workload.summary) }
}

fn text(what: Listed, entries: &[Choice]) -> String {
    let longest = entries.iter().map(|entry| entry.name.len()).max().unwrap_or(0);
    let width = if matches!(what, Listed::Figures | Listed::Workloads) { longest } else { 18 };
    let more = |before: &str, words: Option<&Vec<String>>| {
        let words = words.filter(|words| !words.is_empty());
        words.map_or(String::new(), |words| format!("; {before} {}", words.join(", ")))
    };
    let line = |entry: &Choice| {
        let Choice { name, summary, .. } = entry;
        let column = match what {
            Listed::Experiments | Listed::Hosts | Listed::Workloads => String::new(),
            Listed::Locks => {
                let forms = entry.pv.as_ref().filter(|forms| **forms != ["off"]);
                let pv = forms.map_or(String::new(), |forms| format!("pv {}", forms.join(", ")));
                format!("{pv:<11} ")
            }
            Listed::Machines => format!("{:>4} CPUs  ", entry.cpus.unwrap_or(0)),
            Listed::Figures => {
                format!("{:<10} {:<4} ", entry.unit.unwrap_or_default(), entry.better.unwrap_or_default())
            }
            Listed::Points => format!("{:<11} ", entry.who.unwrap_or_default()),
        };
        let layouts = more("--layout", entry.layouts.as_ref());
        format!("{name:<width$} {column}{summary}{layouts}{}\n", more("reports", entry.times.as_ref()))
    };
    entries.iter().map(line).collect()
}
