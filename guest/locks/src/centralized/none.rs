//! The lock that is none: the ideal that the others are measured against.

use crate::contract::{Lock, Platform};

/// Admits everybody at once and costs nothing.
#[derive(Debug, Default)]
pub struct NoLock;

impl NoLock {
    /// A lock that is always free.
    pub const fn new() -> Self {
        Self
    }
}

impl<P: Platform> Lock<P> for NoLock {
    type Token = ();

    #[inline(always)]
    fn lock(&self, _: &P) {}

    #[inline(always)]
    fn try_lock(&self, _: &P) -> Option<()> {
        Some(())
    }

    #[inline(always)]
    fn unlock(&self, _: &P, (): ()) {}
}
