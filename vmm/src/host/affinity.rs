//! Pinning, verified: an affinity call that silently does something else would spoil every figure.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::host::error::RunError;

/// Pins the calling thread to `cpus` and reads the mask back.
pub(crate) fn pin_to(cpus: &[u32]) -> Result<(), RunError> {
    pin_to_set(&set_of(cpus))
        .map_err(|error| RunError::HostLacks(format!("cannot pin a thread to CPUs {cpus:?}: {error}")))
}

/// The kernel's form of a list.
pub(crate) fn set_of(cpus: &[u32]) -> CpuSet {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        set.set(cpu as usize);
    }
    set
}

/// As [`pin_to`], in nothing but system calls: for a process between fork and exec.
pub(crate) fn pin_to_set(wanted: &CpuSet) -> io::Result<()> {
    sched_setaffinity(None, wanted)?;
    // EXDEV, without words that would have to be allocated: the kernel chose another set (cpuset?).
    if sched_getaffinity(None)? == *wanted { Ok(()) } else { Err(rustix::io::Errno::XDEV.into()) }
}

/// Keeps the calling thread, which may run on `allowed`, off `cpus`, on which it would disturb other threads. Whether it could: it
/// may have no others.
#[must_use]
pub fn keep_off(allowed: &[u32], cpus: &[u32]) -> bool {
    let others: Vec<u32> = allowed.iter().copied().filter(|cpu| !cpus.contains(cpu)).collect();
    !others.is_empty() && pin_to(&others).is_ok()
}

/// Whether the calling thread, once pinned to `cpus`, still is; if not, what it may use by now.
pub(crate) fn check(cpus: &[u32]) -> Result<(), String> {
    let now =
        sched_getaffinity(None).map_err(|error| format!("the affinity mask cannot be read: {error}"))?;
    if now == set_of(cpus) {
        return Ok(());
    }
    Err(format!("a thread that was pinned to CPUs {cpus:?} was moved to {:?}", members(&now)))
}

fn members(set: &CpuSet) -> Vec<u32> {
    (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).map(|cpu| cpu as u32).collect()
}

/// The host CPUs that this process may use, in ascending order.
#[must_use]
pub fn allowed_cpus() -> Vec<u32> {
    sched_getaffinity(None).map(|set| members(&set)).unwrap_or_default()
}
