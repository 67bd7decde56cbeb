//! `haltkick bench`: from an experiment file to a directory of results and a table.

use std::borrow::Cow;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use haltkick_vmm::{Image, Needs, RunError};

use crate::analysis::attempts;
use crate::analysis::summary::Summary;
use crate::cli::BenchArgs;
use crate::commands::guest_image;
use crate::commands::interrupt;
use crate::commands::report::{self, Show};
use crate::experiment::names::slug;
use crate::experiment::origins;
use crate::experiment::overrides::Overrides;
use crate::experiment::plan::{Cell, Plan};
use crate::experiment::{Experiment, Source};
use crate::host::cpulist::{self, CpuList};
use crate::host::facts::{self, Fact};
use crate::host::identity::Host;
use crate::host::noise;
use crate::measure::ahead::Ahead;
use crate::measure::calibrate::{CALIBRATION_BOOTS, Calibration};
use crate::measure::engine::{self, Engine};
use crate::measure::progress::Progress;
use crate::measure::rule::Rule;
use crate::measure::session::{Session, Simulators};
use crate::record::Record;
use crate::results::directory::{self, Directory};
use crate::results::manifest::{self, Manifest, ManifestSource};
use crate::settings::Supply;
use crate::text::duration::Span;
use crate::text::exit::{Exit, Failure, Result};
use crate::text::output;
use crate::text::timestamp;

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
    let job = Job::new(source, &args.overrides, (args.guest.as_deref(), args.trust_image))?;
    if args.list_cells {
        return list_cells(args, name, &job);
    }
    let output = args.output.clone().unwrap_or_else(|| default_output(&job.experiment));
    match &args.cell {
        Some(id) => run_one(args, &job, id, &output),
        None => {
            let jobs = job.jobs(args.jobs)?;
            run_all(args, &job, Directory::create(&output)?, vec![], jobs)
        }
    }
}

/// An experiment with all that is needed to run it.
struct Job {
    experiment: Experiment,
    overrides: Overrides,
    plan: Plan,
    image: Image,
    guest: Option<PathBuf>,
}

impl Job {
    fn new(source: Source, overrides: &Overrides, (guest, trusted): (Option<&Path>, bool)) -> Result<Self> {
        let mut experiment = Experiment::parse(source)?;
        experiment.apply(overrides)?;
        let image = guest_image::load(guest)?;
        let allowed: CpuList = cpulist::allowed()?;
        let pcpus = experiment.most_pcpus(&allowed);
        let left_out = experiment.leave_out_ratios(pcpus, haltkick_vmm::MAX_VCPUS);
        if !left_out.is_empty() {
            output::talk(&format!(
                "left out: ratio {} on {pcpus} pCPUs, more than {} vCPUs; --cpus chooses fewer pCPUs",
                left_out.join(", "),
                haltkick_vmm::MAX_VCPUS
            ));
        }
        let supply = Supply { image: &image, allowed: &allowed };
        let plan = Plan::new(&experiment, supply, overrides.seed.unwrap_or(1))?;
        guest_image::check_trust(guest, trusted, plan.cells().map(|cell| cell.config.engine))?;
        Ok(Self { experiment, overrides: overrides.clone(), plan, image, guest: guest.map(Path::to_owned) })
    }

    /// What it takes to run this and to write beneath `output`.
    fn needs(&self, output: &Path) -> Needs {
        let reads = self.guest.iter().cloned().collect();
        let needs = Needs::of(self.plan.cells().flat_map(|cell| engine::guests(&cell.config)));
        Needs { reads, writes: vec![output.to_owned()], ..needs }
    }

    /// When to stop: what the command line says over what the file says.
    fn rule(&self, target_precision: Option<f64>, max_time: Option<Span>, retries: Option<u32>) -> Rule {
        Rule {
            blocks: self.plan.outline.blocks,
            target_precision: target_precision.or(self.experiment.target_precision),
            max_time: max_time.or(self.experiment.max_time).map(|span| span.0),
            retries: retries.unwrap_or(self.experiment.retry_disturbed),
        }
    }

