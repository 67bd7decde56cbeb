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
//! The pending CPU is served first, then the queue from its head. N and Q are in this file, P, K and U in `pv.rs`. The word's
//! transitions are in `word.rs`, with the byte stores of x86 in `packed.rs`; nodes and the table of sleeping heads in `domain.rs`.
//!
//! The patches of 2014 and 2015 that brought this lock to Linux name the same steps:
//!
//! | step | there | here |
//! |---|---|---|
//! | lock | `queued_spin_lock`, `queued_spin_trylock` | [`QSpinLock`]'s `lock`, `try_lock` |
//! | N0 | `virt_spin_lock` | [`VirtTas`] |
//! | N1 to Q9 | `queued_spin_lock_slowpath` | `lock_slow` |
//! | N3, N4 | `queued_fetch_set_pending_acquire`, `clear_pending` | `become_pending` |
//! | N6 | `clear_pending_set_locked` | `pending_to_owner` |
//! | Q2 | `pv_queued_spin_steal_lock` | `try_enter`, [`Word::steal`] |
//! | Q3 | `encode_tail`, `xchg_tail` | `Code`, [`Word::swap_tail`] |
//! | Q4, P0 | `pv_wait_node` | `pv_wait_node` |
//! | Q5, P1 to P4 | `pv_wait_head` | `pv_wait_head` |
//! | Q7 | `set_locked` | [`Word::set_locked`] |
//! | Q8, K1, K2 | `pv_kick_node` | `pv_kick_node` |
//! | P2, U2 | `pv_hash`, `pv_unhash` | `pv_hash`, `pv_unhash` |
//! | U1, U2 | `__pv_queued_spin_unlock`, its slow path | `try_unlock`, `pv_unlock_slow` |
//! | sleep, kick | `pv_wait`, `pv_kick` | [`Platform::wait`], [`Platform::kick`] |
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

mod domain;
#[cfg(all(target_arch = "x86_64", not(any(loom, shuttle, miri, liveness))))]
mod packed;
mod pv;
#[cfg(all(feature = "lock_api", not(loom)))]
mod raw;
mod word;

use core::marker::PhantomData;

use domain::{HEAD, Memory, Node, Shared};
use word::{LOCKED, LOCKED_MASK, LOCKED_PENDING, PENDING, try_lock};

use crate::{
    contract::{Activity, Event, Lock, Platform, Point, poll, sealed},
    faults::mutant::mutant,
    memory::{AtomicU32, MODELLED, Ordering::*, fresh},
    waiting::{Code, await_next},
};

pub use domain::QSpinDomain;
#[cfg(all(target_arch = "x86_64", not(any(loom, shuttle, miri, liveness))))]
pub use packed::Packed;
pub use pv::{Bounded, Pv, V16, WorkConserving};
// Loom's locks cannot be made in a constant.
#[cfg(all(feature = "lock_api", not(loom)))]
pub use raw::{Home, RawQSpinLock};
pub use word::{Whole, Word};

