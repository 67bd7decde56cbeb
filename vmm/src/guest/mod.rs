//! The VMM's side of the contract with our own guest: where its memory lies, and what each vCPU says there that it does.

pub(crate) mod activity;
#[cfg(test)]
mod bounds;
pub(crate) mod memory;
pub(crate) mod placement;
pub(crate) mod reports;
pub(crate) mod tsc;
