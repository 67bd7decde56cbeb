//! Queue spinlock: four bytes, a pending bit, an MCS queue of per-CPU nodes, and paravirtual forms of it.
//!
//! The word holds a locked byte, a pending bit, and the tail of the queue; [`Word`] has its layouts, and
//! `word.rs` the table of its states. A state is written (tail, pending, locked); `n` is some queue, `*` is
//! anything. A node is needed only while its CPU waits, so there are four for each CPU, one for each level of
//! interrupts, however many locks there are, and the owner needs none: unlock takes the lock and nothing
//! else.
//!
//! # The word
//!
//! A native lock has a lane for one CPU next to its queue, the pending bit:
//!
//! ```text
//!          lock               N3                  Q3
//! (0,0,0) ------> (0,0,1) ----------> (0,1,1) ----------> (n,1,1)
//!    ^             |   ^                 |                   |
//!    |   unlock    |   |          unlock |            unlock |
//!    +-------------+   |                 v                   v
//!                      +------------- (0,1,0) ----------> (n,1,0)
//!                             N6                  Q3         |
//!                                                         N6 |
//!       Q6: no other CPU             unlock                  v
//! (0,0,1) <------------- (n,0,0) <-------------------- (n,0,1) <-- Q3, from (0,0,1), after N4
//!                           |                             ^
//!                           +-----------------------------+
//!                                 Q7: a CPU behind
//! ```
//!
//! In a paravirtual lock the bit says that the head of the queue spins, and the byte SLOW (3) that a head sleeps:
//!
//! ```text
//!          lock               Q3
//! (0,0,0) ------> (0,0,1) ----------> (n,0,1)
//!    ^               |
//!    |    unlock     |
//!    +---------------+
//!
//!                   P1: the head spins             P3: the head sleeps, or
//!                  (and loses patience)            K2: the next one does
//!          (n,1,1) <------------------> (n,0,1) --------------------------> (n,0,3)
//!             |                          |   ^                                 |
//!      unlock |                   unlock |   | Q7, or                          |
//!             v                          v   | Q2: stolen                      |
//!          (n,1,0)                      (n,0,0) <------------------------------+
//!             |                          |               U2: unlock, and kick
//!   P1: the   |             Q6: alone    |
//!   head takes| it          else         v
//!             v                       (0,0,1)
//!          (n,0,1)
//! ```
//!
//! # Steps
//!
//! ```text
//!     lock     (0,0,0) -> (0,0,1), else the slow path
//!
//! N0  VirtTas: test-and-set, and no more of this
//! N1  native   (0,1,0) is a handoff on its way: look again, a limited number of times
//! N2           pending or tail set: Q0
//! N3           (0,0,x) -> (0,1,x)
//! N4           another CPU was faster: take the bit back if it is ours, Q0
//! N5           wait:  (*,1,1) -> (*,1,0)
//! N6           (*,1,0) -> (*,0,1): done
//!
//! Q0           claim the node of this level; there is none: spin on Q2
//! Q1           initialise it
//! Q2           try once more (paravirtual: steal)
//! Q3           (p,*,*) -> (n,*,*)
//! Q4           p != 0: link behind p; wait to be made head
//! Q5           head: wait for (*,0,0)
//! Q6           alone: (n,0,0) -> (0,0,1): Q9
//! Q7           (*,*,0) -> (*,*,1)
//! Q8           wait for the successor's link; make it head
//! Q9           give the node back: done
//!
//! P0  in Q4    spin for `locked`; state := HALTED; sleep unless `locked`; HALTED -> RUNNING; again
//! P1  in Q5    pending := 1; spin for the lock; pending := 0
//! P2           register (lock, node), once
//! P3           locked byte := SLOW; if that found 0, the lock is ours
//! P4           state := HASHED; sleep while SLOW; again from P1
//!
//! K1  in Q8    HALTED -> HASHED, by the owner that has just made the next node head
//! K2           if so: locked byte := SLOW, and register (lock, next)
//!
//! U1  unlock   locked byte 1 -> 0; or, if it is SLOW:
//! U2           take the entry out, release, kick
//! ```
//!
//! The pending CPU is served first, then the queue from its head. N is in `native.rs`, Q in `queue.rs`, P, K
//! and U are in `pv.rs`; P1 alone in `head.rs`, and as the work-conserving lock has it in `courtesy.rs`. Each file below
//! imports from files above it alone:
//!
//! ```text
//! release, word, node      the native unlock; the lock word and its transitions; a waiter's node
//! packed, table            the other layout; from a lock to its sleeping head
//! domain                   what all locks of a kernel share
//! mode, queue              what a kind of lock implements; the queue
//! native, virt, policy     the kinds: two whole, four by their settings
//! head, courtesy, pv       the slow paths of the four
//! raw                      a raw mutex of the crate `lock_api`
//! ```
//!
//! # Why it excludes
//!
//! Four transitions take the lock: the fast path and Q2 need (0,0,0), or (*,0,0) in the hybrid form; N6; and
//! Q6 or Q7.
//! 1. At most one CPU is pending: N3 and N4 keep the bit only if it was 0. At most one is head: each node is
//!    made head by its predecessor, once, and the first one finds no predecessor.
//! 2. While a CPU is pending, the fast path and Q2 fail and the head waits (Q5). So N6 takes a lock that
//!    no other CPU can take, and may be a plain store.
//! 3. While there is a head, the fast path and Q2 fail on the tail. A newcomer may set pending after Q5 has
//!    looked, but it has then seen the tail, and takes it back. So Q7 takes a lock that no other CPU can take,
//!    and may be a plain store. In the hybrid form others may, and the head uses a compare-exchange (P1) or
//!    an exchange (P3).
//! 4. The next head must not believe the word to be free because it has not seen Q7 yet: Q8 releases, Q4
//!    acquires.
//!
//! # Orderings
//!
//! | release | acquire | what it is for |
//! |---|---|---|
//! | unlock, U1, U2 | fast path, Q2, N3, N5, Q5, P1, P3 | the critical section |
//! | Q3 | Q3 of the next | p's node is initialised before anybody links behind it |
//! | link in Q4 | Q8 | this node is initialised before it is made head (T5) |
//! | Q8 | Q4 | Q7 is visible to the next head; see 4 above |
//! | P3 | fence in U2 | the entry in the table (T3) |
//! | fence B in K1 | failed exchange in P0 | `locked`, to a waiter that finds itself HASHED (P0a) |
//! | removal of an entry | its next insertion | the node that it named has been read |
//!
//! and the pair of full fences in P0 and K1 (T1). N6, Q6, Q7 and the pending bit are relaxed: the CPU has acquired
//! before them, or acquires later.
//!
//! A comment that names a race, T1 to T18, stands next to the line that settles it: see [`races`](crate::races).

