//! An experiment that is about to run, and its session on this host: its plan, the guest's image, and what the command line says. What a
//! directory holds against a job that is to go on there: program, image and files by their content, since the same names may stand for
//! something else by now.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::{Duration, SystemTime};

use haltkick_vmm::{FILE_PREFIX, Image, MAX_LINUX_VCPUS, Needs, Run};

use crate::cli::{Conduct, ImageArgs};
use crate::commands::{guest_image, interrupt};
use crate::experiment::overrides::Overrides;
use crate::experiment::plan::{Cell, Plan};
use crate::experiment::{Experiment, Source};
use crate::host::facts::{self, Fact};
use crate::host::identity::Host;
use crate::host::{cpulist, noise};
use crate::measure::ahead::{Ahead, try_some};
use crate::measure::calibrate::{CALIBRATION_BOOTS, Calibration, Calibrations};
use crate::measure::engine::{self, Engine};
use crate::measure::linux::{self, Versions};
use crate::measure::progress::Progress;
use crate::measure::session::{Rule, Session};
use crate::record::{Record, settings};
use crate::results::directory::{self, Directory};
use crate::results::live::LiveFile;
use crate::results::manifest::{self, KernelFiles, Manifest, ManifestSource};
use crate::settings::{Supply, rounds};
use crate::text::exit::{Failure, Result};
use crate::text::{output, timestamp};

pub(super) struct Job {
    pub(super) experiment: Experiment,
    pub(super) overrides: Overrides,
    pub(super) plan: Plan,
    pub(super) image: Image,
    pub(super) versions: Versions,
    /// Files that its arms boot, where they are kernels.
    pub(super) kernels: Vec<KernelFiles>,
}

impl Job {
    /// Refuses cells that cannot be run here.
    pub(super) fn new(source: Source, overrides: &Overrides, from: &ImageArgs) -> Result<Self> {
        let mut experiment = Experiment::parse(source)?;
        experiment.apply(overrides)?;
        let with: Vec<String> = overrides.with.iter().map(|file| format!("{FILE_PREFIX}{file}")).collect();
        let named = experiment.locks();
        let image = guest_image::load(from.guest.as_deref(), named.iter().chain(&with).map(String::as_str))?;
        for lock in with.iter().filter_map(|name| image.locks.iter().find(|lock| lock.name == *name)) {
            experiment.add_object(lock).map_err(|error| Failure::usage(format!("--with: {error}")))?;
        }
        let allowed = cpulist::allowed()?;
        let supply = Supply { image: &image, allowed: &allowed };
        let most_vcpus =
            if experiment.has_kernels() { MAX_LINUX_VCPUS as usize } else { haltkick_vmm::MAX_VCPUS };
        let fitted = experiment.fit_to(supply, most_vcpus)?;
        fitted.iter().for_each(|line| output::talk(line));
        let plan = Plan::new(&experiment, supply, overrides.seed.unwrap_or(1))?;
        guest_image::check_trust(from, &image, plan.cells().map(|cell| &cell.run.engine))?;
        guest_image::say_before(&allowed, plan.cells().map(|cell| &cell.run));
        let versions = linux::versions(&plan)?;
        let kernels = linux::files(&plan)?;
        // Before there is a directory, and before time is spent on other cells.
        for cell in plan.cells() {
            haltkick_vmm::check_guests(&cell.run, &image).map_err(|error| {
                let failure = Failure::from(error);
                Failure { message: format!("cell {}: {}", cell.id, failure.message), ..failure }
            })?;
        }
        Ok(Self { experiment, overrides: overrides.clone(), plan, image, versions, kernels })
    }

    /// The needs of running this and of writing beneath `output`. The image is in memory, with the objects behind it.
    pub(super) fn needs(&self, output: &Path) -> Needs {
        let needs = Needs::of(self.plan.cells().map(|cell| &cell.run));
        Needs { writes: vec![output.to_owned()], ..needs }
    }

