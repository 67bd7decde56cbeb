//! A guest's memory, as the CPUs of a simulated machine read and write it.
#![expect(
    unsafe_code,
    reason = "every access of a simulated CPU comes here: checked once, and as fast as it can be"
)]

use haltkick_sim::board;

use crate::guest::memory::Memory;

/// See the module. One thread at a time runs the CPUs and looks at what they share with the VMM.
pub(crate) struct Ram<'a> {
    memory: &'a Memory,
    base: *mut u8,
}

impl<'a> Ram<'a> {
    /// All of `memory`.
    pub(crate) fn new(memory: &'a Memory) -> Self {
        Self { memory, base: memory.host_base() }
    }

    /// Where `bytes` at a physical address lie.
    fn at(&self, physical: u64, bytes: usize) -> Option<*mut u8> {
        let end = physical.checked_add(bytes as u64)?;
        // SAFETY: within the mapping, which `memory` keeps alive.
        (end <= self.memory.size()).then(|| unsafe { self.base.add(physical as usize) })
    }
}

impl board::Memory for Ram<'_> {
    fn load(&self, physical: u64, bytes: usize) -> u64 {
        let Some(from) = self.at(physical, bytes) else { return 0 };
        let mut value = [0; 8];
        // SAFETY: `at` has checked the source, and at most eight bytes are asked for. References to this memory are to atomics,
        // and nobody else writes it now.
        unsafe { from.copy_to_nonoverlapping(value.as_mut_ptr(), bytes.min(8)) };
        u64::from_le_bytes(value)
    }

    fn store(&mut self, physical: u64, bytes: usize, value: u64) {
        let Some(to) = self.at(physical, bytes) else { return };
        // SAFETY: as above, the other way round.
        unsafe { to.copy_from_nonoverlapping(value.to_le_bytes().as_ptr(), bytes.min(8)) };
    }

    fn len(&self) -> u64 {
        self.memory.size()
    }
}
