//! What runs a guest: our own VMM, on KVM or in this process; QEMU; and our own VMM again, under a Linux kernel instead of our guest.

pub(crate) mod linux;
pub(crate) mod qemu;
mod vmm;

use std::sync::atomic::AtomicBool;

use crate::host::clock::read_tsc;
use crate::host::error::RunError;
use crate::image::file::Image;
use crate::observe::instruments::Instruments;
use crate::run::check::choose;
use crate::run::config::{Engine, RunConfig};
use crate::run::outcome::Outcome;
use crate::run::readings::Readings;

/// Runs one guest to the end of its window.
///
/// `stop` is polled: setting it (from a signal handler) ends the run with [`RunError::Interrupted`].
///
/// # Errors
/// Every way in which a run can end without an outcome, see [`RunError`].
pub fn run(config: &RunConfig, image: &Image, stop: &AtomicBool) -> Result<Outcome, RunError> {
    run_with_readings(config, image, stop, &Instruments::default(), &mut Readings::default())
}

/// Like [`run`], and fills in `readings`, whether the run succeeds or fails. Guests beside the first have theirs in
/// [`Outcome::beside`]; if one of them fails, the run does.
///
/// # Errors
/// As [`run`].
pub fn run_with_readings(
    config: &RunConfig,
    image: &Image,
    stop: &AtomicBool,
    instruments: &Instruments,
    readings: &mut Readings,
) -> Result<Outcome, RunError> {
    let several = !config.beside.is_empty();
    let (mut first, mut beside) = (None, Vec::new());
    for ended in run_guests(config, image, stop, instruments)? {
        let named = |source| RunError::Guest { name: ended.name.clone(), source: Box::new(source) };
        match ended.result.map_err(|error| if several { named(error) } else { error }) {
            Err(error) => {
                *readings = ended.readings;
                return Err(error);
            }
            Ok(outcome) if first.is_none() => {
                *readings = ended.readings;
                first = Some(outcome);
            }
            Ok(outcome) => beside.push(outcome),
        }
    }
    let first = first.expect("a run has a guest");
    Ok(Outcome { beside, ..first })
}

/// How a guest of a run ended.
#[derive(Debug)]
pub struct Ended {
    /// Its name.
    pub name: String,
    /// What it found out; a failure of one leaves the others' outcomes.
    pub result: Result<Outcome, RunError>,
    /// What was seen of it besides.
    pub readings: Readings,
}

/// Runs a guest and those beside it, all at the same time, and says how each ended, in that order. A profile and a trace
/// are of all of them together; the first has them.
///
/// # Errors
/// What concerns all of them: settings that make no sense, what the host lacks, a request to stop.
pub fn run_guests(
    config: &RunConfig,
    image: &Image,
    stop: &AtomicBool,
    instruments: &Instruments,
) -> Result<Vec<Ended>, RunError> {
    // The counter of a simulated machine begins with the run.
    let start_tsc = if config.engine == Engine::Sim { 0 } else { read_tsc() };
    let configs: Vec<&RunConfig> = std::iter::once(config).chain(&config.beside).collect();
    instruments.check()?;
    let chosen = choose(&configs, image)?;
    match config.engine {
        Engine::Kvm | Engine::Threads | Engine::Sim => {
            vmm::run(&configs, image, &chosen, stop, instruments, start_tsc)
        }
        Engine::Qemu(accelerator) => {
            let (outcome, readings) = qemu::run(config, image, chosen[0], accelerator, stop, instruments)?;
            Ok(vec![Ended { name: config.name.clone(), result: Ok(outcome), readings }])
        }
    }
}
