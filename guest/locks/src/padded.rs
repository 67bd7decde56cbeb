//! Keeping neighbours off a lock's cache line.

use core::ops::Deref;

use crate::Lock;

/// A value alone on its cache lines.
///
/// 128 bytes, not 64: adjacent lines are fetched in pairs by x86 prefetchers, so a neighbour one line away
/// still disturbs. A padded lock is a lock.
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

impl<D, L: Lock<D>> Lock<D> for CachePadded<L> {
    type Token = L::Token;

    #[inline(always)]
    fn lock(&self, domain: &D) -> L::Token {
        self.0.lock(domain)
    }

    #[inline(always)]
    fn try_lock(&self, domain: &D) -> Option<L::Token> {
        self.0.try_lock(domain)
    }

    #[inline(always)]
    fn unlock(&self, domain: &D, token: L::Token) {
        self.0.unlock(domain, token);
    }
}

const _: () = {
    assert!(align_of::<CachePadded<u8>>() == 128);
    assert!(size_of::<CachePadded<u8>>() == 128);
};
