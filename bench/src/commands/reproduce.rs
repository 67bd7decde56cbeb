//! `haltkick reproduce`: published figures next to ours. Runs each built-in experiment whose file has `[[published]]` rows into a directory
//! of its own, or completes what is there already, and prints those rows of their summaries.

use anstyle::AnsiColor;
use serde::Serialize;

use crate::analysis::summary::{Reproduced, Summary};
use crate::cli::{Format, ReproduceArgs, ReproducedOn};
use crate::commands::bench;
use crate::experiment::{BUILT_IN, Experiment, Source};
use crate::results::directory::{self, Directory};
use crate::show::published;
use crate::text::exit::{Exit, Failure, Result};
use crate::text::wrap::wrap;
use crate::text::{nearest, output};

/// Result of `haltkick reproduce`; `reproduction.json`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Reproduction {
    /// "haltkick.reproduction".
    pub(crate) schema: String,
    /// 2.
    pub(crate) schema_version: u32,
    /// One row per published figure of an experiment that was run.
    pub(crate) rows: Vec<Reproduced>,
    /// Warnings about the figures of each experiment.
    pub(crate) warnings: Vec<String>,
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
    let mut summaries = vec![];
    for (i, name) in names.iter().enumerate() {
        output::talk(&format!("experiment {} of {}: {name}", i + 1, names.len()));
        match Source::find(name).and_then(|source| bench::run_in(source, &args.overrides, &output.join(name)))
        {
            Ok((summary, ending)) => {
                summaries.push(summary);
                exit = worse(exit, ending);
            }
            Err(failure) => {
                output::talk(&format!("haltkick: {failure}"));
                exit = failure.exit;
                if matches!(exit, Exit::Interrupted | Exit::HostLacks | Exit::Usage) {
                    break;
                }
            }
        }
    }
    if summaries.is_empty() {
        return Ok(exit);
    }
    let reproduction = Reproduction {
        schema: "haltkick.reproduction".into(),
        schema_version: 2,
        rows: summaries.iter().flat_map(|summary| summary.published.clone()).collect(),
        warnings: summaries.iter().flat_map(warnings).collect(),
    };
    let json = output::to_indented_json(&reproduction)?;
    directory::write_whole(&output.join("reproduction.json"), &json)?;
    match args.format {
        Format::Table => output::data(&text(&summaries, &reproduction.warnings))?,
        Format::Json => output::data(&json)?,
    }
    output::talk(&format!("results: {}", output.display()));
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

/// The experiments to run: those on this host, or on simulated machines.
fn chosen(asked: &[String], on: ReproducedOn) -> Result<Vec<&'static str>> {
    let mut names = vec![];
    for (name, text) in BUILT_IN {
        let experiment = Experiment::parse(Source { origin: name.into(), text: text.into() })?;
        let engine = experiment.settings.settings.given("engine");
        let is_simulated = engine.is_some_and(|engine| engine.text() == "sim");
        if !experiment.published.is_empty() && is_simulated == (on == ReproducedOn::Sim) {
            names.push(name);
        }
    }
    if let Some(unknown) = asked.iter().find(|name| !names.contains(&name.as_str())) {
        return Err(Failure::usage(nearest::unknown("experiment of a reference study", unknown, &names)));
    }
    names.retain(|name| asked.is_empty() || asked.iter().any(|asked| asked == name));
    Ok(names)
}

fn text(summaries: &[Summary], warnings: &[String]) -> String {
    let mut text = published::published(summaries, true);
    let yellow = AnsiColor::Yellow.on_default();
    for line in warnings.iter().flat_map(|warning| wrap(&format!("warning: {warning}"), 2)) {
        text += &format!("{yellow}{line}{yellow:#}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_is_what_the_command_ends_with() {
        assert_eq!(worse(Exit::Done, Exit::Untrusted), Exit::Untrusted);
        assert_eq!(worse(Exit::Untrusted, Exit::Done), Exit::Untrusted);
        assert_eq!(worse(Exit::GuestFailed, Exit::Untrusted), Exit::GuestFailed);
    }
}
