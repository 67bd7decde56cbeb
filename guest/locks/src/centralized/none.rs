//! The lock that is none: the ideal that the others are measured against.
//!
//! It does not exclude, so that it cannot guard a value:
//!
//! ```compile_fail,E0277
//! # mod threads { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../qspin/tests/host/threads.rs")); }
//! # use threads::Threads;
//! # use haltkick_locks::{NoLock, guarded::Mutex, home};
//! # home! { Plain: Threads = Threads; }
//! static JIFFIES: Mutex<u64, NoLock, Plain> = Mutex::new(0);
//! *JIFFIES.lock() += 1;
//! ```

use haltkick_qspin::{Lock, Platform};

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
