//! From the first instruction to the workload: entered by our VMM, or bare.

mod bare;
pub(crate) mod entry;
