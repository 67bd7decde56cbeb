//! The machine under the experiment: what it is, which CPUs may be used, what else runs on them.

pub(crate) mod cpu_choice;
pub(crate) mod cpulist;
pub(crate) mod facts;
pub(crate) mod identity;
pub(crate) mod neighbours;
pub(crate) mod noise;
pub(crate) mod probe;
pub(crate) mod topology;
