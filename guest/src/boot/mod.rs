//! From the first instruction to the workload: entered by our VMM, or bare.

mod bare;
mod entry;
