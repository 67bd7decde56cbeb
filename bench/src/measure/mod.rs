//! Running cells: from a configuration to its record, and from a plan to all of them.

pub(crate) mod ahead;
pub(crate) mod calibrate;
mod costs;
pub(crate) mod engine;
mod fill;
pub(crate) mod judge;
pub(crate) mod linux;
pub(crate) mod origin;
pub(crate) mod progress;
pub(crate) mod rule;
pub(crate) mod session;
#[cfg(test)]
pub(crate) mod synthetic;
mod times;
