//! The findings of a run: of all its guests together, and how each of them ended.

use std::time::Duration;

use crate::explain::Explanation;
use crate::host::error::{Known, RunError};
use crate::host::pmu::CacheEvents;
use crate::observe::profile::Profile;
use crate::observe::trace::Trace;
use crate::run::outcome::{LinuxOutcome, Outcome};
use crate::sched::Repeated;
use crate::sched::run_delay::RunDelay;

/// Why nothing else is known to have run on a simulated machine.
pub const NOTHING_ELSE_RUNS: &str = "nothing else runs on a simulated machine";

/// The findings of a run.
#[derive(Debug)]
pub struct Found {
    /// From the start of the run until all vCPUs had started.
    pub started: Known<Duration>,
    /// CPU time of the process from the start of the run to the opening of the window.
    pub cpu_before: Known<Duration>,
    /// CPU time of the process inside the window.
    pub cpu_time: Duration,
    /// How many times the length asked for the window took: more than once where too few sections were done in it.
    pub windows: u32,
    /// How long the run's threads, one per pCPU, were ready and had no pCPU because others used it, whole run.
    pub run_delay: Known<RunDelay>,
    /// Cache events that the host's PMU counted in the guest, inside the window, by name.
    pub pmu: Known<CacheEvents>,
    /// How much of a recorded schedule was repeated, if one was to be.
    pub schedule: Option<Repeated>,
    /// The profile of the vCPUs' time, if that was asked for.
    pub profile: Option<Profile>,
    /// The trace of events, if that was asked for.
    pub trace: Option<Trace>,
    /// How each guest ended, in order.
    pub guests: Vec<Ended>,
}

/// How a guest of a run ended.
#[derive(Debug)]
pub struct Ended {
    /// Its name.
    pub name: String,
    /// Its outcome; a failure of one guest leaves the others' outcomes.
    pub result: Result<AnyOutcome, RunError>,
    /// Which vCPU is at fault, when it failed by itself.
    pub explanation: Option<Explanation>,
    /// Text that it wrote to its console.
    pub console: String,
}

/// The outcome of a guest, by the system that it booted.
#[derive(Debug)]
pub enum AnyOutcome {
    /// Outcome of our own guest.
    Ours(Box<Outcome>),
    /// Outcome of a Linux kernel.
    Linux(Box<LinuxOutcome>),
}

impl Ended {
    /// The outcome of our own guest.
    ///
    /// # Errors
    /// Its failure.
    ///
    /// # Panics
    /// If it booted Linux.
    pub fn outcome(self) -> Result<Outcome, RunError> {
        match self.result? {
            AnyOutcome::Ours(outcome) => Ok(*outcome),
            AnyOutcome::Linux(_) => panic!("guest `{}` booted Linux", self.name),
        }
    }
}

impl Found {
    /// Outcomes of our own guests that came to their end, in order.
    pub fn outcomes(&self) -> impl Iterator<Item = &Outcome> {
        self.guests.iter().filter_map(|guest| match &guest.result {
            Ok(AnyOutcome::Ours(outcome)) => Some(&**outcome),
            Ok(AnyOutcome::Linux(_)) | Err(_) => None,
        })
    }

    /// The first guest that failed.
    #[must_use]
    pub fn failed(&self) -> Option<&Ended> {
        self.guests.iter().find(|guest| guest.result.is_err())
    }

    /// The run, if all its guests came to their end.
    ///
    /// # Errors
    /// The first failure of a guest, which is named where there are several.
    pub fn all(mut self) -> Result<Self, RunError> {
        let Some(index) = self.guests.iter().position(|guest| guest.result.is_err()) else { return Ok(self) };
        let several = self.guests.len() > 1;
        let Ended { name, result, .. } = self.guests.swap_remove(index);
        result.map(|_| self).map_err(|error| match several {
            true => RunError::Guest { name, source: Box::new(error) },
            false => error,
        })
    }

    /// The outcome of the first guest, which is our own, if all came to their end.
    ///
    /// # Errors
    /// As [`Self::all`].
    ///
    /// # Panics
    /// If it booted Linux.
    pub fn outcome(self) -> Result<Outcome, RunError> {
        self.all()?.guests.swap_remove(0).outcome()
    }
}
