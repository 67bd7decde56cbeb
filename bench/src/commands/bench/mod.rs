//! `haltkick bench` and `haltkick sweep`: from an experiment to a directory of results and a table.

mod job;
mod load;
mod quiet;

use std::path::Path;
use std::time::Duration;

use haltkick_vmm::Needs;
use job::Job;

use crate::analysis::summary::Summary;
use crate::cli::{BenchArgs, Conduct, ImageArgs, Patience, SweepArgs};
use crate::commands::{dry_run, report};
use crate::experiment::overrides::Overrides;
use crate::experiment::sweep::Sweep;
use crate::experiment::{Experiment, Source};
use crate::host::identity::Host;
use crate::measure::session::Rule;
use crate::record::Record;
use crate::record::place::slug;
use crate::results::directory::{self, Directory};
use crate::results::manifest::Manifest;
use crate::show::export::Export;
use crate::text::exit::{Exit, Failure, Result};
use crate::text::output;

pub(crate) fn bench(args: &BenchArgs) -> Result<Exit> {
    if let Some(directory) = &args.resume {
        return resume(args, directory);
    }
    let name = args.experiment.as_deref().unwrap_or_default();
    let source = Source::find(name)?;
    if args.print {
        output::data(&Experiment::parse(source)?.source.text)?;
        return Ok(Exit::Done);
    }
    let job = loaded(source, &args.overrides, &args.conduct)?;
    begin(&args.conduct, &job)
}

pub(crate) fn sweep(args: &SweepArgs) -> Result<Exit> {
    let sweep = Sweep {
        vary: &args.vary,
        settings: &args.boot.over(&args.settings).map_err(Failure::usage)?,
        baseline: args.compare.as_deref(),
        of: &args.of,
        blocks: args.blocks,
        robust: args.robust,
    };
    let source = sweep.source(false)?;
    if let Some(path) = &args.save {
        if path.exists() {
            let path = path.display();
            return Err(Failure::usage(format!("--save: {path} is there already: choose another name")));
        }
        let is_here = path.parent().is_none_or(|parent| parent.as_os_str().is_empty());
        let saved = if is_here { &source } else { &sweep.source(true)? };
        directory::write_whole(path, saved.text.as_bytes())?;
        output::talk(&format!("saved: `haltkick bench {}` runs it", path.display()));
    }
    begin(&args.conduct, &loaded(source, &Overrides::default(), &args.conduct)?)
}

/// The job, with the think time that `--load-to` finds in it.
fn loaded(source: Source, overrides: &Overrides, conduct: &Conduct) -> Result<Job> {
    let job = |overrides: &Overrides| Job::new(source.clone(), overrides, &conduct.image);
    let first = job(overrides)?;
    let Some(load) = &conduct.load_to else { return Ok(first) };
    let think = load::think(&first, load)?;
    output::talk(&format!("--load-to: all arms run at think {think}"));
    let mut overrides = overrides.clone();
    overrides.sets.push(("think".into(), think.to_string()));
    job(&overrides)
}

/// Runs all cells, or says what they are.
fn begin(conduct: &Conduct, job: &Job) -> Result<Exit> {
    // Runs that cannot be simulated at the same time are refused before there is a directory.
    let jobs = job.jobs(conduct.jobs)?;
    if conduct.dry_run {
        let earlier = dry_run::newest(Path::new(directory::DEFAULT_PARENT), &job.plan, &Host::probe());
        let rule = job.rule(conduct);
        let time = job.time(rule.blocks, jobs)?;
        output::data(&dry_run::show(&job.plan, rule, time, earlier.as_ref()))?;
        return Ok(Exit::Done);
    }
    quiet::wait(&conduct.patience, &job.plan)?;
    let path = conduct.output.clone().map_or_else(|| Directory::fresh(&slug(&job.experiment.name)), Ok)?;
    run_all(conduct, job, Directory::create(&path)?, vec![])
}

fn run_all(conduct: &Conduct, job: &Job, directory: Directory, records: Vec<Record>) -> Result<Exit> {
    let how = (job.rule(conduct), job.jobs(conduct.jobs)?, None);
    // Once they are open, no other file needs to be written outside of the directory.
    let exports = Export::open(&conduct.show.export)?;
    let needs = job.needs(&directory.path);
    let (directory, manifest, records, ending) = job.measure(directory, records, how, &needs)?;
    let concluded = report::conclude(&directory.path, &manifest, &records, &conduct.show, &exports);
    // The reason for an early end comes first: it explains whatever went wrong then.
    ending.and(concluded)
}

