//! Host facilities that the VMM uses: clocks, signals, pinning, memory maps, counters of events, and the probe of the kernel's
//! scheduler. It knows nothing of guests.

pub(crate) mod allocator;
pub(crate) mod branch;
pub(crate) mod cgroup;
pub(crate) mod clock;
pub(crate) mod cpus;
pub(crate) mod error;
pub mod input;
pub(crate) mod memory;
pub(crate) mod pmu;
pub(crate) mod random;
pub(crate) mod sandbox;
pub(crate) mod signal;
pub(crate) mod switch_probe;
pub(crate) mod text;
pub(crate) mod threads;
