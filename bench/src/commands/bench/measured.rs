//! Sessions on this host, of our own guests and of kernels.

use std::num::NonZeroUsize;
use std::sync::Arc;

use haltkick_vmm::RunError;

use super::job::Job;
use crate::commands::interrupt;
use crate::host::identity::Host;
use crate::host::noise;
use crate::measure::ahead::Ahead;
use crate::measure::calibrate::{CALIBRATION_BOOTS, Calibration};
use crate::measure::engine::{self, Engine};
use crate::measure::kernels;
use crate::measure::progress::Progress;
use crate::measure::session::{Runs, Session, Simulators};
use crate::record::Record;
use crate::record::linux::LinuxRecord;
use crate::results::directory::{self, Directory};
use crate::results::live::LiveFile;
use crate::show::shown::Shown;
use crate::text::exit::Result;

/// Records that sessions on this host make.
pub(super) trait Measured: Runs + Shown {
    /// Does some work in a session. What it leaves, and what the work came to.
    fn in_session<T>(
        job: &Job,
        directory: Directory,
        records: Vec<Self>,
        how: (Option<NonZeroUsize>, Option<&LiveFile>),
        work: impl FnOnce(&mut Session<'_, Self>) -> T,
    ) -> Result<(Directory, Vec<Self>, T)>;
}

impl Measured for Record {
    fn in_session<T>(
        job: &Job,
        directory: Directory,
        records: Vec<Self>,
        (simulate, live): (Option<NonZeroUsize>, Option<&LiveFile>),
        work: impl FnOnce(&mut Session<'_, Self>) -> T,
    ) -> Result<(Directory, Vec<Self>, T)> {
        let stop = interrupt::catch()?;
        let shown = || live.map(LiveFile::live);
        let engine = engine::kvm(&job.image, &stop, shown());
        let simulator = engine::simulator(&job.image, &stop, shown());
        let mut session = start(job, &engine, directory, records)?;
        session.simulators = simulate.map(|jobs| Simulators {
            ahead: Arc::new(Ahead::new(jobs)),
            simulate: &simulator,
            stop: &stop,
        });
        let done = work(&mut session);
        Ok((session.directory, session.records, done))
    }
}

impl Measured for LinuxRecord {
    fn in_session<T>(
        job: &Job,
        directory: Directory,
        records: Vec<Self>,
        _: (Option<NonZeroUsize>, Option<&LiveFile>),
        work: impl FnOnce(&mut Session<'_, Self>) -> T,
    ) -> Result<(Directory, Vec<Self>, T)> {
        let stop = interrupt::catch()?;
        let engine = kernels::kvm(&stop);
        let engine: kernels::Engine<'_> = &engine;
        let mut session = Session {
            plan: &job.plan,
            engine,
            watcher: &noise::around,
            host: Host::probe(),
            calibration: job.versions.clone(),
            directory: with_manifest(job, directory)?,
            records,
            progress: Progress::start(),
            in_vain: 0,
            failed: vec![],
            simulators: None,
        };
        let done = work(&mut session);
        Ok((session.directory, session.records, done))
    }
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
    Ok(Session {
        plan: &job.plan,
        engine,
        watcher: &noise::around,
        host,
        calibration,
        directory: with_manifest(job, directory)?,
        records,
        progress: Progress::start(),
        in_vain: 0,
        failed: vec![],
        simulators: None,
    })
}

/// The directory with its manifest, which is new if there was none.
fn with_manifest(job: &Job, directory: Directory) -> Result<Directory> {
    if !directory.has_manifest()
        && let Err(failure) = directory.write(directory::MANIFEST, &job.manifest().to_json()?)
    {
        directory.discard();
        return Err(failure);
    }
    Ok(directory)
}

fn calibrate(engine: Engine<'_>, job: &Job) -> std::result::Result<Calibration, RunError> {
    let cell = job.plan.cells().next().ok_or_else(|| RunError::usage("the plan has no cells"))?;
    Calibration::measure(engine, &cell.run, &job.image, CALIBRATION_BOOTS)
}
