//! A run: what it is to do, whether that can be, what is watched while it lasts, and what it comes to.

pub(crate) mod asked;
pub(crate) mod check;
pub(crate) mod collect;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzed;
pub(crate) mod outcome;
pub(crate) mod supervise;
