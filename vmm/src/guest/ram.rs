//! The memory of a simulated machine: that of its guests, one behind the other.
#![expect(
    unsafe_code,
    reason = "every access of a simulated CPU comes here: checked once, and as fast as it can be"
)]

use haltkick_sim::{Partition, board};

use crate::guest::memory::Memory;

/// Alignment of the start of each guest's memory, which is the size of its pages.
const ALIGNMENT: u64 = 2 << 20;

/// See the module. One thread at a time runs the CPUs and looks at what they share with the VMM.
pub(crate) struct Ram<'a>(Vec<Part<'a>>);

/// The memory of one guest.
struct Part<'a> {
    partition: Partition,
    base: *mut u8,
    /// Keeps the mapping alive.
    _memory: &'a Memory,
}

impl<'a> Ram<'a> {
    /// All of `memories`, of which the first one begins at 0.
    pub(crate) fn new(memories: impl IntoIterator<Item = &'a Memory>) -> Self {
        let mut start = 0_u64;
        let part = |memory: &'a Memory| {
            let partition = Partition { start, bytes: memory.size() };
            start = (start + partition.bytes).next_multiple_of(ALIGNMENT);
            Part { partition, base: memory.host_base(), _memory: memory }
        };
        Self(memories.into_iter().map(part).collect())
    }

    /// The part of each guest.
    pub(crate) fn partitions(&self) -> impl Iterator<Item = Partition> {
        self.0.iter().map(|part| part.partition)
    }

    /// Pointer to `bytes` at a physical address, all of one guest: between two guests lies a page's border.
    #[inline]
    fn at(&self, physical: u64, bytes: usize) -> Option<*mut u8> {
        self.0.iter().find_map(|part| {
            let offset = physical.wrapping_sub(part.partition.start);
            let end = offset.checked_add(bytes as u64)?;
            // SAFETY: within the mapping, which `_memory` keeps alive.
            (end <= part.partition.bytes).then(|| unsafe { part.base.add(offset as usize) })
        })
    }
}

impl board::Memory for Ram<'_> {
    fn load(&self, physical: u64, bytes: usize) -> u64 {
        let Some(from) = self.at(physical, bytes) else { return 0 };
        let mut value = [0; 8];
        // SAFETY: `at` has checked the source, and at most eight bytes are asked for. References to this memory are to atomics,
        // and no other thread writes it now.
        unsafe { from.copy_to_nonoverlapping(value.as_mut_ptr(), bytes.min(8)) };
        u64::from_le_bytes(value)
    }

    fn store(&mut self, physical: u64, bytes: usize, value: u64) {
        let Some(to) = self.at(physical, bytes) else { return };
        // SAFETY: as above, the other way round.
        unsafe { to.copy_from_nonoverlapping(value.to_le_bytes().as_ptr(), bytes.min(8)) };
    }

    fn len(&self) -> u64 {
        self.0.last().map_or(0, |last| last.partition.start + last.partition.bytes)
    }
}
