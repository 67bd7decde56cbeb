//! The rows of `haltkick reproduce`: what was published, and which of our figures is compared with it.
//!
//! To add a figure, add a [`Row`] to its study's file. Its experiment must be built in
//! ([`crate::experiment::BUILT_IN`]), its comparison one of that file's `[[compare]]`, and its setting must pick exactly one
//! point of that file's `[grid]`: a test holds every row to that. The page is where the difference is explained at length.
//! Nothing else is needed: `just reproduce` runs each experiment that a row names, once.

mod fault;
mod grant;
mod osq;
mod qspinlock;
mod simulated;
mod unfair;

use super::row::Row;
use crate::cli::ReproducedOn;

/// All rows of this host, or of simulated machines, in the order of the table.
pub(super) fn rows(on: ReproducedOn) -> impl Iterator<Item = &'static Row> {
    let rows = match on {
        ReproducedOn::Kvm => vec![qspinlock::ROWS, fault::ROWS, grant::ROWS, osq::ROWS, unfair::ROWS],
        ReproducedOn::Sim => vec![simulated::ROWS],
    };
    rows.into_iter().flatten()
}
