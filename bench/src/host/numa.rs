//! NUMA of this host, as far as it spoils measurements.

use super::probe::{self, Answer};

/// How to switch off the kernel's balancing of memory among nodes.
pub(crate) const STOP_BALANCING: &str = "sudo sysctl kernel.numa_balancing=0";

/// Whether the kernel moves memory among nodes by itself: on a host with one node it has nothing to move.
pub(crate) fn is_balanced() -> Answer<bool> {
    let mode = probe::text("/proc/sys/kernel/numa_balancing")?;
    Ok(mode != "0" && haltkick_vmm::nodes_with_memory().len() > 1)
}
