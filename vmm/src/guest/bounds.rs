//! The accessors of guest memory against 128-bit arithmetic, at each edge that a wrong comparison could miss.
//!
//! Address and length are compared with each other's sum and with sizes only, so values next to the edges stand for all others.

use haltkick_hypercalls::VcpuArea;
use haltkick_sim::board::Memory as _;

use super::memory::{Memory, Ram};

const IMAGE_END: u64 = 5 << 20;

fn small() -> Memory {
    Memory::new(IMAGE_END, 1, 0, 0).expect("a small guest's memory")
}

/// Numbers within two of each edge, and of the edges of all numbers.
fn near(edges: &[u64]) -> Vec<u64> {
    let mut numbers: Vec<u64> = edges
        .iter()
        .chain(&[0, 1 << 31, 1 << 32, 1 << 63, u64::MAX])
        .flat_map(|edge| (0..5_u64).map(move |by| edge.wrapping_add(by).wrapping_sub(2)))
        .collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

#[test]
fn a_read_succeeds_exactly_where_all_its_bytes_lie() {
    let memory = small();
    let size = memory.size();
    for address in near(&[size, size / 2]) {
        for len in near(&[4096, size - address.min(size)]) {
            let lies = u128::from(address) + u128::from(len) <= u128::from(size);
            let read = memory.read(address, len).map(|bytes| bytes.len() as u64);
            assert_eq!(read, lies.then_some(len), "{len:#x} bytes at {address:#x} of {size:#x}");
        }
    }
}

#[test]
fn a_simulated_access_stays_within_one_guest() {
    let memories = [small(), small()];
    let mut ram = Ram::new(&memories);
    let parts: Vec<_> = ram.partitions().collect();
    let starts: Vec<u64> = parts.iter().flat_map(|part| [part.start, part.start + part.bytes]).collect();
    for physical in near(&starts) {
        for bytes in 1..=8 {
            let within = |at: u128| {
                parts.iter().any(|part| {
                    let (start, end) = (u128::from(part.start), u128::from(part.start + part.bytes));
                    at >= start && at + bytes as u128 <= end
                })
            };
            let lies = within(physical.into());
            ram.store(physical, bytes, u64::MAX);
            let expected = if lies { u64::MAX >> (64 - 8 * bytes) } else { 0 };
            assert_eq!(ram.load(physical, bytes), expected, "{bytes} bytes at {physical:#x}");
            ram.store(physical, bytes, 0);
        }
    }
}

#[test]
fn a_deposit_changes_its_structure_alone() {
    let memory = small();
    let area = memory.area_address(0).0;
    let bytes = size_of::<VcpuArea>() as u64;
    let before = memory.read(0, memory.size()).expect("all of it");
    for index in [0, 1, u32::MAX] {
        for offset in near(&[bytes, 8]) {
            let lies = index == 0 && offset.is_multiple_of(8) && u128::from(offset) + 8 <= u128::from(bytes);
            memory.deposit("vcpu", index, offset, u64::MAX);
            let changed = memory.read(0, memory.size()).expect("all of it") != before;
            assert_eq!(changed, lies, "eight bytes at {offset:#x} of area {index}");
            if lies {
                let kept = &before[(area + offset) as usize..][..8];
                memory.write(area + offset, kept);
            }
        }
    }
}

#[test]
fn memory_is_aligned_for_huge_pages_and_resident_once_touched() {
    let memory = small();
    assert!((memory.host_base() as u64).is_multiple_of(2 << 20));
    let resident = || memory.residence().unwrap().resident_bytes;
    assert_eq!(resident(), 0);
    memory.write(0, &vec![1; memory.size() as usize]);
    assert_eq!(resident(), memory.size());
    let found = memory.residence().unwrap();
    if let (Ok(nodes), Ok(huge)) = (found.node_bytes, found.huge_bytes) {
        assert_eq!(nodes.values().sum::<u64>(), memory.size());
        assert!(huge <= memory.size());
    }
}
