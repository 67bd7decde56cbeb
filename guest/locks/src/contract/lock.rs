//! The trait that every lock of the family implements.

use crate::memory::CachePadded;

/// A spinlock whose per-kernel memory is a `D`, its *domain*.
///
/// A lock object is small and knows nothing of the machine. What all locks of one kind share (the
/// [`Platform`](crate::Platform), and per-CPU queue nodes where the kind needs them) lives in the domain, of
/// which a kernel declares one `static` per kind of lock. Kinds that need no memory take the platform itself
/// as their domain.
///
/// All users of one lock must pass the same domain, and `unlock` is only for the CPU that holds the lock. Otherwise
/// there is no mutual exclusion.
pub trait Lock<D>: Sync + Sized {
    /// Value that `lock` passes to the matching `unlock`: `()`, or the queue node in use.
    type Token;

    /// Acquires the lock, waiting as long as it takes.
    fn lock(&self, domain: &D) -> Self::Token;

    /// Acquires the lock if that needs no waiting.
    fn try_lock(&self, domain: &D) -> Option<Self::Token>;

    /// Releases the lock.
    fn unlock(&self, domain: &D, token: Self::Token);
}

/// A padded lock is a lock.
impl<D, L: Lock<D>> Lock<D> for CachePadded<L> {
    type Token = L::Token;

    #[inline(always)]
    fn lock(&self, domain: &D) -> L::Token {
        (**self).lock(domain)
    }

    #[inline(always)]
    fn try_lock(&self, domain: &D) -> Option<L::Token> {
        (**self).try_lock(domain)
    }

    #[inline(always)]
    fn unlock(&self, domain: &D, token: L::Token) {
        (**self).unlock(domain, token);
    }
}
