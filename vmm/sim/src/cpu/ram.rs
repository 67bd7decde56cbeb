//! Physical memory for drivers that have none of their own.

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

    /// `bytes` (1 to 8) at `physical`, the first one lowest.
    ///
    /// # Panics
    /// Where there is no memory.
    #[inline(always)]
    #[must_use]
    pub fn load(&self, physical: u64, bytes: usize) -> u64 {
        let source = &self.0[physical as usize..physical as usize + bytes];
        let mut value = [0; 8];
        value[..bytes].copy_from_slice(source);
        u64::from_le_bytes(value)
    }

    /// Stores the lowest `bytes` of `value` at `physical`.
    ///
    /// # Panics
    /// Where there is no memory.
    #[inline(always)]
    pub fn store(&mut self, physical: u64, bytes: usize, value: u64) {
        self.0[physical as usize..physical as usize + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
    }
}
