//! One run of one cell: from settings to record.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use haltkick_vmm::{Image, Instruments, Known, Live, Outcome, Readings, RunConfig, RunError, VirtualTime};

use super::judge::judge;
use super::origin::Origin;
use crate::experiment::ideal::lock_free;
use crate::experiment::place::Place;
use crate::host::identity::Host;
use crate::host::noise::{self, Found, Watcher};
use crate::record::Record;
use crate::show::failure;
use crate::text::output;

/// What turns a configuration into an outcome: the VMM, or in tests a model of it.
pub(crate) type Engine<'a> = &'a dyn Fn(&RunConfig) -> Result<Outcome, RunError>;

/// The real engine. Tells the story of a guest that fails, and shows in `live` runs that are to show themselves.
pub(crate) fn kvm<'a>(
    image: &'a Image,
    stop: &'a AtomicBool,
    live: Option<Arc<Live>>,
) -> impl Fn(&RunConfig) -> Result<Outcome, RunError> + 'a {
    let instruments = Instruments { live, ..Instruments::default() };
    move |config| {
        let (result, story) = run_and_tell(config, image, stop, &instruments);
        if !story.is_empty() {
            output::talk(&story);
        }
        result
    }
}

/// The same for runs on simulated machines, which show how far they are, and tell nothing before their turn.
pub(crate) fn simulator<'a>(
    image: &'a Image,
    stop: &'a AtomicBool,
    live: Option<Arc<Live>>,
) -> impl Fn(&RunConfig, Arc<VirtualTime>) -> (Result<Outcome, RunError>, String) + Sync + 'a {
    move |config, virtual_time| {
        let live = live.clone();
        let instruments = Instruments { virtual_time: Some(virtual_time), live, ..Instruments::default() };
        run_and_tell(config, image, stop, &instruments)
    }
}

/// What came of a run, and the story of its guest if that failed.
fn run_and_tell(
    config: &RunConfig,
    image: &Image,
    stop: &AtomicBool,
    instruments: &Instruments,
) -> (Result<Outcome, RunError>, String) {
    let mut readings = Readings::default();
    let result = haltkick_vmm::run_with_readings(config, image, stop, instruments, &mut readings);
    let story = if result.is_err() { failure::story(&readings) } else { String::new() };
    (result, story)
}

/// Longest window of the lock-free companion of a single run.
const COMPANION_WINDOW: Duration = Duration::from_millis(200);

/// A run that came to its end.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) started: SystemTime,
    pub(crate) outcome: Outcome,
    /// What else ran meanwhile.
    pub(crate) noise: Found,
}

/// Runs one cell.
pub(crate) fn run_cell(
    engine: Engine<'_>,
    watcher: Watcher<'_>,
    config: &RunConfig,
) -> Result<Ran, RunError> {
    let started = SystemTime::now();
    let mut outcome = None;
    let noise = if config.simulated.is_some() {
        outcome = Some(engine(config));
        Err(noise::SIMULATED.into())
    } else {
        watcher(&config.cpus, &mut || outcome = Some(engine(config)))
    };
    Ok(Ran { started, outcome: outcome.expect("a watcher runs what it watches")?, noise })
}

/// The record of a run's guest, and of each that ran beside it. `lock_free_per_second` is asked of each.
pub(crate) fn records(
    Ran { started, outcome, noise }: Ran,
    config: &RunConfig,
    host: &Host,
    place: Option<&Place>,
    lock_free_per_second: impl FnOnce(&Outcome) -> Known<Vec<f64>>,
) -> Vec<Record> {
    let origin = Origin::new(started, host.clone(), noise);
    let lock_free = lock_free_per_second(&outcome);
    let outcomes = std::iter::once(&outcome).chain(&outcome.beside);
    let records = guests(config).zip(outcomes).enumerate().map(|(index, (config, outcome))| {
        let place = place.map(|place| if index == 0 { place.clone() } else { place.beside(&config.name) });
        let lock_free = lock_free.as_ref().map(|each| each[index]).map_err(Clone::clone);
        let mut record = Record::new(config, outcome, origin.context(place, lock_free));
        judge(&mut record, config, outcome, origin.tick_resolution());
        record
    });
    records.collect()
}

/// The guests of a run.
pub(crate) fn guests(config: &RunConfig) -> impl Iterator<Item = &RunConfig> {
    std::iter::once(config).chain(&config.beside)
}

/// Lock-free throughput of each guest of the cell per second, from a short run without lock.
pub(crate) fn companion(
    engine: Engine<'_>,
    config: &RunConfig,
    image: &Image,
    work_rate: u64,
) -> Result<Vec<f64>, RunError> {
    let mut config = lock_free(config, image)
        .ok_or_else(|| RunError::Usage("the image has no lock-free lock to compare with".into()))?;
    for guest in &mut config.beside {
        guest.window = guest.window.min(COMPANION_WINDOW);
        guest.work_rate = Some(work_rate);
    }
    config.window = config.window.min(COMPANION_WINDOW);
    config.work_rate = Some(work_rate);
    Ok(per_second(&engine(&config)?))
}

/// Sections completed per second of window, by each guest.
pub(crate) fn per_second(outcome: &Outcome) -> Vec<f64> {
    let of = |outcome: &Outcome| outcome.acquisitions() as f64 / outcome.window.as_secs_f64();
    std::iter::once(outcome).chain(&outcome.beside).map(of).collect()
}