    /// How many simulated cells to run at the same time: as many as were asked for, or as this process has CPUs; `None` where
    /// cells are measured.
    fn jobs(&self, asked: Option<NonZeroUsize>) -> Result<Option<NonZeroUsize>> {
        if self.plan.cells().all(|cell| cell.config.simulated.is_some()) {
            let cpus = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
            return Ok(Some(asked.unwrap_or(cpus)));
        }
        match asked {
            None | Some(NonZeroUsize::MIN) => Ok(None),
            Some(_) => Err(Failure::usage(
                "--jobs: only simulated cells run at the same time: those that are measured would take each other's CPUs                  (--list-cells prints commands for several hosts)",
            )),
        }
    }

    fn manifest(&self) -> Manifest {
        Manifest {
            schema: manifest::SCHEMA.into(),
            schema_version: manifest::SCHEMA_VERSION,
            started: timestamp::rfc3339(SystemTime::now()),
            command_line: std::env::args().collect(),
            source: ManifestSource {
                origin: self.experiment.source.origin.clone(),
                text: self.experiment.source.text.clone(),
                overrides: self.overrides.to_arguments(),
            },
            origins: origins::origins(&self.experiment),
            outline: self.plan.outline.clone(),
            seed: self.plan.seed,
            host: Host::probe(),
            facts: facts::all(self.guest.as_deref()),
            noise_after: None,
        }
    }
}

fn run_all(
    args: &BenchArgs,
    job: &Job,
    directory: Directory,
    records: Vec<Record>,
    jobs: Option<NonZeroUsize>,
) -> Result<Exit> {
    haltkick_vmm::confine_process(&job.needs(directory.path()))?;
    let rule = job.rule(args.target_precision, args.max_time, args.retry_disturbed);
    let (directory, manifest, records, ending) = measure(job, directory, records, (rule, jobs))?;
    let show = Show { format: args.format, strict: args.strict };
    let concluded = report::conclude(directory.path(), &manifest, &records, show);
    // What ended it early is the reason for whatever went wrong then.
    ending.and(concluded)
}

/// Measures what is missing. What there is then, and how it ended.
fn measure(
    job: &Job,
    directory: Directory,
    records: Vec<Record>,
    (rule, jobs): (Rule, Option<NonZeroUsize>),
) -> Result<(Directory, Manifest, Vec<Record>, Result<()>)> {
    let stop = interrupt::catch()?;
    let (engine, simulator) = (engine::kvm(&job.image, &stop), engine::simulator(&job.image, &stop));
    let mut session = start(job, &engine, directory, records)?;
    session.simulators =
        jobs.map(|jobs| Simulators { ahead: Arc::new(Ahead::new(jobs)), simulate: &simulator, stop: &stop });
    let ending = session.run(rule);
    let manifest =
        Manifest { noise_after: Some(facts::noise()), ..Manifest::read(session.directory.path())? };
    let written = session.directory.write(directory::MANIFEST, &manifest.to_json()?);
    Ok((session.directory, manifest, session.records, ending.and(written)))
}

/// Runs a built-in experiment into `path`, or completes what is there. Its table is left to the caller.
pub(crate) fn run_in(name: &str, overrides: &Overrides, path: &Path) -> Result<(Summary, Exit)> {
    let (job, directory, records) = if path.join(directory::MANIFEST).exists() {
        let job = job_of(path, (None, false))?;
        if job.overrides != *overrides {
            let (path, begun) = (path.display(), job.overrides.to_arguments().join(" "));
            return Err(Failure::usage(format!(
                "{path} was begun with other options ({begun}): give the same, or another --output"
            )));
        }
        (job, Directory::reopen(path)?, directory::read_records(path)?)
    } else {
        (Job::new(Source::find(name)?, overrides, (None, false))?, Directory::create(path)?, vec![])
    };
    // Further experiments go beside this one, and may need more of the host.
    let needs = job.needs(path.parent().unwrap_or(path));
    haltkick_vmm::confine_process(&Needs { switches: true, counters: true, ..needs })?;
    let rule = job.rule(None, None, None);
    let jobs = job.jobs(None)?;
    let (directory, manifest, records, ending) = measure(&job, directory, records, (rule, jobs))?;
    let concluded = report::write(directory.path(), &manifest, &records);
    ending.and(concluded)
}

