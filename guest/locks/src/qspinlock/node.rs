//! Queue nodes.
//!
//! The `state` of a node tells the owner what to do when it makes the node's CPU head:
//!
//! | state | meaning | set by |
//! |---|---|---|
//! | [`RUNNING`] | does not sleep | the waiter |
//! | [`HALTED`] | sleeps, or is about to, and is not head | the waiter |
//! | [`HASHED`] | stands in the table, or will before the lock is released | the head; the owner, from HALTED |

use crate::memory::sync::{AtomicU8, AtomicU32, Ordering::*, const_unless_loom};

/// The waiter does not sleep.
pub(super) const RUNNING: u8 = 0;
/// The waiter sleeps and is not head.
pub(super) const HALTED: u8 = 1;
/// The waiter is head, and in the table.
pub(super) const HASHED: u8 = 2;

/// `locked`: the waiter is behind another one.
pub(crate) const WAITS: u32 = 0;
/// `locked`: the waiter is head.
pub(crate) const HEAD: u32 = 1;
/// `locked`: the waiter has to leave, with all behind it. In the queue of an `RqSpinLock` only.
pub(crate) const DISSOLVED: u32 = 2;

/// A waiter in a queue. Initialised by its own CPU, then written by neighbours.
#[derive(Debug)]
#[cfg_attr(not(any(loom, shuttle)), repr(align(16)))]
pub struct Node {
    /// Code of the successor, 0 while none is known. Written by the successor.
    pub next: AtomicU32,
    /// [`WAITS`], [`HEAD`] or [`DISSOLVED`]. Written by the predecessor.
    pub locked: AtomicU32,
    /// Paravirtual only: [`RUNNING`], [`HALTED`] or [`HASHED`].
    pub(super) state: AtomicU8,
    /// 1 once the unlocker has taken this head's entry out of the table. Set by the unlocker, cleared by the
    /// head.
    pub(super) taken_out: AtomicU8,
}

impl Node {
    const_unless_loom! {
        pub(super) const fn new() -> Self {
            Self {
                next: AtomicU32::new(0),
                locked: AtomicU32::new(0),
                state: AtomicU8::new(RUNNING),
                taken_out: AtomicU8::new(0),
            }
        }
    }

    /// Prepares the node for a new wait. Relaxed: published by [`Word::swap_tail`](super::Word::swap_tail).
    pub fn init(&self) {
        self.next.store(0, Relaxed);
        self.locked.store(WAITS, Relaxed);
        self.state.store(RUNNING, Relaxed);
        self.taken_out.store(0, Relaxed);
    }
}
