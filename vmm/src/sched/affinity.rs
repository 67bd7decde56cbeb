//! Pinning, verified: an affinity call that silently does something else would spoil every figure.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::error::RunError;

/// Pins the calling thread to `cpus` and reads the mask back.
pub(crate) fn pin_to(cpus: &[u32]) -> Result<(), RunError> {
    let mut wanted = CpuSet::new();
    for &cpu in cpus {
        wanted.set(cpu as usize);
    }
    let failed =
        |reason: String| RunError::HostLacks(format!("cannot pin a thread to CPUs {cpus:?}: {reason}"));
    sched_setaffinity(None, &wanted).map_err(|error| failed(error.to_string()))?;
    let got = sched_getaffinity(None).map_err(|error| failed(error.to_string()))?;
    if got == wanted { Ok(()) } else { Err(failed("the kernel chose another set (cpuset?)".into())) }
}

/// The host CPUs that this process may use, in ascending order.
#[must_use]
pub fn allowed_cpus() -> Vec<u32> {
    sched_getaffinity(None)
        .map(|set| (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).map(|cpu| cpu as u32).collect())
        .unwrap_or_default()
}
