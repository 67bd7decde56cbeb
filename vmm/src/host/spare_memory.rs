//! Memory of the host that is to be had, and the limits on it.

use std::path::Path;

use rustix::process::{Resource, getrlimit};

use crate::host::cgroup::{self, Version};

/// Memory that can be had, in bytes: what the kernel estimates without swapping, or less where a control group or the address space
/// has a limit.
pub(crate) fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let of_host = kib.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)?;
    let of_groups = left_in_groups(Path::new("/")).unwrap_or(u64::MAX);
    Some(of_host.min(of_groups).min(left_in_addresses().unwrap_or(u64::MAX)))
}

/// Least of what the limits of this process's control groups leave; `None` where none has one. `root` is `/` except in tests.
fn left_in_groups(root: &Path) -> Option<u64> {
    let (version, groups) = cgroup::groups(root, "memory").ok()?;
    let [limit, used] = match version {
        Version::One => ["memory.limit_in_bytes", "memory.usage_in_bytes"],
        Version::Two => ["memory.max", "memory.current"],
    };
    let left = |group: &Path| {
        let number = |name| std::fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
        // "max" is no number, and version 1 has a very large one.
        let limit = number(limit).filter(|limit| *limit < 1 << 60)?;
        Some(limit.saturating_sub(number(used)?).saturating_add(reclaimable(group)))
    };
    groups.iter().filter_map(|group| left(group)).min()
}

/// Bytes of addresses that this process may still map; `None` where there is no limit.
fn left_in_addresses() -> Option<u64> {
    let limit = getrlimit(Resource::As).current?;
    let pages = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = pages.split(' ').next()?.parse().ok()?;
    Some(limit.saturating_sub(pages * rustix::param::page_size() as u64))
}

/// Bytes that the kernel takes back from a group that needs memory: those of files.
fn reclaimable(group: &Path) -> u64 {
    let text = std::fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let of_files = text.lines().filter_map(|line| {
        let (name, bytes) = line.split_once(' ')?;
        ["active_file", "inactive_file"].contains(&name).then(|| bytes.parse::<u64>().ok())?
    });
    of_files.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::cgroup::tests::Tree;

    #[test]
    fn the_tightest_control_group_limits_what_guests_get() {
        const TWO: &str = "1 1 0:1 / /cg rw - cgroup2 cgroup2 rw";
        const ONE: &str = "1 1 0:1 / /cg/hugetlb,memory rw - cgroup cgroup rw,hugetlb,memory";
        for (mounts, groups, left) in [
            (TWO, "0::/a/b\n", Some(270)),
            (ONE, "1:memory,hugetlb:/c\n0::/a\n", Some(0)),
            (ONE, "1:memory,hugetlb:/\n", None),
            (TWO, "1:cpu:/c\n0::/elsewhere\n", None),
        ] {
            let tree = Tree::new(mounts, groups);
            tree.put("cg/a/memory.max", "1000\n");
            tree.put("cg/a/memory.current", "800\n");
            tree.put("cg/a/memory.stat", "anon 5\ninactive_file 50\nactive_file 20\n");
            tree.put("cg/a/b/memory.max", "max\n");
            tree.put("cg/a/b/memory.current", "700\n");
            tree.put("cg/hugetlb,memory/c/memory.limit_in_bytes", "90\n");
            tree.put("cg/hugetlb,memory/c/memory.usage_in_bytes", "100\n");
            tree.put("cg/hugetlb,memory/memory.limit_in_bytes", "9223372036854771712\n");
            tree.put("cg/hugetlb,memory/memory.usage_in_bytes", "100\n");
            assert_eq!(left_in_groups(&tree.0), left, "{groups}");
        }
    }
}
