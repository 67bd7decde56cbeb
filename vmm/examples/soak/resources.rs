//! Resources of a process, and how much it may gain of each.

use std::fs;

/// Something of which a process must not gain.
pub(crate) struct Resource {
    pub(crate) name: &'static str,
    now: fn() -> u64,
    /// How much more is no leak: pages of stacks and of an allocator come and go with the size of guests.
    pub(crate) slack: u64,
}

pub(crate) const RESOURCES: [Resource; 4] = [
    Resource { name: "KiB of memory", now: memory_kib, slack: 24 << 10 },
    Resource { name: "descriptors", now: || entries("/proc/self/fd"), slack: 0 },
    // The kernel wakes who joins a thread a moment before the thread is gone.
    Resource { name: "threads", now: || entries("/proc/self/task"), slack: 2 },
    // Arenas of the allocator.
    Resource { name: "mappings", now: mappings, slack: 64 },
];

/// Amount of each resource that this process holds now.
pub(crate) fn held() -> [u64; RESOURCES.len()] {
    RESOURCES.map(|resource| (resource.now)())
}

fn memory_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

fn entries(directory: &str) -> u64 {
    fs::read_dir(directory).map_or(0, |entries| entries.count() as u64)
}

fn mappings() -> u64 {
    fs::read_to_string("/proc/self/maps").map_or(0, |maps| maps.lines().count() as u64)
}
