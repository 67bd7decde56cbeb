//! `haltkick reproduce`: the published figures of the seeds beside ours, from runs made here and now.
//!
//! Each experiment that a row of [`seeds`] names is run into a directory of its own, and completed rather than run
//! again if that directory is there already. The table is made of their summaries.

mod seeds;
mod verdict;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anstyle::{AnsiColor, Style};
use schemars::JsonSchema;
use serde::Serialize;

use crate::analysis::statistics::Estimate;
use crate::analysis::summary::{Comparison, Summary};
use crate::cli::{Format, ReproduceArgs};
use crate::commands::bench;
use crate::text::exit::{Exit, Failure, Result};
use crate::text::nearest;
use crate::text::output;
use crate::text::quantity::significant;
use crate::text::timestamp;
use crate::text::wrap::{paragraph, wrap};

use seeds::{Point, ROWS, Row};
use verdict::{Agreement, MARGIN, MARGIN_NEAR_1};

/// What `haltkick reproduce` finds; `reproduction.json`.
#[derive(Debug, JsonSchema, Serialize)]
pub(crate) struct Reproduction {
    /// "haltkick.reproduction".
    pub(crate) schema: String,
    /// 1.
    pub(crate) schema_version: u32,
    /// One row per published figure.
    pub(crate) rows: Vec<Reproduced>,
    /// What speaks against the figures of each experiment.
    pub(crate) warnings: Vec<String>,
}

/// A published figure and ours.
#[derive(Debug, JsonSchema, Serialize)]
pub(crate) struct Reproduced {
    /// The thread that it comes from, and its year.
    seed: String,
    /// Where it was published: author, subject, list and month.
    source: String,
    /// What was compared there, by which measure.
    figure: String,
    /// The ratio that was published.
    published: f64,
    /// Where that was measured.
    machine: String,
    /// CPUs there; null if nobody says.
    pcpus_there: Option<u32>,
    /// CPUs here; null if the experiment was not run.
    pcpus_here: Option<usize>,
    /// Our experiment.
    experiment: String,
    /// Our figure; null if there is none.
    ours: Option<Estimate>,
    /// Settings at which ours was measured.
    setting: BTreeMap<String, String>,
    /// Where the same thing must make no difference.
    control: Option<Estimate>,
    /// What was published of the control.
    control_published: Option<f64>,
    /// Whether ours agrees.
    agreement: Agreement,
    /// Why the two are alike or not; or why there is no figure.
    why: String,
    /// The page that has more.
    page: String,
}

