//! `haltkick bench`: from an experiment file to a directory of results and a table.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::cli::{BenchArgs, Format};
use crate::cpulist;
use crate::csv;
use crate::directory::Directory;
use crate::exit::{Exit, Failure, Result};
use crate::experiment::{Experiment, Source, slug};
use crate::facts;
use crate::host::Host;
use crate::interrupt;
use crate::manifest::{self, Manifest, ManifestSource};
use crate::output;
use crate::plan::{self, Plan};
use crate::progress::Progress;
use crate::record::Record;
use crate::run;
use crate::session::{Calibration, Session};
use crate::single;
use crate::summary::Summary;
use crate::table;
use crate::timestamp;

pub(crate) fn bench(args: &BenchArgs) -> Result<Exit> {
    let source = Source::find(&args.experiment)?;
    let mut experiment = Experiment::parse(source)?;
    if args.print {
        output::data(&experiment.source.text)?;
        return Ok(Exit::Done);
    }
    experiment.apply(&args.overrides)?;
    let image = single::load(args.guest.as_deref())?;
    let allowed = cpulist::allowed()?;
    let plan = Plan::new(&experiment, plan::supply(&image, &allowed), args.overrides.seed.unwrap_or(1))?;
    let directory = Directory::create(&output_path(args, &experiment))?;
    let stop = interrupt::catch()?;
    let engine = run::kvm(&image, &stop);
    let calibration = match Calibration::measure(&engine, &plan) {
        Ok(calibration) => calibration,
        Err(error) => {
            directory.discard();
            return Err(error.into());
        }
    };
    directory.write(crate::directory::MANIFEST, &manifest(&experiment, &plan, args.guest.as_deref()).to_json()?)?;
    let mut session = Session {
        plan: &plan,
        engine: &engine,
        host: Host::probe(),
        calibration,
        directory,
        records: vec![],
        progress: Progress::start(),
    };
    let ending = session.run_blocks(experiment.blocks);
    let exit = conclude(&session, args.format)?;
    ending.map(|()| exit)
}

/// Writes and shows what the records say, all of them or those that there are.
fn conclude(session: &Session<'_>, format: Format) -> Result<Exit> {
    let summary = write_results(&session.directory, &session.plan.outline, &session.records)?;
    match format {
        Format::Table => output::data(&table::summary(&summary))?,
        Format::Json => output::data(&to_json(&summary)?)?,
    }
    output::talk(&format!("results: {}", session.directory.path().display()));
    let trusted = session.records.iter().all(|record| record.trusted);
    Ok(if trusted { Exit::Done } else { Exit::Untrusted })
}

fn write_results(directory: &Directory, outline: &plan::Outline, records: &[Record]) -> Result<Summary> {
    let summary = Summary::new(outline, records);
    directory.write("summary.json", &to_json(&summary)?)?;
    directory.write("summary.csv", &csv::summary(&summary))?;
    directory.write("runs.csv", &csv::runs(outline, records))?;
    Ok(summary)
}

fn to_json(summary: &Summary) -> Result<String> {
    serde_json::to_string_pretty(summary)
        .map(|json| json + "\n")
        .map_err(|error| Failure::internal(format!("the summary as JSON: {error}")))
}

fn output_path(args: &BenchArgs, experiment: &Experiment) -> PathBuf {
    args.output.clone().unwrap_or_else(|| {
        let now = timestamp::for_file_name(SystemTime::now());
        Path::new("experiments-out").join(format!("{}-{now}", slug(&experiment.name)))
    })
}

fn manifest(experiment: &Experiment, plan: &Plan, guest: Option<&Path>) -> Manifest {
    Manifest {
        schema: manifest::SCHEMA.into(),
        schema_version: manifest::SCHEMA_VERSION,
        started: timestamp::rfc3339(SystemTime::now()),
        command_line: std::env::args().collect(),
        source: ManifestSource {
            origin: experiment.source.origin.clone(),
            text: experiment.source.text.clone(),
            overrides: vec![],
        },
        outline: plan.outline.clone(),
        seed: plan.seed,
        host: Host::probe(),
        facts: facts::all(guest),
    }
}
