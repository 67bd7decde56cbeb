//! What a run may be asked to show besides its outcome: a profile and a trace, and what each thread notes for them;
//! and while it goes a live view.

pub(crate) mod instruments;
pub(crate) mod live;
pub(crate) mod notes;
pub(crate) mod observer;
pub(crate) mod profile;
pub(crate) mod trace;
pub(crate) mod whereabouts;