    /// When to stop: what the command line says over what the file says.
    pub(super) fn rule(&self, conduct: &Conduct) -> Rule {
        let file = self.rule_of_file();
        Rule {
            target_precision: conduct.target_precision.or(file.target_precision),
            max_time: conduct.max_time.map(|span| span.0).or(file.max_time),
            retries: conduct.retry_disturbed.unwrap_or(file.retries),
            ends_in_vain: conduct.patience.ends_in_vain(),
            ..file
        }
    }

    pub(super) fn rule_of_file(&self) -> Rule {
        Rule {
            blocks: self.plan.outline.blocks,
            target_precision: self.experiment.target_precision,
            max_time: self.experiment.max_time.map(|span| span.0),
            retries: self.experiment.retry_disturbed,
            ends_in_vain: None,
        }
    }

    /// How many simulated cells to run at the same time: as many as were asked for, or as this process has CPUs; `None` where
    /// cells are measured.
    pub(super) fn jobs(&self, asked: Option<NonZeroUsize>) -> Result<Option<NonZeroUsize>> {
        if self.plan.cells().all(|cell| cell.run.engine.is_simulated()) {
            let cpus = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
            let most =
                self.plan.cells().filter_map(|cell| haltkick_vmm::most_at_a_time(&cell.run, &self.image));
            let most =
                most.min().and_then(|most| NonZeroUsize::new(most as usize)).unwrap_or(NonZeroUsize::MAX);
            return match asked {
                Some(asked) if asked > most => Err(Failure::usage(format!(
                    "--jobs: there is memory for {most} simulated cells at a time, not for {asked}"
                ))),
                asked => Ok(Some(asked.unwrap_or(cpus.min(most)))),
            };
        }
        match asked {
            None | Some(NonZeroUsize::MIN) => Ok(None),
            Some(_) => Err(Failure::usage(
                "--jobs: only simulated cells run at the same time: those that are measured would take each other's CPUs",
            )),
        }
    }

    fn manifest(&self) -> Manifest {
        Manifest {
            schema: manifest::SCHEMA.into(),
            schema_version: manifest::SCHEMA_VERSION,
            started: timestamp::rfc3339(SystemTime::now()),
            command_line: std::env::args_os()
                .map(|argument| argument.to_string_lossy().into_owned())
                .collect(),
            source: ManifestSource {
                origin: self.experiment.source.origin.clone(),
                text: self.experiment.source.text.clone(),
                overrides: self.overrides.to_arguments(),
            },
            outline: self.plan.outline.clone(),
            kernels: self.kernels.clone(),
            files: self.plan.cells().flat_map(|cell| settings::files(&cell.run)).collect(),
            seed: self.plan.seed,
            host: Host::probe(),
            facts: facts::all(&self.image),
            noise_after: None,
            failed: vec![],
        }
    }

    /// Gives up all but `needs`, and measures what is missing, until a budget of time ends that as Ctrl-C does. What there is then, and
    /// how it ended.
    pub(super) fn measure(
        &self,
        directory: Directory,
        records: Vec<Record>,
        (rule, jobs, budget): (Rule, Option<NonZeroUsize>, Option<Duration>),
        needs: &Needs,
    ) -> Result<(Directory, Manifest, Vec<Record>, Result<()>)> {
        let is_shown = self.plan.cells().any(|cell| cell.run.live);
        let live = is_shown.then(|| LiveFile::within(&directory.path)).transpose()?;
        guest_image::confine(needs)?;
        let stop = interrupt::catch_within(budget)?;
        let shown = || live.as_ref().map(LiveFile::live);
        let engine = engine::kvm(&self.image, &stop, shown());
        let simulator = engine::simulator(&self.image, &stop, shown());
        let ahead = jobs.map(|jobs| Ahead::new(jobs, &simulator, &stop));
        let mut session = self.start(&engine, directory, records)?;
        session.simulators = ahead.as_ref();
        let ending = session.run(rule);
        let Session { directory, records, failed, .. } = session;
        let mut manifest = Manifest { noise_after: Some(facts::noise()), ..Manifest::read(&directory.path)? };
        manifest.note_failed(failed, &records);
        let written = directory.write(directory::MANIFEST, &output::to_indented_json(&manifest)?);
        rounds::tell_of_too_few(self.plan.cells().map(|cell| &cell.run));
        Ok((directory, manifest, records, ending.and(written)))
    }