pub(crate) fn reproduce(args: &ReproduceArgs) -> Result<Exit> {
    let names = chosen(&args.experiments)?;
    let output = args.output.clone().unwrap_or_else(default_output);
    let mut exit = Exit::Done;
    let (mut summaries, mut failures) = (BTreeMap::new(), BTreeMap::new());
    for (i, name) in names.iter().enumerate() {
        output::talk(&format!("experiment {} of {}: {name}", i + 1, names.len()));
        match bench::run_in(name, &args.overrides, &output.join(name)) {
            Ok((summary, ending)) => {
                summaries.insert(*name, summary);
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
    let rows = ROWS.iter().filter(|row| names.contains(&row.experiment));
    let rows = rows.map(|row| reproduced(row, summaries.get(row.experiment), failures.get(row.experiment)));
    let reproduction = Reproduction {
        schema: "haltkick.reproduction".into(),
        schema_version: 1,
        rows: rows.collect(),
        warnings: names.iter().filter_map(|name| summaries.get(name)).flat_map(warnings).collect(),
    };
    if !summaries.is_empty() {
        conclude(&reproduction, &output, args.format)?;
    }
    Ok(exit)
}

fn warnings(summary: &Summary) -> Vec<String> {
    let of_experiment = |warning: &String| format!("{}: {warning}", summary.outline.experiment);
    summary.warnings.iter().map(of_experiment).collect()
}

/// A failure outlasts runs that are not to be trusted, and those outlast runs that are.
fn worse(so_far: Exit, next: Exit) -> Exit {
    if matches!(so_far, Exit::Done | Exit::Untrusted) && next != Exit::Done { next } else { so_far }
}

/// The experiments to run, in the order of the rows.
fn chosen(asked: &[String]) -> Result<Vec<&'static str>> {
    let mut names: Vec<&str> = ROWS.iter().map(|row| row.experiment).collect();
    names.dedup();
    if let Some(unknown) = asked.iter().find(|name| !names.contains(&name.as_str())) {
        return Err(Failure::usage(nearest::unknown("experiment of a seed", unknown, &names)));
    }
    names.retain(|name| asked.is_empty() || asked.iter().any(|asked| asked == name));
    Ok(names)
}

fn default_output() -> PathBuf {
    Path::new("experiments-out").join(format!("reproduce-{}", timestamp::for_file_name(SystemTime::now())))
}

fn reproduced(row: &Row, summary: Option<&Summary>, failure: Option<&String>) -> Reproduced {
    let ours = summary.and_then(|summary| find(summary, &row.ours));
    let control = summary.and_then(|summary| match row.control {
        Some(control) => find(summary, &control.ours),
        None => summary.control.as_ref(),
    });
    let ratio = ours.and_then(|ours| ours.ratio.clone());
    Reproduced {
        seed: row.seed.into(),
        source: row.source.into(),
        figure: row.figure.into(),
        published: row.published,
        machine: row.machine.into(),
        pcpus_there: (row.pcpus > 0).then_some(row.pcpus),
        pcpus_here: summary.and_then(|summary| summary.rows.first()).map(|row| row.pcpus),
        experiment: row.experiment.into(),
        agreement: Agreement::of(row.published, ratio.as_ref()),
        ours: ratio,
        setting: ours.map(|ours| ours.setting.clone()).unwrap_or_default(),
        control: control.and_then(|control| control.ratio.clone()),
        control_published: row.control.and_then(|control| control.published),
        why: failure.map_or_else(|| row.why.into(), |failure| format!("not measured: {failure}")),
        page: row.page.into(),
    }
}

/// The comparison that `point` picks.
fn find<'a>(summary: &'a Summary, point: &Point) -> Option<&'a Comparison> {
    let is_there = |it: &&Comparison| {
        it.name == point.comparison
            && point.setting.iter().all(|(key, value)| it.setting.get(*key).is_some_and(|is| is == value))
    };
    summary.comparisons.iter().find(is_there)
}

fn conclude(reproduction: &Reproduction, directory: &Path, format: Format) -> Result<()> {
    let json = serde_json::to_string_pretty(reproduction)
        .map_err(|error| Failure::internal(format!("the reproduction as JSON: {error}")))?;
    let json = json + "\n";
    crate::results::directory::write_whole(&directory.join("reproduction.json"), &json)?;
    match format {
        Format::Table => output::data(&text(reproduction))?,
        Format::Json => output::data(&json)?,
    }
    output::talk(&format!("results: {}", directory.display()));
    Ok(())
}

