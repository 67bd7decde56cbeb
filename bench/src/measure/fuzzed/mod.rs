//! What is executed on arbitrary bytes between an outcome and its record on disk.

pub(crate) mod outcome;
pub(crate) mod record;

use std::time::SystemTime;

use haltkick_vmm::{Outcome, RunConfig};

use super::origin::Origin;
use super::synthetic::outcome_of;
use crate::host::identity::Host;
use crate::record::Record;

/// What the guest was asked for.
fn config() -> RunConfig {
    RunConfig { vcpus: 3, cpus: vec![0, 1], ..RunConfig::default() }
}

/// The outcome of a run that went as it should.
fn good() -> Outcome {
    outcome_of(&config(), 1e6, 1 << 20)
}

/// The record of an outcome.
fn record_of(outcome: &Outcome, lock_free: Result<f64, String>) -> Record {
    let origin = Origin::new(SystemTime::UNIX_EPOCH, Host::default(), Err("nobody looks".into()));
    Record::new(&config(), outcome, origin.context(None, lock_free))
}
