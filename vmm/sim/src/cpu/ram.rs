//! Physical memory for drivers that have none of their own, and which part of the machine's memory a guest has.
//!
//! Each of several guests has physical addresses of its own, which begin at 0. Where they lie in the machine, the host's tables say:
//! here a start and a length. Translations that a CPU has cached lead to the machine's memory at once, so that only a walk of the
//! page tables needs to know the guest of an address.

/// Bytes from physical address 0 on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ram(Vec<u8>);

impl Ram {
    /// `bytes` of zeros.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        Self(vec![0; bytes])
    }

    /// All of it.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Mutable access to all of it.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    /// `bytes` (1 to 8) at `physical`, the first one lowest. Outside memory: zero.
    #[inline(always)]
    #[must_use]
    pub fn load(&self, physical: u64, bytes: usize) -> u64 {
        let mut value = [0; 8];
        if let Some(source) = self.0.get(physical as usize..(physical as usize).saturating_add(bytes)) {
            value[..bytes].copy_from_slice(source);
        }
        u64::from_le_bytes(value)
    }

    /// Stores the lowest `bytes` of `value` at `physical`. Outside memory: nothing.
    #[inline(always)]
    pub fn store(&mut self, physical: u64, bytes: usize, value: u64) {
        if let Some(target) = self.0.get_mut(physical as usize..(physical as usize).saturating_add(bytes)) {
            target.copy_from_slice(&value.to_le_bytes()[..bytes]);
        }
    }
}

/// An address at which no machine has memory.
const NOWHERE: u64 = 1 << 52;

/// A part of the machine's memory, in whole pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Partition {
    /// Its first byte: what is address 0 to the guest.
    pub start: u64,
    /// Its length.
    pub bytes: u64,
}

impl Partition {
    /// All that there is.
    pub const WHOLE: Self = Self { start: 0, bytes: NOWHERE };

    /// The machine's address for an address of the guest: outside of all memory, if the guest has none there.
    #[inline(always)]
    pub(crate) fn place(self, physical: u64) -> u64 {
        if physical < self.bytes { self.start + physical } else { NOWHERE | physical }
    }
}
