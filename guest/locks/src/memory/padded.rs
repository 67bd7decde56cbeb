//! Keeping neighbours off a lock's cache line.

use core::ops::Deref;

/// A value alone on its cache lines.
///
/// 128 bytes, not 64: adjacent lines are fetched in pairs by x86 prefetchers, so a neighbour one line away
/// still disturbs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct CachePadded<T>(T);

impl<T> CachePadded<T> {
    /// Pads `value`.
    pub const fn new(value: T) -> Self {
        Self(value)
    }
}

impl<T> Deref for CachePadded<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

const _: () = {
    assert!(align_of::<CachePadded<u8>>() == 128);
    assert!(size_of::<CachePadded<u8>>() == 128);
};
