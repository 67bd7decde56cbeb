//! Memory of this process: its mappings, each of which ends when it is dropped; how the kernel backs them, in pages of which size, on
//! which nodes; and how much more is to be had within the limits on it.
#![expect(unsafe_code, reason = "maps memory, and makes some of it executable")]

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};
use rustix::process::{Resource, getrlimit};

use crate::host::cgroup::{self, Version};
use crate::host::error::Known;

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// Memory that is mapped for as long as this lives.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory belongs to no thread in particular; code that uses its addresses is responsible for how.
unsafe impl Send for Mapping {}
// SAFETY: as above: it gives nothing but addresses.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `bytes` of `file` from `offset` on, shared with all who map it, to be read, and to be written if `writes`.
    pub(crate) fn shared(
        file: BorrowedFd<'_>,
        offset: usize,
        bytes: usize,
        writes: bool,
    ) -> io::Result<Self> {
        let access = if writes { READ_WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let start =
            unsafe { mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, file, offset as u64) };
        Ok(Self { start: NonNull::new(start?.cast()).expect("mappings do not begin at 0"), bytes })
    }

    /// Zeroed memory at exactly `range`, where nothing may be yet.
    pub(crate) fn at(range: &Range<u64>) -> io::Result<Self> {
        let bytes = (range.end - range.start) as usize;
        let wanted = range.start as *mut std::ffi::c_void;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
        // SAFETY: a new mapping that replaces none.
        let got = unsafe { mmap_anonymous(wanted, bytes, READ_WRITE, flags) }?;
        let mapping = Self { start: NonNull::new(got.cast()).expect("mappings do not begin at 0"), bytes };
        // A kernel before 4.17 takes the address for a wish.
        if got == wanted { Ok(mapping) } else { Err(io::Error::from_raw_os_error(libc::EEXIST)) }
    }

    /// Zeroed memory of this process alone, whose address is a multiple of `alignment`, which is one of pages.
    pub(crate) fn aligned(bytes: usize, alignment: usize) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let got = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes + alignment, READ_WRITE, flags) }?;
        let before = (got as usize).next_multiple_of(alignment) - got as usize;
        let start = got.wrapping_byte_add(before);
        // SAFETY: the two ends of the new mapping, without what is kept between them.
        unsafe {
            if before > 0 {
                munmap(got, before)?;
            }
            munmap(start.wrapping_byte_add(bytes), alignment - before)?;
        }
        Ok(Self { start: NonNull::new(start.cast()).expect("mappings do not begin at 0"), bytes })
    }

    pub(crate) fn start<T>(&self) -> NonNull<T> {
        self.start.cast()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Makes the pages of `range`, whose first address begins one, executable instead of writable. The caller no longer
    /// writes there.
    pub(crate) fn make_executable(&self, range: &Range<u64>) -> io::Result<()> {
        const PAGE: u64 = 4096;
        let (start, end) = (self.start.as_ptr() as u64, self.start.as_ptr() as u64 + self.bytes as u64);
        assert!(range.start.is_multiple_of(PAGE) && start <= range.start && range.end <= end);
        let bytes = (range.end - range.start).next_multiple_of(PAGE) as usize;
        let access = MprotectFlags::READ | MprotectFlags::EXEC;
        // SAFETY: within the mapping, as just checked.
        unsafe { mprotect(range.start as *mut std::ffi::c_void, bytes, access) }.map_err(io::Error::from)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: a mapping that was made here, of that length; any use of its addresses was within its life.
        _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Files of the code that is mapped into this process: the program and its shared libraries.
pub(crate) fn mapped_code() -> io::Result<BTreeSet<PathBuf>> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let code = maps.lines().filter(|line| line.contains(" r-xp "));
    Ok(code.filter_map(mapped_file).map(PathBuf::from).collect())
}

fn mapped_file(line: &str) -> Option<&str> {
    let path = &line[line.find('/')?..];
    (!path.ends_with(" (deleted)")).then_some(path)
}

const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// How a part of this process's memory is backed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Residence {
    /// Bytes that are in memory: those that something has touched.
    pub resident_bytes: u64,
    /// The part of them in huge pages, or why there is none.
    pub huge_bytes: Known<u64>,
    /// The bytes on each NUMA node; or why that is unknown.
    pub node_bytes: Known<BTreeMap<u32, u64>>,
}

