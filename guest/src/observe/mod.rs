//! What a vCPU tells of itself while it runs, and how it counts and times what it does.

pub(crate) mod activity;
pub(crate) mod events;
pub(crate) mod grace;
pub(crate) mod histogram;
pub(crate) mod stamp;
pub(crate) mod trace;