    /// Estimates the time of `blocks` blocks, `jobs` cells at the same time if all are simulated: it tries some simulated cells.
    pub(super) fn time(&self, blocks: u32, jobs: Option<NonZeroUsize>) -> Result<Duration> {
        let mut progress = Progress::start();
        let Some(jobs) = jobs else { return Ok(progress.of_blocks(&self.plan, blocks)) };
        let stop = interrupt::catch()?;
        guest_image::confine(&Needs::of(self.plan.cells().map(|cell| &cell.run)))?;
        try_some(&self.plan, &engine::simulator(&self.image, &stop, None), &mut progress);
        // Not more than there are cells in a block.
        let at_a_time = jobs.get().min(self.plan.cells().count()).max(1);
        Ok(progress.of_blocks(&self.plan, blocks) / u32::try_from(at_a_time).unwrap_or(u32::MAX))
    }

    /// Calibrates, unless `records` tell how that went on this host, and writes the manifest of a new directory.
    fn start<'a>(
        &'a self,
        engine: Engine<'a>,
        directory: Directory,
        records: Vec<Record>,
    ) -> Result<Session<'a>> {
        let host = Host::probe();
        let measure = |run: &Run| Calibration::measure(engine, run, &self.image, CALIBRATION_BOOTS);
        let begun = Calibrations::of_plan(&self.plan, &records, &host, measure).map_err(Failure::from);
        let begun = begun.and_then(|calibrations| {
            if !directory.has_manifest() {
                directory.write(directory::MANIFEST, &output::to_indented_json(&self.manifest())?)?;
            }
            Ok(calibrations)
        });
        let calibrations = match begun {
            Ok(calibrations) => calibrations,
            Err(failure) => {
                directory.discard();
                return Err(failure);
            }
        };
        Ok(Session {
            plan: &self.plan,
            engine,
            watcher: &noise::around,
            host,
            calibrations,
            versions: self.versions.clone(),
            directory,
            records,
            progress: Progress::start(),
            failed: vec![],
            simulators: None,
            ordered: BTreeMap::new(),
        })
    }
}

/// Names the first thing with which a directory's runs were made and `job` would not make them.
pub(super) fn difference(manifest: &Manifest, records: &[Record], job: &Job) -> Option<String> {
    let here = facts::of_tool(&job.image);
    let value = |facts: &BTreeMap<String, Fact>, key: &str| facts.get(key).and_then(|it| it.value.clone());
    let is_same = |key: &str| value(&manifest.facts, key) == value(&here, key);
    if !is_same("tool.guest_sha256") {
        return Some("another guest image, or with lock objects that have changed".into());
    }
    if let Some(difference) = KernelFiles::first_difference(&manifest.kernels, &job.kernels) {
        return Some(format!("other kernels: {difference}"));
    }
    // The program simulates.
    if job.plan.cells().any(|cell| cell.run.engine.is_simulated()) && !is_same("tool.vmm_sha256") {
        return Some("another haltkick, whose simulated figures may differ".into());
    }
    if manifest.has_kernels() {
        return None;
    }
    let cells: BTreeMap<&str, &Cell> = job.plan.cells().map(|cell| (cell.id.as_str(), cell)).collect();
    records.iter().find_map(|record| {
        let cell = cells.get(record.place.as_ref()?.cell_id.as_str())?;
        let file = record.settings.other_file(&cell.run)?;
        Some(format!("another {file} in cell {}", cell.id))
    })
}
