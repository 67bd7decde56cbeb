//! What the board needs of the memory of a guest.

use super::fabric::Fabric;
use crate::cpu::code;
use crate::cpu::ram::Ram;
use crate::lines::Lines;

/// Most bytes that a board takes for guests of `memory_bytes` on a machine of so many CPUs, beside that memory.
#[must_use]
pub fn most_bytes(memory_bytes: u64, cpus: u32) -> u64 {
    let of_code = code::most_bytes::<Fabric<Ram>>() as u64;
    Lines::most_bytes(memory_bytes, cpus).saturating_add(of_code)
}

/// Guest memory, as the CPUs of a board read and write it.
pub trait Memory {
    /// `bytes` (1 to 8) at a physical address, the first one lowest. Outside memory: zero.
    fn load(&self, physical: u64, bytes: usize) -> u64;

    /// The same the other way round: the lowest `bytes` of `value`. Outside memory: nothing.
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
