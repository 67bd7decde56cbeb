//! A run: what it is to do, whether that can be, what is watched while it lasts, and what it comes to.

pub(crate) mod asked;
pub(crate) mod boot_values;
mod chances;
pub(crate) mod check;
pub(crate) mod collect;
pub(crate) mod folding;
pub(crate) mod found;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzed;
mod limits;
pub(crate) mod linux_outcome;
pub(crate) mod live_view;
pub(crate) mod memory;
mod needs;
pub(crate) mod observed;
pub(crate) mod outcome;
pub(crate) mod supervise;
