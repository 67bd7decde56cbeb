//! Memory of this process as the kernel backs it: how much is there, in pages of which size, on which nodes.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::host::known::Known;

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
    /// How the memory at these addresses is backed at the moment.
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

/// Bytes in memory, and those of them in huge pages, of mappings that begin among `addresses`.
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
