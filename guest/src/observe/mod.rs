//! Reports of a vCPU about itself while it runs: counts and times.

pub(crate) mod activity;
pub(crate) mod events;
pub(crate) mod times;
pub(crate) mod trace;
