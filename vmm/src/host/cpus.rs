//! CPUs and NUMA nodes of this host: on which of them a thread runs, and memory of this process is.
//!
//! Pinning is verified: an affinity call that silently does something else would spoil every figure.
#![expect(unsafe_code, reason = "mbind has no safe wrapper")]

use std::io;
use std::path::Path;
use std::ptr::NonNull;

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
pub(crate) fn check_pinned(cpus: &[u32]) -> Result<(), String> {
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

const CPUS: &str = "/sys/devices/system/cpu";
const NODES: &str = "/sys/devices/system/node";
/// Nodes that have room in the mask that the kernel is given.
const MOST_NODES: usize = 1024;

/// Node of a CPU of this host; 0 where the kernel has no nodes.
#[must_use]
pub fn node_of_cpu(cpu: u32) -> u32 {
    let entries =
        std::fs::read_dir(Path::new(CPUS).join(format!("cpu{cpu}"))).into_iter().flatten().flatten();
    let mut names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.find_map(|name| name.strip_prefix("node")?.parse().ok()).unwrap_or(0)
}

/// Nodes of this host that have memory, ascending; 0 alone where the kernel has no nodes.
#[must_use]
pub fn nodes_with_memory() -> Vec<u32> {
    let text = std::fs::read_to_string(Path::new(NODES).join("has_memory"));
    text.ok().and_then(|text| numbers(text.trim())).filter(|nodes| !nodes.is_empty()).unwrap_or(vec![0])
}

/// The numbers of a list such as `0,2-3`.
fn numbers(list: &str) -> Option<Vec<u32>> {
    let mut all = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        all.extend(first.parse::<u32>().ok()?..=last.parse().ok()?);
    }
    Some(all)
}

/// Says to the kernel on which `nodes` the pages of `bytes` from `start` on are to be, which are whole pages of a mapping and are touched
/// from now on: by one of its policies (MPOL_BIND, MPOL_PREFERRED for the first of the nodes, MPOL_INTERLEAVE).
pub(crate) fn place_memory(
    start: NonNull<u8>,
    bytes: usize,
    policy: libc::c_int,
    nodes: &[u32],
) -> io::Result<()> {
    const WORD: usize = u64::BITS as usize;
    let mut mask = [0_u64; MOST_NODES / WORD];
    for &node in nodes {
        let word = mask.get_mut(node as usize / WORD).ok_or(io::ErrorKind::InvalidInput)?;
        *word |= 1 << (node as usize % WORD);
    }
    // SAFETY: changes no contents; the kernel checks the addresses, and reads as much of the mask as there is. It takes the length
    // for one more than there are bits.
    let result = unsafe {
        libc::syscall(libc::SYS_mbind, start.as_ptr(), bytes, policy, mask.as_ptr(), MOST_NODES + 1, 0)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_nodes_are_read() {
        assert_eq!(numbers("0"), Some(vec![0]));
        assert_eq!(numbers("0,2-4"), Some(vec![0, 2, 3, 4]));
        assert_eq!(numbers(""), None);
    }
}
