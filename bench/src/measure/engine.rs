//! One run of one cell: from settings to record. The lock-free companion of a single run.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use haltkick_vmm::{Found, Image, Instruments, Known, Live, Run, RunError, VirtualTime};

use super::console::RunResult;
use super::fill::Origin;
use super::linux;
use crate::experiment::plan::lock_free;
use crate::host::identity::Host;
use crate::host::noise::{self, Watcher};
use crate::show::record;
use crate::text::output;

/// Runs guests, all of which come to their end: the VMM, or in tests a model of it.
pub(crate) type Engine<'a> = &'a dyn Fn(&Run) -> Result<RunResult, RunError>;

/// The real engine. Tells the story of a guest that fails, and shows in `live` runs that are to show themselves.
pub(crate) fn kvm<'a>(
    image: &'a Image,
    stop: &'a AtomicBool,
    live: Option<Arc<Live>>,
) -> impl Fn(&Run) -> Result<RunResult, RunError> + 'a {
    let instruments = Instruments { live, ..Instruments::default() };
    move |run| {
        if run.linux().is_some() {
            return linux::boot_and_tell(run, image, stop);
        }
        told(haltkick_vmm::run(run, image, &instruments, stop)?).map(RunResult::from)
    }
}

/// An engine for simulated machines: its runs show how far they are, and tell nothing before their turn.
pub(crate) fn simulator<'a>(
    image: &'a Image,
    stop: &'a AtomicBool,
    live: Option<Arc<Live>>,
) -> impl Fn(&Run, Arc<VirtualTime>) -> Result<Found, RunError> + Sync + 'a {
    move |run, virtual_time| {
        let live = live.clone();
        let instruments = Instruments { virtual_time: Some(virtual_time), live, ..Instruments::default() };
        haltkick_vmm::run(run, image, &instruments, stop)
    }
}

/// A run, if all its guests came to their end; else tells the story of one that failed.
pub(super) fn told(found: Found) -> Result<Found, RunError> {
    let story = found.failed().map(|guest| record::story(&guest.console, guest.explanation.as_ref()));
    if let Some(story) = story.filter(|story| !story.is_empty()) {
        output::talk(&story);
    }
    found.all()
}

pub(crate) fn run_cell(
    engine: Engine<'_>,
    watcher: Watcher<'_>,
    run: &Run,
    host: &Host,
) -> Result<(RunResult, Origin), RunError> {
    let started = SystemTime::now();
    let mut seen = None;
    let noise = if run.engine.is_simulated() {
        seen = Some(engine(run));
        Err(noise::SIMULATED.into())
    } else {
        watcher(&run.cpus, &mut || seen = Some(engine(run)))
    };
    let seen = seen.expect("a watcher runs what it watches")?;
    Ok((seen, Origin::new(started, host.clone(), noise)))
}

/// Sections completed per second of window, by each guest.
pub(crate) fn per_second(found: &Found) -> Vec<f64> {
    found.outcomes().map(|outcome| outcome.acquisitions() as f64 / outcome.window.as_secs_f64()).collect()
}

/// Longest window of the lock-free companion of a single run.
const COMPANION_WINDOW: Duration = Duration::from_millis(200);

/// Lock-free throughput of each guest of the cell per second, from a short run without lock.
pub(crate) fn companion(engine: Engine<'_>, run: &Run, image: &Image, work_rate: u64) -> Known<Vec<f64>> {
    let found = lock_free(run, image)
        .ok_or_else(|| RunError::usage("the image has no lock-free lock to compare with"))
        .and_then(|run| {
            let window = run.window.min(COMPANION_WINDOW);
            engine(&Run { work_rate: Some(work_rate), ..run }.with_window(window))
        });
    match found {
        Ok(seen) => Ok(per_second(&seen.found)),
        Err(error) => Err(format!("the lock-free companion run failed: {error}").into()),
    }
}
