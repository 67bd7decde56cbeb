//! The records of a run: one of each guest that came to its end, with what speaks against it.

use haltkick_vmm::{Found, Known, Outcome, RunConfig};

use super::judge::judge;
use super::origin::Origin;
use crate::experiment::place::Place;
use crate::record::Record;

/// The guests of a run.
pub(crate) fn guests(config: &RunConfig) -> impl Iterator<Item = &RunConfig> {
    std::iter::once(config).chain(&config.beside)
}

/// The record of the guest of `config`, which is number `index` of a run and came to this `outcome`. `lock_free` holds the
/// throughput of each guest without a lock.
pub(crate) fn record(
    (config, index): (&RunConfig, usize),
    outcome: &Outcome,
    found: &Found,
    origin: &Origin,
    place: Option<Place>,
    lock_free: &Known<Vec<f64>>,
) -> Record {
    let lock_free = lock_free.as_ref().map(|each| each[index]).map_err(Clone::clone);
    let mut record = Record::new(config, outcome, found, origin.context(place, lock_free));
    judge(&mut record, config, outcome, found, origin.tick_resolution());
    record
}