pub(crate) fn check(source: Source) -> Result<()> {
    Job::new(source, &Overrides::default(), &ImageArgs::default()).map(drop)
}

/// Runs an experiment into `path`, or completes what is there. Its table is left to the caller.
pub(crate) fn run_in(source: Source, overrides: &Overrides, path: &Path) -> Result<(Summary, Exit)> {
    let (ending, concluded) = run_within(source, overrides, (None, None), path)?;
    ending.and(concluded)
}

/// How an experiment ended, and what it then knows.
type Ended = (Result<()>, Result<(Summary, Exit)>);

/// Runs an experiment as [`run_in`] does, until a budget of time is over if there is one, and with patience for a busy host if that
/// has an end.
pub(crate) fn run_within(
    source: Source,
    overrides: &Overrides,
    (budget, patience): (Option<Duration>, Option<&Patience>),
    path: &Path,
) -> Result<Ended> {
    let (job, directory, records) = if path.join(directory::MANIFEST).exists() {
        let (job, directory, records) = going_on(path, &ImageArgs::default())?;
        let refuse = |what: &str| Err(Failure::usage(format!("{} {what}", path.display())));
        // Texts are cleaned where they are read back.
        if job.experiment.source.text != output::clean(&source.text) {
            return refuse("holds another experiment: choose another --output directory");
        }
        if job.overrides != *overrides {
            let begun = job.overrides.to_arguments().join(" ");
            return refuse(&format!(
                "was begun with other options ({begun}): give the same, or another --output"
            ));
        }
        (job, directory, records)
    } else {
        let job = Job::new(source, overrides, &ImageArgs::default()).inspect_err(|_| {
            let _ = std::fs::remove_dir(path); // an empty one was made for this
        })?;
        (job, Directory::create(path)?, vec![])
    };
    if let Some(patience) = patience {
        quiet::wait(patience, &job.plan)?;
    }
    // Further experiments go next to this one, and may need more of the host.
    let needs = job.needs(path.parent().unwrap_or(path));
    let needs = Needs { switches: true, counters: true, ..needs };
    let file = job.rule_of_file();
    // A budget ends within a block: the pairs that were run count.
    let rule = Rule {
        max_time: file.max_time.filter(|_| budget.is_none()),
        ends_in_vain: patience.and_then(Patience::ends_in_vain),
        ..file
    };
    let how = (rule, job.jobs(None)?, budget);
    let (directory, manifest, records, ending) = job.measure(directory, records, how, &needs)?;
    Ok((ending, report::write(&directory.path, &manifest, &records)))
}

fn resume(args: &BenchArgs, path: &Path) -> Result<Exit> {
    let (job, directory, records) = going_on(path, &args.conduct.image)?;
    quiet::wait(&args.conduct.patience, &job.plan)?;
    run_all(&args.conduct, &job, directory, records)
}

/// The job that a directory's manifest describes, if this host and this program can still do it, and what there is of it.
fn going_on(path: &Path, image: &ImageArgs) -> Result<(Job, Directory, Vec<Record>)> {
    let manifest = Manifest::read(path)?;
    let complain =
        |message: String| Failure::usage(format!("{}: {message}", path.join(directory::MANIFEST).display()));
    let overrides = Overrides::from_arguments(&manifest.source.overrides).map_err(|error| {
        complain(format!("overrides that this haltkick does not know ({})", error.kind()))
    })?;
    let source = Source { origin: manifest.source.origin.clone(), text: manifest.source.text.clone() };
    let job = Job::new(source, &overrides, image)?;
    if job.plan.outline != manifest.outline {
        return Err(complain(
            "plans other cells than this haltkick would: use the version that wrote it".into(),
        ));
    }
    let directory = Directory::reopen(path)?;
    let records = manifest.records(path)?;
    match job::difference(&manifest, &records, &job) {
        None => Ok((job, directory, records)),
        Some(difference) => Err(complain(format!(
            "was begun with {difference}: have the same again (--guest gives an image)"
        ))),
    }
}