/// Calibrates, unless `records` tell how that went on this host, and writes the manifest of a new directory.
fn start<'a>(
    job: &'a Job,
    engine: Engine<'a>,
    directory: Directory,
    records: Vec<Record>,
) -> Result<Session<'a>> {
    let host = Host::probe();
    let calibration = match Calibration::of_host(&records, &host) {
        Some(calibration) => calibration,
        None => match calibrate(engine, job) {
            Ok(calibration) => calibration,
            Err(error) => {
                directory.discard();
                return Err(error.into());
            }
        },
    };
    if !directory.has_manifest()
        && let Err(failure) = directory.write(directory::MANIFEST, &job.manifest().to_json()?)
    {
        directory.discard();
        return Err(failure);
    }
    Ok(Session {
        plan: &job.plan,
        engine,
        watcher: &noise::around,
        host,
        calibration,
        directory,
        records,
        progress: Progress::start(),
        in_vain: 0,
        simulators: None,
    })
}

fn calibrate(engine: Engine<'_>, job: &Job) -> std::result::Result<Calibration, RunError> {
    let cell = job.plan.cells().next().ok_or_else(|| RunError::Usage("the plan has no cells".into()))?;
    Calibration::measure(engine, &cell.config, &job.image, CALIBRATION_BOOTS)
}

/// Completes what a directory holds.
fn resume(args: &BenchArgs, path: &Path) -> Result<Exit> {
    if args.overrides != Overrides::default() {
        return Err(Failure::usage(
            "--resume takes everything from the directory: of the other options only --target-precision, \
             --max-time, --retry-disturbed, --jobs, --strict, --guest and --format go with it",
        ));
    }
    let job = job_of(path, (args.guest.as_deref(), args.trust_image))?;
    let jobs = job.jobs(args.jobs)?;
    let directory = Directory::reopen(path)?;
    run_all(args, &job, directory, directory::read_records(path)?, jobs)
}

/// The job that a directory's manifest describes, if this host and this program can still do it.
fn job_of(path: &Path, guest: (Option<&Path>, bool)) -> Result<Job> {
    let manifest = Manifest::read(path)?;
    let complain =
        |message: String| Failure::usage(format!("{}: {message}", path.join(directory::MANIFEST).display()));
    let overrides = Overrides::from_arguments(&manifest.source.overrides).map_err(|error| {
        complain(format!("overrides that this haltkick does not know ({})", error.kind()))
    })?;
    let source = Source { origin: manifest.source.origin, text: manifest.source.text };
    let job = Job::new(source, &overrides, guest)?;
    if job.plan.outline != manifest.outline {
        return Err(complain(
            "plans other cells than this haltkick would: use the version that wrote it".into(),
        ));
    }
    let hash = |facts: &std::collections::BTreeMap<String, Fact>| {
        facts.get("tool.guest_sha256").and_then(|fact| fact.value.clone())
    };
    if hash(&manifest.facts) != hash(&facts::all(guest.0)) {
        return Err(complain("was begun with another guest image: give that one with --guest".into()));
    }
    Ok(job)
}

/// Prints one command per cell and block, in the order in which one process would run them.
fn list_cells(args: &BenchArgs, name: &str, job: &Job) -> Result<Exit> {
    let output = args.output.clone().unwrap_or_else(|| PathBuf::from(slug(&job.experiment.name)));
    let mut common = vec!["haltkick".into(), "bench".into(), quote(name)];
    common.extend(job.overrides.to_arguments().iter().map(|option| quote_option(option)));
    common.extend(args.guest.iter().map(|guest| format!("--guest={}", quote(&guest.display().to_string()))));
    common.extend(args.retry_disturbed.map(|retries| format!("--retry-disturbed={retries}")));
    common.extend(args.strict.then(|| "--strict".into()));
    common.push(format!("--output={}", quote(&output.display().to_string())));
    let common = common.join(" ");
    let mut text = String::new();
    for block in 0..job.plan.outline.blocks {
        for cell in job.plan.block(block) {
            text += &format!("{common} --cell={}\n", in_block(&cell.id, block));
        }
    }
    output::data(&text)?;
    Ok(Exit::Done)
}