impl Residence {
    pub(crate) fn of(addresses: &Range<u64>) -> Known<Self> {
        let read = |path: &str| {
            std::fs::read_to_string(path).map_err(|error| format!("{path} cannot be read: {error}").into())
        };
        let [resident_bytes, huge_bytes] = in_smaps(&read("/proc/self/smaps")?, addresses);
        let is_never = std::fs::read_to_string(HUGE_PAGES).map_or(true, |text| text.contains("[never]"));
        let off = || Err(format!("this kernel gives no huge pages by itself ({HUGE_PAGES})").into());
        Ok(Self {
            resident_bytes,
            huge_bytes: if is_never && huge_bytes == 0 { off() } else { Ok(huge_bytes) },
            node_bytes: read("/proc/self/numa_maps").map(|text| in_numa_maps(&text, addresses)),
        })
    }
}

fn in_smaps(text: &str, addresses: &Range<u64>) -> [u64; 2] {
    let (mut sums, mut is_in) = ([0; 2], false);
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(first), second) = (words.next(), words.next()) else { continue };
        if let Some(start) = first.split_once('-').and_then(|(start, _)| u64::from_str_radix(start, 16).ok())
        {
            is_in = addresses.contains(&start);
            continue;
        }
        let sum = match first {
            "Rss:" => &mut sums[0],
            "AnonHugePages:" => &mut sums[1],
            _ => continue,
        };
        let kib = second.filter(|_| is_in).and_then(|kib| kib.parse::<u64>().ok());
        *sum += kib.unwrap_or(0) << 10;
    }
    sums
}

/// Bytes on each node, of mappings that begin among `addresses`.
fn in_numa_maps(text: &str, addresses: &Range<u64>) -> BTreeMap<u32, u64> {
    let mut nodes = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let start = words.next().and_then(|start| u64::from_str_radix(start, 16).ok());
        if !start.is_some_and(|start| addresses.contains(&start)) {
            continue;
        }
        let page_kib = line.split_once("kernelpagesize_kB=").map_or(4, |(_, kib)| {
            kib.split_ascii_whitespace().next().and_then(|kib| kib.parse().ok()).unwrap_or(4)
        });
        for word in words {
            let of_node = word.strip_prefix('N').and_then(|word| word.split_once('='));
            let Some((Ok(node), Ok(pages))) =
                of_node.map(|(node, pages)| (node.parse::<u32>(), pages.parse::<u64>()))
            else {
                continue;
            };
            *nodes.entry(node).or_insert(0) += (pages * page_kib) << 10;
        }
    }
    nodes
}

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
    fn aligned_memory_begins_where_it_is_to_and_is_whole() {
        const ALIGNMENT: usize = 256 << 20;
        for bytes in [4096, 3 << 20] {
            let mapping = Mapping::aligned(bytes, ALIGNMENT).unwrap();
            assert!((mapping.start::<u8>().as_ptr() as usize).is_multiple_of(ALIGNMENT));
            // SAFETY: the last byte of a mapping that is this test's.
            unsafe { mapping.start::<u8>().add(bytes - 1).write(1) };
        }
    }

    #[test]
    fn a_mapping_without_a_file_of_its_own_is_no_library() {
        let line = |path: &str| format!("7f00-7f01 r-xp 00000000 fe:01 12                         {path}");
        assert_eq!(mapped_file(&line("/lib/with space.so")), Some("/lib/with space.so"));
        assert_eq!(mapped_file(&line("/lib/old.so (deleted)")), None);
        assert_eq!(mapped_file(&line("[vdso]")), None);
    }

    #[test]
    fn only_what_begins_in_a_range_is_summed_up() {
        let smaps = "1000-2000 rw-p 0 00:00 0 \nRss:   4 kB\nAnonHugePages:  0 kB\n\
                     200000-600000 rw-p 0 00:00 0\nSize: 4096 kB\nRss: 2052 kB\nAnonHugePages: 2048 kB\nVmFlags: rd wr\n\
                     600000-800000 rw-s 0 00:00 0 /dev/zero\nRss: 8 kB\nAnonHugePages: 0 kB\n";
        assert_eq!(in_smaps(smaps, &(0x20_0000..0x80_0000)), [2060 << 10, 2048 << 10]);
        assert_eq!(in_smaps(smaps, &(0x1000..0x2000)), [4096, 0]);
        let numa = "00001000 default anon=1 dirty=1 N0=1 kernelpagesize_kB=4\n\
                    00200000 bind:1 anon=513 dirty=513 N0=1 N1=512 kernelpagesize_kB=4\n";
        assert_eq!(in_numa_maps(numa, &(0x20_0000..0x80_0000)), BTreeMap::from([(0, 4096), (1, 2 << 20)]));
    }

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
            assert_eq!(left_in_groups(tree.root()), left, "{groups}");
        }
    }
}
