//! Locks that may not be had.

use core::fmt;

use crate::{contract::Lock, memory::CachePadded};

/// Why a lock was not acquired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LockError {
    /// The caller would have waited for itself.
    Deadlock,
    /// The lock did not become free in time.
    TimedOut,
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Deadlock => "the caller would wait for itself",
            Self::TimedOut => "the lock did not become free in time",
        })
    }
}

impl core::error::Error for LockError {}

/// A lock whose waiters give up. Its [`lock`](Lock::lock) tries again instead.
pub trait FallibleLock<D>: Lock<D> {
    /// Acquires the lock, or says why not. After an error nothing is held, and `unlock` must not be called.
    fn lock_or_fail(&self, domain: &D) -> Result<Self::Token, LockError>;
}

/// A padded lock that can fail is a lock that can fail.
impl<D, L: FallibleLock<D>> FallibleLock<D> for CachePadded<L> {
    #[inline(always)]
    fn lock_or_fail(&self, domain: &D) -> Result<L::Token, LockError> {
        (**self).lock_or_fail(domain)
    }
}
