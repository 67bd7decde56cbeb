//! What is executed on arbitrary bytes between an outcome and its record on disk.

pub(crate) mod outcome;
pub(crate) mod record;

use std::sync::LazyLock;
use std::time::SystemTime;

use haltkick_vmm::{Known, Outcome, RunConfig};

use super::origin::Origin;
use super::synthetic::{found, outcome_of};
use crate::host::identity::Host;
use crate::record::Record;

/// A host of which all is known: what is not known, it is asked for each record why.
static ORIGIN: LazyLock<Origin> = LazyLock::new(|| {
    let some = |text: &str| Some(text.to_owned());
    let host = Host {
        host_id: some("0123456789ab"),
        kernel: some("6.1"),
        cpu_model: some("a CPU"),
        kvm_module: some("kvm_intel"),
        nested: Some(false),
        haltkick_version: "0.1.0".into(),
    };
    Origin::new(SystemTime::UNIX_EPOCH, host, Err("nobody looks".into()))
});

/// What the guest was asked for.
fn config() -> RunConfig {
    RunConfig { vcpus: 3, cpus: vec![0, 1], ..RunConfig::default() }
}

/// The outcome of a run that went as it should.
fn good() -> Outcome {
    outcome_of(&config(), 1e6, 1 << 20)
}

/// The record of an outcome.
fn record_of(outcome: &Outcome, lock_free: Known<f64>) -> Record {
    let found = found(&config(), vec![outcome.clone()]);
    Record::new(&config(), outcome, &found, ORIGIN.context(None, lock_free))
}
