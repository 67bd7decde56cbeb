//! Data that a lock protects.

use super::sync::{AtomicU32, Ordering::Relaxed};

/// A word that the lock named at its field protects.
///
/// An atomic for its type alone: order and exclusion are the lock's duty, so every access is relaxed and none is a
/// read-modify-write. A lock that fails shows as counts that do not add up.
#[derive(Debug)]
pub(crate) struct Guarded(AtomicU32);

impl Guarded {
    pub(crate) const fn new(value: u32) -> Self {
        Self(AtomicU32::new(value))
    }

    #[inline(always)]
    pub(crate) fn get(&self) -> u32 {
        self.0.load(Relaxed)
    }

    #[inline(always)]
    pub(crate) fn set(&self, value: u32) {
        self.0.store(value, Relaxed);
    }
}
