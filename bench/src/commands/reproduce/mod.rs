//! `haltkick reproduce`: the published figures of the reference studies next to ours, from runs made here and now.
//!
//! Each experiment that a row of [`seeds`] names is run into a directory of its own, and completed rather than run
//! again if that directory is there already. The table is made of their summaries.

mod figure;
mod row;
mod seeds;
mod verdict;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anstyle::{AnsiColor, Style};
use serde::Serialize;

use crate::analysis::attempts;
use crate::analysis::statistics::Estimate;
use crate::analysis::summary::Summary;
use crate::cli::{Format, ReproduceArgs, ReproducedOn};
use crate::commands::bench;
use crate::experiment::Source;
use crate::results::directory::{self, Directory};
use crate::text::exit::{Exit, Failure, Result};
use crate::text::nearest;
use crate::text::output;
use crate::text::quantity::significant;
use crate::text::wrap::{paragraph, wrap};

use figure::Results;
use row::{Figure, Mark, Row, Share};
use verdict::{Agreement, MARGIN, MARGIN_NEAR_1};

/// Result of `haltkick reproduce`; `reproduction.json`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Reproduction {
    /// "haltkick.reproduction".
    pub(crate) schema: String,
    /// 1.
    pub(crate) schema_version: u32,
    /// One row per published figure.
    pub(crate) rows: Vec<Reproduced>,
    /// Warnings about the figures of each experiment.
    pub(crate) warnings: Vec<String>,
}

/// A published figure and ours.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Reproduced {
    /// The thread that it comes from, and its year.
    seed: String,
    /// Source of the publication: author, subject, list and month.
    source: String,
    /// Subject of the comparison there, and its measure.
    figure: String,
    /// Whether the figure is a ratio or a share.
    quantity: Quantity,
    /// The ratio, or the share, that was published.
    published: f64,
    /// The figure of another run there, if one was published.
    published_again: Option<f64>,
    /// Machine of the published figure.
    machine: String,
    /// CPUs there; null if not published.
    pcpus_there: Option<u32>,
    /// CPUs here; null if the experiment was not run.
    pcpus_here: Option<usize>,
    /// vCPUs, or threads, for each CPU there; null if not published.
    ratio_there: Option<f64>,
    /// vCPUs for each pCPU here; null if the experiment was not run.
    ratio_here: Option<f64>,
    /// Aspects that are as they were there.
    alike: Alike,
    /// Our experiment.
    experiment: String,
    /// Our figure; null if there is none.
    ours: Option<Estimate>,
    /// Settings at which ours was measured.
    setting: BTreeMap<String, String>,
    /// Our control, which must show no difference.
    control: Option<Estimate>,
    /// The published figure of the control.
    control_published: Option<f64>,
    /// Whether ours agrees.
    agreement: Agreement,
    /// Why the two are alike or not; or why there is no figure.
    why: String,
    /// The page that has more.
    page: String,
}

/// Kind of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
enum Quantity {
    /// A ratio.
    Ratio,
    /// A share.
    Share,
}

/// Aspects that are as they were in the reference study: true, false, or null if not published.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct Alike {
    /// The version of the locks, their spin threshold included.
    lock: Option<bool>,
    /// vCPUs for each CPU.
    ratio: Option<bool>,
    /// The guests, their CPUs, and the scheduler.
    arrangement: Option<bool>,
    /// The work.
    workload: Option<bool>,
}

impl Alike {
    fn of(row: &Row, ratio_here: Option<f64>) -> Self {
        /// 60 vCPUs on 32 CPUs and 4 on 2 are alike.
        const NEARLY: f64 = 1.1;
        let known = |mark| match mark {
            Mark::Same => Some(true),
            Mark::Other => Some(false),
            Mark::Unknown => None,
        };
        let near = |(there, here): (f64, f64)| (1.0 / NEARLY..=NEARLY).contains(&(here / there));
        Self {
            lock: known(row.alike.lock),
            ratio: row.ratio.zip(ratio_here).map(near),
            arrangement: known(row.alike.arrangement),
            workload: known(row.alike.workload),
        }
    }

    /// Returns four letters: a capital for an aspect as it was there, a dash for another one, a question mark if it was
    /// not published.
    fn letters(self) -> String {
        let letters = [(self.lock, 'L'), (self.ratio, 'R'), (self.arrangement, 'A'), (self.workload, 'W')];
        let letter = |(is, letter): (Option<bool>, char)| match is {
            Some(true) => letter,
            Some(false) => '-',
            None => '?',
        };
        letters.map(letter).iter().collect()
    }
}