/// An option as a shell reads it back. Its equals signs stay bare, as people write them.
fn quote_option(option: &str) -> String {
    option.split('=').map(quote).collect::<Vec<_>>().join("=")
}

/// A word as a shell reads it back. (Only a zero byte cannot be quoted, and no argument has one.)
fn quote(word: &str) -> String {
    shlex::try_quote(word).map_or_else(|_| word.to_owned(), Cow::into_owned)
}

/// Name of one cell in one block.
fn in_block(id: &str, block: u32) -> String {
    format!("{id}_block-{block}")
}

/// Runs one cell of one block into a directory that other processes may be adding to.
fn run_one(args: &BenchArgs, job: &Job, id: &str, path: &Path) -> Result<Exit> {
    let (cell, block) = find_cell(&job.plan, id)?;
    let directory = Directory::join(path, id)?;
    let records = directory::read_records(path)?;
    if directory.has_manifest() && Manifest::read(path)?.outline != job.plan.outline {
        directory.discard();
        let path = path.display();
        return Err(Failure::usage(format!(
            "{path} holds another experiment: choose another --output directory"
        )));
    }
    let is_it = |record: &&Record| {
        record.place.as_ref().is_some_and(|place| place.cell_id == cell.id && place.block == block)
    };
    if records.iter().any(|record| is_it(&record)) {
        directory.discard();
        output::talk(&format!("{id} is recorded already"));
        return Ok(Exit::Done);
    }
    haltkick_vmm::confine_process(&job.needs(path))?;
    let stop = interrupt::catch()?;
    let (engine, simulator) = (engine::kvm(&job.image, &stop), engine::simulator(&job.image, &stop));
    let mut session = start(job, &engine, directory, records)?;
    let is_simulated = cell.config.simulated.is_some();
    session.simulators = is_simulated.then(|| Simulators {
        ahead: Arc::new(Ahead::new(NonZeroUsize::MIN)),
        simulate: &simulator,
        stop: &stop,
    });
    let before = session.records.len();
    let ending = session.run_single(cell, block, job.rule(None, None, args.retry_disturbed).retries);
    if session.records.len() == before {
        session.directory.discard();
        return ending.map(|()| Exit::Done);
    }
    ending?;
    for record in &session.records[before..] {
        if args.format == crate::cli::Format::Json {
            output::data(&format!("{}\n", output::to_json(record)?))?;
        }
    }
    let records = attempts::last(&session.records[before..]);
    let spoiled = records.iter().filter(|record| !record.trusted).count();
    if spoiled > 0 {
        output::talk(&format!("warning: {spoiled} of {} runs of {id} are not to be trusted", records.len()));
    }
    Ok(if args.strict && spoiled > 0 { Exit::Untrusted } else { Exit::Done })
}

fn find_cell<'a>(plan: &'a Plan, id: &str) -> Result<(&'a Cell, u32)> {
    let wrong =
        || Failure::usage(format!("no cell is called '{id}': --list-cells prints those that there are"));
    let (name, block) = id.rsplit_once("_block-").ok_or_else(wrong)?;
    let block = block.parse().map_err(|_| wrong())?;
    let cell = plan.cells().find(|cell| cell.id == name).ok_or_else(wrong)?;
    Ok((cell, block))
}

fn default_output(experiment: &Experiment) -> PathBuf {
    let now = timestamp::for_file_name(SystemTime::now());
    Path::new("experiments-out").join(format!("{}-{now}", slug(&experiment.name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_back_by_a_shell_as_they_were() {
        assert_eq!(quote_option("--set=hold=5us"), "--set=hold=5us");
        for option in ["--set=hold=5us", "--set=vm=lock=tas; name=b", "--guest=it's \"mine\"", "--quick"] {
            assert_eq!(shlex::split(&quote_option(option)), Some(vec![option.to_owned()]));
        }
    }
}
