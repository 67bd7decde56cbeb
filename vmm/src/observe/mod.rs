//! Instruments that a run may have besides its outcome: a profile and a trace, with each thread's notes for them;
//! and a live view while the run goes.

pub(crate) mod instruments;
pub(crate) mod live;
pub(crate) mod notes;
pub(crate) mod profile;
pub(crate) mod ticks_histogram;
pub(crate) mod trace;
pub(crate) mod whereabouts;
