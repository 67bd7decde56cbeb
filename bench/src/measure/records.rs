//! The records of a run: one of each guest that came to its end, with what speaks against it.

use haltkick_vmm::{Found, Known, OurGuest, Outcome, Run};

use super::judge::judge;
use super::origin::Origin;
use crate::record::Record;
use crate::record::place::Place;

/// The record of a guest that came to this `outcome`. `lock_free` holds the throughput of each guest of the run without a lock.
pub(crate) fn record(
    asked: OurGuest<'_>,
    outcome: &Outcome,
    found: &Found,
    origin: &Origin,
    place: Option<Place>,
    lock_free: &Known<Vec<f64>>,
) -> Record {
    let lock_free = lock_free.as_ref().map(|each| each[asked.index]).map_err(Clone::clone);
    let mut record = Record::new(asked, outcome, found, origin.context(place, lock_free));
    judge(&mut record, asked, outcome, found, origin.tick_resolution());
    record
}

/// The records of our own guests of a run, all of which came to their end.
pub(crate) fn records(
    run: &Run,
    found: &Found,
    origin: &Origin,
    place: Option<&Place>,
    lock_free: &Known<Vec<f64>>,
) -> Vec<Record> {
    let records = run.ours().zip(found.outcomes()).map(|(asked, outcome)| {
        let beside = |place: &Place| place.beside(&asked.guest.name);
        let place = place.map(|place| if asked.index == 0 { place.clone() } else { beside(place) });
        record(asked, outcome, found, origin, place, lock_free)
    });
    records.collect()
}