/// Parts of which `RqSpinLock` is made, too.
pub(crate) mod parts {
    pub(crate) use super::{
        become_pending, claim, count_level,
        domain::{DISSOLVED, HEAD, Node, PerCpu, Shared, Table, WAITS, queues_in_memory},
        hand_over, join, pending_to_owner,
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
#[derive(Debug)]
pub struct QSpinLock<M, W = DefaultWord> {
    /// See [`word`] for its states.
    word: AtomicU32,
    kind: PhantomData<fn() -> (M, W)>,
}

fresh!(pub QSpinLock<M: Mode, W: Word> { word: AtomicU32::new(0), kind: PhantomData });

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

/// How a queue spinlock waits and releases.
pub trait Mode: sealed::Sealed + 'static {
    /// Acquires a lock whose word was `seen` when it was not free.
    fn lock_slow<W: Word, D: Memory>(word: &AtomicU32, domain: &D, seen: u32);

    /// Before an attempt: whether this is the time for one.
    #[inline(always)]
    fn before_lock<D: Memory>(domain: &D) {
        _ = domain;
    }

    /// Releases a held lock.
    fn unlock<W: Word, D: Memory>(word: &AtomicU32, domain: &D);
}

/// Differences between a native and a paravirtual lock around the same queue.
pub(super) trait Queued {
    /// N1 to N6: tries to acquire without a queue node.
    fn lock_unqueued<W: Word, P: Platform>(word: &AtomicU32, shared: Shared<'_, P>, seen: u32) -> bool;

    /// Q2: the last try before queueing, and the only way in when there is no node.
    fn try_enter<W: Word, P: Platform>(word: &AtomicU32, platform: &P) -> bool;

    /// Q4: may sleep until `node.locked`.
    fn pv_wait_node<P: Platform>(shared: Shared<'_, P>, code: Code, node: &Node, prev: &Node);

    /// Q5: waits for the lock to become free; returns the word as last seen, locked if this has claimed it.
    fn pv_wait_head<W: Word, P: Platform>(
        word: &AtomicU32,
        shared: Shared<'_, P>,
        code: Code,
        node: &Node,
    ) -> u32;

    /// Q8: the owner has made `next` head.
    fn pv_kick_node<W: Word, P: Platform>(
        word: &AtomicU32,
        shared: Shared<'_, P>,
        next: Code,
        next_node: &Node,
    );
}

/// Acquires a lock whose word was `seen` when it was not free.
#[cold]
#[inline(never)]
pub(super) fn lock_slow<M: Queued, W: Word, D: Memory>(word: &AtomicU32, domain: &D, seen: u32) {
    let shared = domain.shared();
    let platform = shared.platform;
    platform.announce(Activity::Waiter);
    if M::lock_unqueued::<W, _>(word, shared, seen) {
        return;
    }

    // Q0, Q9: the node is this CPU's from `enter` to `leave`.
    let cpu = platform.cpu();
    let per_cpu = &shared.cpus[cpu];
    let level = per_cpu.own.nesting.enter();
    match per_cpu.nodes.get(level) {
        Some(node) => queue::<M, W, _>(word, shared, Code::new(cpu, level), node),
        // T9: one more level than there are nodes. Unfair, but this CPU holds up everybody below it on its
        // own stack.
        None => {
            platform.count(Event::LockNoNode, 1);
            while !M::try_enter::<W, _>(word, platform) {
                platform.pause();
            }
        }
    }
    per_cpu.own.nesting.leave();
}

/// Q1 to Q8: acquires the lock through the queue.
fn queue<M: Queued, W: Word, P: Platform>(word: &AtomicU32, shared: Shared<'_, P>, code: Code, node: &Node) {
    let platform = shared.platform;
    platform.point(Point::NodeClaimed);

    // Q1
    count_level(platform, code);
    node.init();

    // Q2: touching the node may have taken a cache miss, and the owner may have left meanwhile.
    if M::try_enter::<W, P>(word, platform) {
        return;
    }

    // Q3, Q4
    if let Some(prev) = join::<W, P>(word, shared, code) {
        M::pv_wait_node(shared, code, node, prev);
        // Acquire: pairs with the handoff in Q8. It makes the previous head's claim of the lock, which may
        // be a plain store (Q7), visible to Q5.
        while node.locked.load(Acquire) == 0 {
            platform.pause();
        }
    }

    // Q5: (*,x,y) -> (*,0,0), or (*,0,1) if the mode has claimed the lock already.
    platform.announce(Activity::Head);
    let seen = M::pv_wait_head::<W, P>(word, shared, code, node);
    if let Some((next, next_node)) = claim::<W, P>(word, shared, code, node, seen) {
        M::pv_kick_node::<W, P>(word, shared, next, next_node);
    }
}

/// Counts queue entries of nested levels.
pub(crate) fn count_level<P: Platform>(platform: &P, code: Code) {
    match code.place() {
        1 => platform.count(Event::LockUseNode2, 1),
        2 => platform.count(Event::LockUseNode3, 1),
        3 => platform.count(Event::LockUseNode4, 1),
        _ => {}
    }
}

/// Q3, and the link of Q4: puts the node behind the last one, if there is one, which it returns.
pub(crate) fn join<'a, W: Word, P: Platform>(
    word: &AtomicU32,
    shared: Shared<'a, P>,
    code: Code,
) -> Option<&'a Node> {
    // Q3: (p,*,*) -> (n,*,*). T5: the release in it publishes the initialised node.
    let prev = W::swap_tail(word, code.raw());
    shared.platform.point(Point::TailPublished);

