//! Running cells: from a configuration to its record, and from a plan to all of them.

pub(crate) mod progress;
pub(crate) mod run;
pub(crate) mod session;
#[cfg(test)]
pub(crate) mod synthetic;
