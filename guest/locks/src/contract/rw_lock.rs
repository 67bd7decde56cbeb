//! The traits of locks that admit one writer or many readers.

use super::{Activity, Platform};

/// A reader-writer spinlock; see [`Lock`](crate::Lock) for what a domain `D` is and what callers owe.
///
/// No CPU may take a lock for writing while it holds it in any way, nor for reading while it holds it for writing.
/// Whether a reader may take it for reading once more depends on the kind. Where a waiting writer stops newcomers, that
/// is a deadlock ([`FairRwLock`](crate::FairRwLock)).
pub trait RwLock<D>: Sync + Sized {
    /// Value that `read` passes to the matching `read_unlock`.
    type ReadToken;

    /// Value that `write` passes to the matching `write_unlock`.
    type WriteToken;

    /// Acquires the lock for reading, waiting as long as it takes.
    fn read(&self, domain: &D) -> Self::ReadToken;

    /// Acquires the lock for reading if that needs no waiting.
    fn try_read(&self, domain: &D) -> Option<Self::ReadToken>;

    /// Releases what `read` acquired.
    fn read_unlock(&self, domain: &D, token: Self::ReadToken);

    /// Acquires the lock for writing, waiting as long as it takes.
    fn write(&self, domain: &D) -> Self::WriteToken;

    /// Acquires the lock for writing if that needs no waiting.
    fn try_write(&self, domain: &D) -> Option<Self::WriteToken>;

    /// Releases what `write` acquired.
    fn write_unlock(&self, domain: &D, token: Self::WriteToken);
}

/// Announces `activity` and pauses until `done`.
#[inline(always)]
pub(crate) fn wait_until<P: Platform>(platform: &P, activity: Activity, done: impl Fn() -> bool) {
    platform.announce(activity);
    while !done() {
        platform.pause();
    }
}