pub(crate) fn reproduce(args: &ReproduceArgs) -> Result<Exit> {
    if args.overrides.robust.is_some() {
        return Err(Failure::usage(
            "--robust: no published figure asks for it: use `haltkick bench NAME --robust`",
        ));
    }
    let names = chosen(&args.experiments, args.engine)?;
    let output = args.output.clone().map_or_else(|| Directory::fresh("reproduce"), Ok)?;
    let mut exit = Exit::Done;
    let (mut results, mut failures) = (BTreeMap::new(), BTreeMap::new());
    for (i, name) in names.iter().enumerate() {
        output::talk(&format!("experiment {} of {}: {name}", i + 1, names.len()));
        let path = output.join(name);
        let ran = Source::find(name).and_then(|source| bench::run_in(source, &args.overrides, None, &path));
        match ran {
            Ok((summary, ending)) => {
                let records = attempts::last(&directory::read_records(&path)?);
                results.insert(*name, Results { summary, records });
                exit = worse(exit, ending);
            }
            Err(failure) => {
                output::talk(&format!("haltkick: {failure}"));
                exit = failure.exit;
                failures.insert(*name, failure.message);
                if matches!(exit, Exit::Interrupted | Exit::HostLacks | Exit::Usage) {
                    break;
                }
            }
        }
    }
    let rows = seeds::rows(args.engine).filter(|row| names.contains(&row.experiment));
    let rows = rows.map(|row| reproduced(row, results.get(row.experiment), failures.get(row.experiment)));
    let reproduction = Reproduction {
        schema: "haltkick.reproduction".into(),
        schema_version: 1,
        rows: rows.collect(),
        warnings: names
            .iter()
            .filter_map(|name| Some(&results.get(name)?.summary))
            .flat_map(warnings)
            .collect(),
    };
    if !results.is_empty() {
        conclude(&reproduction, &output, args.format)?;
    }
    Ok(exit)
}

fn warnings(summary: &Summary) -> Vec<String> {
    let of_experiment = |warning: &String| format!("{}: {warning}", summary.outline.experiment);
    summary.warnings.iter().map(of_experiment).collect()
}

/// A failure outlasts invalid runs, and those outlast valid ones.
fn worse(so_far: Exit, next: Exit) -> Exit {
    if matches!(so_far, Exit::Done | Exit::Untrusted) && next != Exit::Done { next } else { so_far }
}

/// The experiments to run, in the order of the rows.
fn chosen(asked: &[String], on: ReproducedOn) -> Result<Vec<&'static str>> {
    let mut names: Vec<&str> = seeds::rows(on).map(|row| row.experiment).collect();
    names.dedup();
    if let Some(unknown) = asked.iter().find(|name| !names.contains(&name.as_str())) {
        return Err(Failure::usage(nearest::unknown("experiment of a reference study", unknown, &names)));
    }
    names.retain(|name| asked.is_empty() || asked.iter().any(|asked| asked == name));
    Ok(names)
}

fn reproduced(row: &Row, results: Option<&Results>, failure: Option<&String>) -> Reproduced {
    let pcpus_here = results.and_then(Results::pcpus);
    let fewer_than = |pcpus: u32| pcpus_here.is_some_and(|here| here < pcpus as usize);
    let stand_in = row.on_fewer.filter(|_| fewer_than(row.pcpus));
    let figure = stand_in.unwrap_or(row.ours);
    let is_beyond = fewer_than(row.needs_pcpus);
    let found = results.filter(|_| !is_beyond).map(|results| results.figure(figure)).unwrap_or_default();
    let control = results.filter(|_| !is_beyond).and_then(|results| match row.control {
        Some(control) => results.comparison(&control.ours),
        None => results.summary.control.as_ref(),
    });
    let ours = found.estimate;
    let (quantity, agreement) = match figure {
        Figure::Share { .. } => (Quantity::Share, Agreement::of_share(row.published, ours.as_ref())),
        Figure::Ratio(_) | Figure::Slowdown { .. } => {
            let published: Vec<f64> = std::iter::once(row.published).chain(row.again).collect();
            (Quantity::Ratio, Agreement::of(&published, ours.as_ref()))
        }
    };
    Reproduced {
        seed: row.seed.into(),
        source: row.source.into(),
        figure: row.figure.into(),
        quantity,
        published: row.published,
        published_again: row.again,
        machine: row.machine.into(),
        pcpus_there: (row.pcpus > 0).then_some(row.pcpus),
        pcpus_here,
        ratio_there: row.ratio,
        ratio_here: found.ratio,
        alike: Alike::of(row, found.ratio),
        experiment: row.experiment.into(),
        agreement: if is_beyond { Agreement::NeedsPcpus { pcpus: row.needs_pcpus } } else { agreement },
        ours,
        setting: found.setting,
        control: control.and_then(|control| control.ratio.clone()),
        control_published: row.control.and_then(|control| control.published),
        why: failure.map_or_else(|| why(row, figure), |failure| format!("not measured: {failure}")),
        page: row.page.into(),
    }
}

