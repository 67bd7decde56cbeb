//! Fuzz targets of the code that is executed on arbitrary bytes between an outcome and its record on disk.

pub(crate) mod outcome;
pub(crate) mod record;

use std::sync::LazyLock;
use std::time::SystemTime;

use haltkick_vmm::{AnyOutcome, Guest, Known, Outcome, Run};

use super::fill::{Origin, record as recorded};
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

/// The run that was asked for.
fn asked() -> Run {
    let guests = vec![Guest { vcpus: 3, ..Guest::default() }];
    Run { cpus: vec![0, 1], guests, ..Run::default() }
}

/// The outcome of a run that went as it should.
pub(crate) fn good() -> Outcome {
    outcome_of(asked().our(0), 1e6, 1 << 20)
}

/// The record of an outcome.
pub(crate) fn record_of(outcome: &Outcome, lock_free: Known<f64>) -> Record {
    let run = asked();
    let outcomes = vec![AnyOutcome::Ours(Box::new(outcome.clone()))];
    let found = found(&run, outcome.window, outcomes);
    recorded(run.our(0), outcome, &found, &ORIGIN, None, &lock_free.map(|per_second| vec![per_second]))
}
