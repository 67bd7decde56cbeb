//! Running cells: from a configuration to its record, and from a plan to all of them.

pub(crate) mod ahead;
pub(crate) mod calibrate;
pub(crate) mod console;
pub(crate) mod engine;
pub(crate) mod fill;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzed;
pub(crate) mod judge;
pub(crate) mod linux;
pub(crate) mod progress;
pub(crate) mod session;
#[cfg(any(test, fuzzing))]
#[cfg_attr(fuzzing, expect(dead_code, reason = "only its outcomes are wanted there"))]
pub(crate) mod synthetic;