/// Why the two are alike or not, with what ours is a share of.
fn why(row: &Row, figure: Figure) -> String {
    match figure {
        Figure::Share { of, .. } => format!("Ours is {}. {}", Share::words(of), row.why),
        Figure::Ratio(_) | Figure::Slowdown { .. } => row.why.into(),
    }
}

fn conclude(reproduction: &Reproduction, path: &Path, format: Format) -> Result<()> {
    let json = output::to_indented_json(reproduction)?;
    directory::write_whole(&path.join("reproduction.json"), &json)?;
    match format {
        Format::Table => output::data(&text(reproduction))?,
        Format::Json => output::data(&json)?,
    }
    output::talk(&format!("results: {}", path.display()));
    Ok(())
}

/// The table: one row per figure with the reasons below it.
fn text(reproduction: &Reproduction) -> String {
    let bold = Style::new().bold();
    let mut text = format!(
        "{bold}{:<12} {:<24} {:<31} {:>8} {:>10} {:>5}{bold:#}\n",
        "published", "ours", "control", "pCPUs", "ratio", "like"
    );
    reproduction.rows.iter().for_each(|row| text += &entry(row));
    let percent = |margin: f64| significant((margin - 1.0) * 100.0);
    let legend = format!(
        "published and ours are ratios, or shares in percent, (low to high) is the 95 % interval; control: where nothing \
         should differ, [as published]; pCPUs, and ratio, vCPUs for each of them: there / here. like: what is as it was \
         there: L version of the lock, R ratio, A arrangement, W workload; - it is not, ? nobody says. agrees: the whole \
         interval lies within {} % of what was published ({} % where that is near 1). N blocks: about as many would tell; a \
         word without that would not change if the interval was narrower.",
        percent(MARGIN),
        percent(MARGIN_NEAR_1)
    );
    text += "\n";
    for line in wrap(&legend, 0) {
        let _ = writeln!(text, "{line}");
    }
    let yellow = AnsiColor::Yellow.on_default();
    for warning in &reproduction.warnings {
        for line in wrap(&format!("warning: {warning}"), 2) {
            let _ = writeln!(text, "{yellow}{line}{yellow:#}");
        }
    }
    text
}

/// One row of it.
fn entry(row: &Reproduced) -> String {
    let bold = Style::new().bold();
    let mut text = String::new();
    for line in wrap(&format!("{}: {}", row.seed, row.agreement.word()), 2) {
        let _ = writeln!(text, "\n{bold}{line}{bold:#}");
    }
    let published: Vec<f64> = std::iter::once(row.published).chain(row.published_again).collect();
    let (published, ours) = match row.quantity {
        Quantity::Ratio => (each(&published, significant) + "x", ratio(row.ours.as_ref())),
        Quantity::Share => (each(&published, percent_of), share(row.ours.as_ref())),
    };
    let mut control = ratio(row.control.as_ref());
    if let Some(published) = row.control_published {
        let _ = write!(control, " [{published}]");
    }
    let of_both = |there: Option<String>, here: Option<String>| {
        format!("{} / {}", there.unwrap_or("?".into()), here.unwrap_or("-".into()))
    };
    let pcpus = of_both(row.pcpus_there.map(|it| it.to_string()), row.pcpus_here.map(|it| it.to_string()));
    let ratios = of_both(row.ratio_there.map(significant_short), row.ratio_here.map(significant_short));
    let letters = row.alike.letters();
    let _ = writeln!(text, "{published:<12} {ours:<24} {control:<31} {pcpus:>8} {ratios:>10} {letters:>5}");
    let setting: String = row.setting.iter().map(|(key, value)| format!(", {key} {value}")).collect();
    let ours = format!("Ours: experiment {}{setting}.", row.experiment);
    let words = format!(
        "{}; {}. {ours} {} See {}. Published: {}.",
        row.figure, row.machine, row.why, row.page, row.source
    );
    for line in paragraph(&words, 2) {
        let _ = writeln!(text, "{line}");
    }
    text
}

fn each(values: &[f64], text: fn(f64) -> String) -> String {
    values.iter().map(|value| text(*value)).collect::<Vec<_>>().join(", ")
}

/// Without zeros behind the point.
fn significant_short(value: f64) -> String {
    let text = significant(value);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text }
}

fn percent_of(share: f64) -> String {
    format!("{} %", significant(share * 100.0))
}

fn ratio(estimate: Option<&Estimate>) -> String {
    estimate.map_or("no figure".into(), Estimate::as_ratio)
}

fn share(estimate: Option<&Estimate>) -> String {
    let Some(estimate) = estimate else { return "no figure".into() };
    let interval = estimate.interval.map_or(String::new(), |it| {
        format!(" ({} to {})", significant(it.low * 100.0), significant(it.high * 100.0))
    });
    percent_of(estimate.hodges_lehmann) + &interval
}

#[cfg(test)]
mod tests;
