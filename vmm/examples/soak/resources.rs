//! Resources of a process, and how much it may gain of each.

use std::fs;

/// Something of which a process must not gain.
struct Resource {
    name: &'static str,
    now: fn() -> u64,
    /// How much more is no leak: pages of stacks and of an allocator come and go with the size of guests.
    slack: u64,
}

const RESOURCES: [Resource; 4] = [
    Resource { name: "KiB of memory", now: memory_kib, slack: 24 << 10 },
    Resource { name: "descriptors", now: || entries("/proc/self/fd"), slack: 0 },
    // The kernel wakes who joins a thread a moment before the thread is gone.
    Resource { name: "threads", now: || entries("/proc/self/task"), slack: 2 },
    // Arenas of the allocator.
    Resource { name: "mappings", now: mappings, slack: 64 },
];

/// Runs after which a process has all the memory and descriptors that it keeps.
const WARM: usize = 10;

/// Memory, threads and files that this process gains from run to run.
#[derive(Default)]
pub(crate) struct Gains {
    runs: usize,
    /// Most of each resource that it held in its first runs.
    warm: [u64; RESOURCES.len()],
}

impl Gains {
    /// Resources of which the process holds too much more after another run than when it was warm, in words; empty: none.
    pub(crate) fn too_much(&mut self) -> String {
        self.runs += 1;
        let mut words = String::new();
        for (resource, warm) in RESOURCES.iter().zip(&mut self.warm) {
            let held = (resource.now)();
            let gained = held.saturating_sub(*warm);
            if self.runs <= WARM {
                *warm = held.max(*warm);
            } else if gained > resource.slack {
                // Told once, not of every run that comes.
                *warm = held;
                words += &format!(" {gained} {} more than when it was warm", resource.name);
            }
        }
        words
    }
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
