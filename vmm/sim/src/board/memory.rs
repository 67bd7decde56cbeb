//! The board's access to the memory of a guest.

use crate::cpu::ram::Ram;

/// Guest memory, as the CPUs of a board read and write it.
pub trait Memory {
    /// `bytes` (1 to 8) at a physical address, the first one lowest. Outside memory: zero.
    fn load(&self, physical: u64, bytes: usize) -> u64;

    /// Stores the lowest `bytes` of `value` at a physical address. Outside memory: nothing.
    fn store(&mut self, physical: u64, bytes: usize, value: u64);

    /// Length in bytes.
    fn len(&self) -> u64;

    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Memory for Ram {
    fn load(&self, physical: u64, bytes: usize) -> u64 {
        if is_inside(self, physical, bytes) { Self::load(self, physical, bytes) } else { 0 }
    }

    fn store(&mut self, physical: u64, bytes: usize, value: u64) {
        if is_inside(self, physical, bytes) {
            Self::store(self, physical, bytes, value);
        }
    }

    fn len(&self) -> u64 {
        self.bytes().len() as u64
    }
}

fn is_inside(ram: &Ram, physical: u64, bytes: usize) -> bool {
    physical.checked_add(bytes as u64).is_some_and(|end| end <= ram.bytes().len() as u64)
}