    let prev = shared.node(Code::from_raw(prev)?);
    // Release: pairs with the acquire in `await_next`. T5: from here on the predecessor writes to this
    // node.
    prev.next.store(code.raw(), mutant!("relaxed-link": Release => Relaxed));
    Some(prev)
}

/// Q6 to Q8: takes the lock that is free to this head, and makes the next node head; returns that one.
pub(crate) fn claim<'a, W: Word, P: Platform>(
    word: &AtomicU32,
    shared: Shared<'a, P>,
    code: Code,
    node: &Node,
    seen: u32,
) -> Option<(Code, &'a Node)> {
    // Q6: (n,x,*) -> (0,x,1) while this is the last in the queue. Relaxed: Q5 has acquired. A newcomer may have set pending since. It need not
    // come behind this node: it may have none, or find the tail gone and keep the bit.
    let mut seen = seen;
    while seen & !LOCKED_PENDING == code.raw() << W::TAIL_SHIFT {
        match word.compare_exchange(seen, seen & PENDING | LOCKED, Relaxed, Relaxed) {
            Ok(_) => return None,
            Err(now) => seen = now,
        }
    }

    // Q7: (*,*,0) -> (*,*,1). A plain store is enough, for no other CPU can take the lock: the fast path and Q2 see the
    // tail, a pending CPU sees it too and queues, and there is one head.
    W::set_locked(word);

    // Q8
    Some(hand_over(shared, node, HEAD))
}

/// Q8: makes the node behind `node`, which is not the last one, head, or what the verdict says; returns it.
pub(crate) fn hand_over<'a, P: Platform>(
    shared: Shared<'a, P>,
    node: &Node,
    verdict: u32,
) -> (Code, &'a Node) {
    // The link of Q4, which is on its way.
    let next = Code::from_raw(await_next(shared.platform, &node.next)).expect("a link names a node");
    let next_node = shared.node(next);
    // Release: pairs with the wait in Q4. From here on this node is not needed, but `leave` is what frees it.
    next_node.locked.store(verdict, mutant!("relaxed-hand-over": Release => Relaxed));
    shared.platform.point(Point::HandedOver);
    (next, next_node)
}

/// How often N1 looks at the word. On x86 a handoff is shorter than this, unless its CPU has been
/// preempted.
const PENDING_LOOPS: u32 = if MODELLED { 1 } else { 512 };

/// Fair and spinning: for CPUs that are always there.
#[derive(Debug)]
pub enum Native {}

impl sealed::Sealed for Native {}

impl Mode for Native {
    #[inline(always)]
    fn lock_slow<W: Word, D: Memory>(word: &AtomicU32, domain: &D, seen: u32) {
        lock_slow::<Self, W, D>(word, domain, seen);
    }

    #[inline(always)]
    fn unlock<W: Word, D: Memory>(word: &AtomicU32, _: &D) {
        W::unlock(word);
    }
}

impl Queued for Native {
    /// N1 to N6: waits in the pending bit, if that is free.
    fn lock_unqueued<W: Word, P: Platform>(word: &AtomicU32, shared: Shared<'_, P>, seen: u32) -> bool {
        let platform = shared.platform;
        let Some(old) = become_pending::<W, P>(word, platform, seen) else {
            platform.count(Event::LockSlowpath, 1);
            return false;
        };
        // N5: (*,1,1) -> (*,1,0). Acquire: pairs with unlock. If the lock was free already, N3 has
        // acquired.
        if old & LOCKED_MASK != 0 {
            while word.load(mutant!("relaxed-pending": Acquire => Relaxed)) & LOCKED_MASK != 0 {
                platform.pause();
            }
        }
        pending_to_owner::<W, P>(word, platform);
        true
    }