mod courtesy;
mod domain;
mod head;
mod mode;
mod native;
mod node;
#[cfg(all(target_arch = "x86_64", not(any(loom, shuttle, miri, liveness))))]
mod packed;
mod policy;
mod pv;
mod queue;
#[cfg(all(feature = "lock_api", not(loom)))]
mod raw;
mod release;
mod table;
mod virt;
mod word;

use core::{fmt, marker::PhantomData};

use domain::Memory;
use word::{LOCKED, try_lock};

use crate::{
    contract::Lock,
    memory::sync::{AtomicU32, Ordering::*, const_unless_loom},
};

#[cfg(all(target_arch = "x86_64", not(any(loom, shuttle, miri, liveness))))]
pub use packed::Packed;
// Loom's locks cannot be made in a constant.
#[cfg(all(feature = "lock_api", not(loom)))]
pub use raw::{Home, RawQSpinLock};
pub use {
    domain::QSpinDomain,
    mode::Mode,
    native::Native,
    policy::{Bounded, Pv, V16, WorkConserving},
    virt::VirtTas,
    word::{Whole, Word},
};

/// Parts of which `RqSpinLock` is made, too.
pub(crate) mod parts {
    pub(crate) use super::{
        domain::{PerCpu, Shared, queues_in_memory},
        native::{become_pending, pending_to_owner},
        node::{DISSOLVED, HEAD, Node, WAITS},
        queue::{claim, count_level, hand_over, join},
        table::Table,
        word::{LOCKED, LOCKED_MASK, LOCKED_PENDING, TAIL_MASK, try_lock},
    };
}

/// The best layout for this target.
#[cfg(all(target_arch = "x86_64", not(any(loom, shuttle, miri, liveness))))]
pub type DefaultWord = Packed;
/// The best layout for this target.
#[cfg(not(all(target_arch = "x86_64", not(any(loom, shuttle, miri, liveness)))))]
pub type DefaultWord = Whole;

/// Queue spinlock: `M` says how it waits ([`Native`], [`Pv`], [`Bounded`], [`WorkConserving`], [`V16`] or [`VirtTas`]),
/// `W` how its word is laid out.
pub struct QSpinLock<M, W = DefaultWord> {
    /// See [`word`] for its states.
    word: AtomicU32,
    kind: PhantomData<fn() -> (M, W)>,
}

impl<M: Mode, W: Word> QSpinLock<M, W> {
    const_unless_loom! {
        /// A free lock.
        pub const fn new() -> Self {
            Self { word: AtomicU32::new(0), kind: PhantomData }
        }
    }
}

impl<M, W> fmt::Debug for QSpinLock<M, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QSpinLock").field("word", &self.word).finish()
    }
}

impl<M: Mode, W: Word, D: Memory> Lock<D> for QSpinLock<M, W> {
    type Token = ();

    #[inline(always)]
    fn lock(&self, domain: &D) {
        const { assert!(D::MOST_CPUS <= W::MAX_CPUS, "the tail of this layout cannot name so many CPUs") };
        M::before_lock(domain);
        // (0,0,0) -> (0,0,1). Acquire: pairs with unlock.
        if let Err(seen) = self.word.compare_exchange(0, LOCKED, Acquire, Relaxed) {
            M::lock_slow::<W, _>(&self.word, domain, seen);
        }
    }

    #[inline(always)]
    fn try_lock(&self, _: &D) -> Option<()> {
        try_lock(&self.word).then_some(())
    }

    #[inline(always)]
    fn unlock(&self, domain: &D, (): ()) {
        M::unlock::<W, _>(&self.word, domain);
    }
}
