//! Engines that run a guest: our own VMM, on KVM or in this process; QEMU; and our own VMM, under a Linux kernel as the guest.

pub(crate) mod explained;
pub(crate) mod linux;
pub(crate) mod lock_code;
mod meddler;
pub(crate) mod qemu;
pub(crate) mod vmm;

use std::sync::atomic::AtomicBool;

use crate::host::clock::read_tsc;
use crate::host::error::RunError;
use crate::image::file::Image;
use crate::machine::vm::allow_open_files;
use crate::observe::Instruments;
use crate::run::asked::{Engine, Run};
use crate::run::check::choose;
use crate::run::outcome::Found;
use vmm::Watched;

/// Refuses what cannot be run, as far as that can be told before anything is created.
///
/// # Errors
/// [`RunError::Usage`], and what the host lacks for guests of this size.
pub fn check_guests(run: &Run, image: &Image) -> Result<(), RunError> {
    choose(run, image)?;
    match (run.linux(), &run.engine) {
        // How much memory and how many vCPUs there may be is QEMU's own choice.
        (Some((_, linux)), Engine::Qemu(_)) => linux::load::check(linux)?,
        (Some((guest, linux)), _) => linux::refuse(run, guest, linux)?,
        (None, _) => {}
    }
    // The calibration has fewer vCPUs, and would ask for too few.
    match run.engine {
        Engine::Kvm => allow_open_files(run.guests.iter().map(|guest| guest.vcpus).sum()),
        _ => Ok(()),
    }
}

/// Runs guests, as [`explained::run`] says, and has a run on a simulated machine watched.
pub(crate) fn run_watched(
    run: &Run,
    image: &Image,
    instruments: &Instruments,
    stop: &AtomicBool,
    watched: Watched<'_>,
) -> Result<Found, RunError> {
    // The counter of a simulated machine begins with the run.
    let start_tsc = if run.engine.is_simulated() { 0 } else { read_tsc() };
    if let Some(linux) = run.linux() {
        return match run.engine {
            Engine::Qemu(accelerator) => qemu::linux::run(run, linux, accelerator, stop, instruments),
            _ => linux::run(run, linux, stop, instruments),
        };
    }
    instruments.check()?;
    let chosen = choose(run, image)?;
    match run.engine {
        Engine::Kvm | Engine::Threads | Engine::Sim(_) => {
            vmm::run(run, image, &chosen, stop, instruments, (start_tsc, watched))
        }
        Engine::Qemu(accelerator) => qemu::run(run.our(0), image, chosen[0], accelerator, stop, instruments),
    }
}
