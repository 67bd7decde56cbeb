//! The VMM's side of the contract with our own guest: where its memory lies, and what each vCPU says there that it does.

pub(crate) mod activity;
pub(crate) mod memory;
pub(crate) mod tsc;