    fn try_enter<W: Word, P: Platform>(word: &AtomicU32, _: &P) -> bool {
        try_lock(word)
    }

    fn pv_wait_node<P: Platform>(_: Shared<'_, P>, _: Code, _: &Node, _: &Node) {}

    /// Q5: waits for the owner and for the pending CPU to leave.
    fn pv_wait_head<W: Word, P: Platform>(word: &AtomicU32, shared: Shared<'_, P>, _: Code, _: &Node) -> u32 {
        loop {
            // Acquire: pairs with unlock.
            let seen = word.load(mutant!("relaxed-head": Acquire => Relaxed));
            if seen & LOCKED_PENDING == 0 {
                return seen;
            }
            shared.platform.pause();
        }
    }

    fn pv_kick_node<W: Word, P: Platform>(_: &AtomicU32, _: Shared<'_, P>, _: Code, _: &Node) {}
}

/// N1 to N4: sets the pending bit. The word as it was, if this CPU is the pending one now.
pub(crate) fn become_pending<W: Word, P: Platform>(
    word: &AtomicU32,
    platform: &P,
    mut seen: u32,
) -> Option<u32> {
    // N1: (0,1,0) is about to become (0,0,1), after which this CPU can be the pending one. T7: the wait is bounded,
    // for others may take the pending bit each time before this CPU looks.
    let mut loops = PENDING_LOOPS;
    while seen == PENDING && loops > 0 {
        platform.pause();
        // Relaxed: N3 acquires.
        seen = word.load(Relaxed);
        loops -= mutant!("t7-endless-pending": 1 => 0);
    }

    // N2
    if seen & !LOCKED_MASK != 0 {
        return None;
    }
    // N3: (0,0,x) -> (0,1,x)
    let old = W::set_pending(word);
    if old & !LOCKED_MASK == 0 {
        platform.announce(Activity::Head);
        platform.point(Point::PendingSet);
        return Some(old);
    }
    // N4: another CPU came first. The bit may be that one's.
    if old & PENDING == 0 {
        W::clear_pending(word);
    }
    None
}

/// N6: (*,1,0) -> (*,0,1). A plain store is enough, for no other CPU can take the lock: the fast path sees pending, newcomers
/// see it and queue, and the head waits for it to go.
pub(crate) fn pending_to_owner<W: Word, P: Platform>(word: &AtomicU32, platform: &P) {
    W::pending_to_locked(word);
    platform.count(Event::LockPending, 1);
}

/// A lock without queue or fairness, so no CPU ever waits for a waiter that is not running.
///
/// For a guest that knows it is one, and that its
/// hypervisor offers nothing.
#[derive(Debug)]
pub enum VirtTas {}

impl sealed::Sealed for VirtTas {}

impl Mode for VirtTas {
    /// N0: (0,0,0) -> (0,0,1), as soon as that is possible.
    #[cold]
    #[inline(never)]
    fn lock_slow<W: Word, D: Memory>(word: &AtomicU32, domain: &D, _: u32) {
        // Relaxed: only a hint when to try; `try_lock` is what acquires.
        poll(domain.shared().platform, || word.load(Relaxed) == 0, || try_lock(word));
    }

    #[inline(always)]
    fn unlock<W: Word, D: Memory>(word: &AtomicU32, _: &D) {
        W::unlock(word);
    }
}

#[cfg(all(test, not(any(loom, shuttle, liveness))))]
mod tests {
    use super::*;
    use crate::{
        contract::test_platform::IDLE,
        qspinlock::{
            domain::{PerCpu, Table},
            word::Whole,
        },
    };

    #[test]
    fn a_head_does_not_await_a_newcomer_that_is_pending() {
        let cpus = [PerCpu::new()];
        let shared = Shared { platform: &IDLE, cpus: &cpus, table: Table::new(&[]) };
        let code = Code::new(0, 0);
        let seen = code.raw() << Whole::TAIL_SHIFT;
        let word = AtomicU32::new(seen | PENDING);
        assert!(claim::<Whole, _>(&word, shared, code, shared.node(code), seen).is_none());
        assert_eq!(word.into_inner(), PENDING | LOCKED);
    }
}
