//! One run of one cell: from settings to record.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use haltkick_vmm::{Image, Instruments, Outcome, Readings, RunConfig, RunError};

use super::judge::judge;
use super::origin::Origin;
use crate::experiment::ideal::lock_free;
use crate::experiment::place::Place;
use crate::host::identity::Host;
use crate::host::noise::{self, Watcher};
use crate::record::Record;
use crate::show::failure;
use crate::text::output;

/// What turns a configuration into an outcome: the VMM, or in tests a model of it.
pub(crate) type Engine<'a> = &'a dyn Fn(&RunConfig) -> Result<Outcome, RunError>;

/// The real engine. Tells the story of a guest that fails.
pub(crate) fn kvm<'a>(
    image: &'a Image,
    stop: &'a AtomicBool,
) -> impl Fn(&RunConfig) -> Result<Outcome, RunError> + 'a {
    move |config| {
        let mut readings = Readings::default();
        let result =
            haltkick_vmm::run_with_readings(config, image, stop, &Instruments::default(), &mut readings);
        if result.is_err() {
            let story = failure::story(&readings);
            if !story.is_empty() {
                output::talk(&story);
            }
        }
        result
    }
}

/// Longest window of the lock-free companion of a single run.
const COMPANION_WINDOW: Duration = Duration::from_millis(200);

/// Runs one cell: the record of its guest, and of each that runs beside it. `lock_free_per_second` of each is asked
/// afterwards, so that a single run can measure it then.
pub(crate) fn run_cell(
    engine: Engine<'_>,
    watcher: Watcher<'_>,
    config: &RunConfig,
    host: &Host,
    place: Option<&Place>,
    lock_free_per_second: impl FnOnce(&Outcome) -> Result<Vec<f64>, String>,
) -> Result<Vec<Record>, RunError> {
    let started = SystemTime::now();
    let mut outcome = None;
    let noise = if config.simulated.is_some() {
        outcome = Some(engine(config));
        Err(noise::SIMULATED.into())
    } else {
        watcher(&config.cpus, &mut || outcome = Some(engine(config)))
    };
    let outcome = outcome.expect("a watcher runs what it watches")?;
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
    Ok(records.collect())
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
