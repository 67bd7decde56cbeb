//! Host facilities that the VMM uses: clocks, signals, pinning, memory maps, counters of events, and the probe of the kernel's
//! scheduler. It knows nothing of guests.

pub(crate) mod affinity;
pub(crate) mod allocator;
pub(crate) mod branch;
pub(crate) mod cgroup;
pub(crate) mod clock;
#[cfg(test)]
pub(crate) mod counted;
pub(crate) mod crew;
pub(crate) mod error;
pub mod input;
pub(crate) mod known;
pub(crate) mod locks;
pub(crate) mod mapping;
pub(crate) mod nearest;
pub(crate) mod nodes;
pub(crate) mod panics;
pub(crate) mod pmu;
pub(crate) mod random;
pub(crate) mod residence;
pub(crate) mod sandbox;
pub(crate) mod signal;
pub(crate) mod span;
pub(crate) mod spare_memory;
#[cfg_attr(not(feature = "bpf"), path = "switch_probe/absent.rs")]
pub(crate) mod switch_probe;
pub(crate) mod switches;
pub(crate) mod text;
pub(crate) mod time;
