//! Sessions on this host.

use std::num::NonZeroUsize;
use std::time::Duration;

use haltkick_vmm::{Needs, Run};

use super::job::Job;
use crate::commands::dry_run::Pace;
use crate::commands::interrupt;
use crate::host::identity::Host;
use crate::host::{facts, noise, walls};
use crate::measure::ahead::{Ahead, slowdown};
use crate::measure::calibrate::{CALIBRATION_BOOTS, Calibration, Calibrations};
use crate::measure::engine::{self, Engine};
use crate::measure::progress::Progress;
use crate::measure::session::{Rule, Session};
use crate::record::Record;
use crate::results::directory::{self, Directory};
use crate::results::live::LiveFile;
use crate::results::manifest::Manifest;
use crate::settings::rounds;
use crate::text::exit::{Failure, Result};
use crate::text::output;

/// Measures what is missing, until a budget of time ends that as Ctrl-C does. What there is then, and how it ended.
pub(super) fn measure(
    job: &Job,
    directory: Directory,
    records: Vec<Record>,
    (rule, jobs, budget): (Rule, Option<NonZeroUsize>, Option<Duration>),
    live: Option<LiveFile>,
) -> Result<(Directory, Manifest, Vec<Record>, Result<()>)> {
    let stop = interrupt::catch_within(budget)?;
    let shown = || live.as_ref().map(LiveFile::live);
    let engine = engine::kvm(&job.image, &stop, shown());
    let simulator = engine::simulator(&job.image, &stop, shown());
    let ahead = jobs.map(|jobs| Ahead::new(jobs, &simulator, &stop));
    let mut session = start(job, &engine, directory, records)?;
    session.simulators = ahead.as_ref();
    let ending = session.run(rule);
    let Session { directory, records, failed, .. } = session;
    let mut manifest = Manifest { noise_after: Some(facts::noise()), ..Manifest::read(&directory.path)? };
    manifest.note_failed(failed, records.iter().filter_map(|record| record.place.as_ref()));
    let written = directory.write(directory::MANIFEST, &output::to_indented_json(&manifest)?);
    rounds::tell_of_too_few(job.plan.cells().map(|cell| &cell.run));
    Ok((directory, manifest, records, ending.and(written)))
}

/// How fast the cells will be made, `jobs` at the same time if all are simulated: some of those are tried.
pub(super) fn pace(job: &Job, jobs: Option<NonZeroUsize>) -> Result<Pace> {
    let Some(jobs) = jobs else { return Ok(Pace { slowdown: None, at_a_time: 1 }) };
    let stop = interrupt::catch()?;
    walls::confine(&Needs::of(job.plan.cells().map(|cell| &cell.run)))?;
    let slowdown = slowdown(&job.plan, &engine::simulator(&job.image, &stop, None));
    // Not more than there are cells in a block.
    let at_a_time = jobs.get().min(job.plan.cells().count()).max(1);
    Ok(Pace { slowdown, at_a_time: u32::try_from(at_a_time).unwrap_or(u32::MAX) })
}

/// Calibrates, unless `records` tell how that went on this host, and writes the manifest of a new directory.
fn start<'a>(
    job: &'a Job,
    engine: Engine<'a>,
    directory: Directory,
    records: Vec<Record>,
) -> Result<Session<'a>> {
    let host = Host::probe();
    let measure = |run: &Run| Calibration::measure(engine, run, &job.image, CALIBRATION_BOOTS);
    let begun = Calibrations::of_plan(&job.plan, &records, &host, measure).map_err(Failure::from);
    let begun = begun.and_then(|calibrations| {
        if !directory.has_manifest() {
            directory.write(directory::MANIFEST, &output::to_indented_json(&job.manifest())?)?;
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
        plan: &job.plan,
        engine,
        watcher: &noise::around,
        host,
        calibrations,
        versions: job.versions.clone(),
        directory,
        records,
        progress: Progress::start(),
        disturbed_again: 0,
        failed: vec![],
        simulators: None,
    })
}