/// The table: one row per figure with the reasons below it.
fn text(reproduction: &Reproduction) -> String {
    let bold = Style::new().bold();
    let mut text = format!(
        "{bold}{:<9} {:<24} {:<31} {:>7}  verdict{bold:#}\n",
        "published", "ours", "control", "pCPUs"
    );
    for row in &reproduction.rows {
        let figure = |ratio: &Option<Estimate>| ratio.as_ref().map_or("no figure".into(), Estimate::as_ratio);
        let mut control = figure(&row.control);
        if let Some(published) = row.control_published {
            let _ = write!(control, " [{published}]");
        }
        let here = row.pcpus_here.map_or("-".into(), |pcpus| pcpus.to_string());
        let published = format!("{}x", significant(row.published));
        let there = row.pcpus_there.map_or("?".into(), |pcpus| pcpus.to_string());
        let pcpus = format!("{there} / {here}");
        let _ = writeln!(text, "\n{bold}{}{bold:#}", row.seed);
        let ours = figure(&row.ours);
        let _ =
            writeln!(text, "{published:<9} {ours:<24} {control:<31} {pcpus:>7}  {}", row.agreement.word());
        let setting: String = row.setting.iter().map(|(key, value)| format!(", {key} {value}")).collect();
        let ours = format!("Ours: experiment {}{setting}.", row.experiment);
        let words = format!(
            "{}; {}. {ours} {} See {}. Published: {}.",
            row.figure, row.machine, row.why, row.page, row.source
        );
        for line in paragraph(&words, 2) {
            let _ = writeln!(text, "{line}");
        }
    }
    let percent = |margin: f64| significant((margin - 1.0) * 100.0);
    let _ = write!(
        text,
        "\npublished and ours are ratios, (low to high) is the 95 % interval; control: where nothing should\n\
         differ, [as published]; pCPUs: there / here. agrees: the whole interval lies within {} % of the\n\
         published ratio ({} % where that is near 1); N blocks: about as many would tell.\n",
        percent(MARGIN),
        percent(MARGIN_NEAR_1)
    );
    let yellow = AnsiColor::Yellow.on_default();
    for warning in &reproduction.warnings {
        for line in wrap(&format!("warning: {warning}"), 2) {
            let _ = writeln!(text, "{yellow}{line}{yellow:#}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::statistics::{Interval, Method};
    use crate::experiment::{Experiment, Source};

    #[test]
    fn every_row_picks_one_comparison_that_its_experiment_makes() {
        for row in ROWS {
            let experiment = Experiment::parse(Source::find(row.experiment).unwrap()).unwrap();
            assert!(row.control.is_some() || experiment.control.is_some(), "{}: no control", row.seed);
            for point in std::iter::once(row.ours).chain(row.control.map(|control| control.ours)) {
                let named = experiment.comparisons.iter().filter(|it| it.name == point.comparison).count();
                assert_eq!(named, 1, "{}: comparison '{}'", row.seed, point.comparison);
                for (key, value) in point.setting {
                    let axis = experiment.axes.iter().find(|axis| axis.key == *key).expect(key);
                    assert!(axis.values.iter().any(|(each, _)| each == value), "{}: {key} {value}", row.seed);
                }
                let open = experiment.axes.iter().filter(|axis| {
                    axis.values.len() > 1 && !point.setting.iter().any(|(key, _)| *key == axis.key)
                });
                let open: Vec<&str> = open.map(|axis| axis.key.as_str()).collect();
                assert!(open.is_empty(), "{}: several points, {open:?} are open", row.seed);
            }
            let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(row.page);
            assert!(page.is_file(), "{}: {} is missing", row.seed, row.page);
        }
    }

    #[test]
    fn the_table_tells_what_speaks_against_its_figures() {
        let interval = Some(Interval { low: 1.234, high: 1.345, method: Method::SignedRank });
        let estimate = Estimate { n: 6, median: 1.3, hodges_lehmann: 1.288, interval };
        let measured = |row: &Row| Reproduced {
            ours: Some(estimate.clone()),
            control: Some(estimate.clone()),
            agreement: Agreement::of(row.published, Some(&estimate)),
            pcpus_here: Some(2),
            ..reproduced(row, None, None)
        };
        let reproduction = Reproduction {
            schema: "haltkick.reproduction".into(),
            schema_version: 1,
            rows: ROWS.iter().map(measured).collect(),
            warnings: vec!["osq: 3 of 8 runs are not to be trusted (busy-neighbour 3)".into()],
        };
        let text = text(&reproduction);
        assert!(text.contains("warning: osq: 3 of 8 runs"), "{text}");
        for row in ROWS {
            assert!(text.contains(row.seed), "{text}");
        }
        let plain = text.lines().filter(|line| !line.contains('\x1b'));
        assert!(plain.clone().count() > ROWS.len());
        plain.for_each(|line| assert!(line.chars().count() <= 100, "{line}"));
    }

    #[test]
    fn an_unknown_seed_is_refused() {
        assert!(chosen(&["qspinlok".into()]).unwrap_err().message.contains("did you mean 'qspinlock'?"));
        assert_eq!(chosen(&[]).unwrap()[0], "qspinlock");
    }

    #[test]
    fn the_first_failure_is_what_the_command_ends_with() {
        assert_eq!(worse(Exit::Done, Exit::Untrusted), Exit::Untrusted);
        assert_eq!(worse(Exit::Untrusted, Exit::Done), Exit::Untrusted);
        assert_eq!(worse(Exit::GuestFailed, Exit::Untrusted), Exit::GuestFailed);
    }
}
