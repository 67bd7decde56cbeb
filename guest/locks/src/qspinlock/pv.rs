//! The paravirtual locks: waiters that have spun long enough sleep, and are kicked.
//!
//! # Who sleeps where
//!
//! A waiter that is not head sleeps on the `state` of its own node, the head on the locked byte of the lock.
//! The owner wakes neither when it hands over the queue: it registers the sleeping new head in the
//! [table](super::table), so that one kick at unlock does for both.
//!
//! | state | meaning | set by |
//! |---|---|---|
//! | [`RUNNING`] | does not sleep | the waiter |
//! | [`HALTED`] | sleeps, or is about to, and is not head | the waiter |
//! | [`HASHED`] | stands in the table, or will before the lock is released | the head; the owner, from HALTED |
//!
//! # Steps
//!
//! ```text
//! P0  wait_node   spin for `locked`; state := HALTED; sleep unless `locked`; HALTED -> RUNNING; again
//! P1  wait_head   pending := 1; spin for the lock; pending := 0
//! P2              register (lock, node), once
//! P3              locked byte := SLOW; if that found 0, the lock is ours
//! P4              state := HASHED; sleep while SLOW; again from P1
//! K1  kick_node   HALTED -> HASHED, by the owner that has just made the next node head
//! K2              if so: locked byte := SLOW, and register (lock, next)
//! U1  unlock      locked byte 1 -> 0; or, if it is SLOW:
//! U2              take the entry out, release, kick
//! ```
//!
//! # Races
//!
//! ```text
//! T1  waiter, P0                       owner, Q8 and K1
//!     state := HALTED                  next.locked := 1
//!     full fence (A)                   full fence (B)
//!     sleep unless locked              state: HALTED -> HASHED, else return
//! ```
//! With both fences, one of them sees the other's store: the waiter does not sleep, or the owner registers
//! it. Without either of them both may look too early, and nobody ever kicks the waiter. The owner's fence
//! has to be explicit, for a compare-exchange that fails orders nothing.
//!
//! ```text
//! T2  owner, K1                        new head
//!     next.locked := 1
//!     (preempted)                      registers itself, publishes its state, sleeps
//!     state: HALTED -> HASHED
//! ```
//! A head publishes HASHED, never HALTED: the owner's exchange fails, and the lock is not registered twice.
//!
//! ```text
//! P0a waiter, P0                       owner, Q8 and K1
//!                                      next.locked := 1
//!                                      fence B
//!     HALTED -> RUNNING fails          state: HALTED -> HASHED
//!     looks at locked, or spins on
//! ```
//! The waiter woke by itself and finds HASHED; it must then find `locked` too. If it did not, it would go on
//! as one that is not head, store HALTED over HASHED, and later register once more. The failed exchange
//! therefore acquires. (On x86 it does so anyway. Loom found this one.)
//!
//! ```text
//! T3  head, P2 and P3                  unlock, U1 and U2
//!     insert into the table            finds SLOW
//!     release (in the swap)            acquire fence
//!     locked byte := SLOW              searches the table
//! ```

use super::{
    Mode, Word,
    courtesy::Courtesy,
    domain::{Memory, Node, Shared},
    queue::{self, Queued},
    try_lock,
    word::{LOCKED, LOCKED_MASK, LOCKED_PENDING, PENDING, SLOW, TAIL_MASK},
};
use crate::{
    Activity, Event, Platform, Point,
    mutant::{faulty, mutant},
    nesting::Code,
    patience::Patience,
    slice_tas::give_up_unless_in_section,
    sync::{AtomicU32, MODELLED, Ordering::*, fence},
};

/// The waiter does not sleep.
pub(super) const RUNNING: u8 = 0;
/// The waiter sleeps and is not head.
pub(super) const HALTED: u8 = 1;
/// The waiter is head, and in the table.
pub(super) const HASHED: u8 = 2;

/// Rounds between two looks at the predecessor's state.
const PREV_CHECK: u32 = if MODELLED { 2 } else { 256 };

/// What distinguishes the paravirtual locks of different years.
pub trait Policy: super::sealed::Sealed + 'static {
    /// Newcomers may take a free lock past the queue while its head does not spin.
    const STEALING: bool;

    /// A waiter sleeps at once if its predecessor does.
    const WAIT_EARLY: bool;

    /// See [`WorkConserving`].
    const WORK_CONSERVING: bool;
}

/// Today's paravirtual lock: queued, but stealing is allowed while the head of the queue sleeps.
#[derive(Debug)]
pub enum Pv {}

impl super::sealed::Sealed for Pv {}

impl Policy for Pv {
    const STEALING: bool = true;
    const WAIT_EARLY: bool = true;
    const WORK_CONSERVING: bool = false;
}

/// Today's lock without what keeps a physical CPU from working, or makes it work for the lock alone.
///
/// Two spins of today's lock have no bound while the owner is not running. Here they end with the threshold.
/// 1. A newcomer that finds the lock held and the head asleep waits for something to steal, for as long as
///    that takes. While the owner is preempted, every CPU that comes by spends its whole slice there.
/// 2. A head registers once. When it has been woken and a thief was faster, its next sleeps end at once,
///    because the locked byte is not SLOW; it spends its slices on spinning behind that thief, who may be
///    preempted. Here a head may register again once the unlocker has told it, through its node, that its
///    entry is out of the table; that its byte is not SLOW proves nothing, for the owner that registers a
///    sleeping successor publishes HASHED first and marks the byte later (K1, K2).
///
/// Three things it knows from a host that tells, and does without where the host does not:
/// 3. It does not ask for the lock when the slice is about to end ([`Platform::slice_ends_soon`]), so that
///    owners are hardly ever preempted (I-Spinlock: Teabe et al., EuroSys 2017); unless the CPU holds another lock
///    ([`Platform::is_in_section`]), whose owner would be the one to lose its CPU.
/// 4. Nobody sleeps while nobody waits for a physical CPU ([`Platform::is_overcommitted`]): to spin costs
///    nothing then, to sleep costs two exits.
/// 5. The head is courteous to an owner that wants the lock back at once; see `courtesy.rs`. Fewer changes of
///    owner are fewer kicks (concurrency restriction: Dice, "Malthusian Locks", EuroSys 2017).
#[derive(Debug)]
pub enum WorkConserving {}

impl super::sealed::Sealed for WorkConserving {}

impl Policy for WorkConserving {
    const STEALING: bool = true;
    const WAIT_EARLY: bool = true;
    const WORK_CONSERVING: bool = true;
}

/// The paravirtual lock as first posted in its sixteenth version, in 2015: strictly first come, first served.
#[derive(Debug)]
pub enum V16 {}

impl super::sealed::Sealed for V16 {}

impl Policy for V16 {
    const STEALING: bool = false;
    const WAIT_EARLY: bool = false;
    const WORK_CONSERVING: bool = false;
}

impl<T: Policy> Mode for T {
    #[inline(always)]
    fn lock_slow<W: Word, D: Memory>(word: &AtomicU32, domain: &D, seen: u32) {
        queue::lock_slow::<Self, W, D>(word, domain, seen);
    }

    #[inline(always)]
    fn before_lock<D: Memory>(domain: &D) {
        let ends = || mutant!("wc-ignore-slice": domain.shared().platform.slice_ends_soon() => false);
        if T::WORK_CONSERVING && ends() {
            give_up_slice(domain);
        }
    }

    #[inline(always)]
    fn unlock<W: Word, D: Memory>(word: &AtomicU32, domain: &D) {
        // U1: (*,*,1) -> (*,*,0)
        if let Err(locked) = W::try_unlock(word) {
            unlock_slow::<T, W, D>(word, domain, locked);
        }
    }
}

impl<T: Policy> Queued for T {
    /// There is no lane for a pending CPU: the bit says that the head spins. Work-conserving: an owner that wants
    /// its lock back at once, while the head lets it, should not need a node for that.
    fn lock_unqueued<W: Word, P: Platform>(word: &AtomicU32, shared: Shared<'_, P>, seen: u32) -> bool {
        let stolen = T::WORK_CONSERVING && seen & LOCKED_PENDING == 0 && W::steal(word, seen);
        if stolen {
            shared.platform.count(Event::PvLockStealing, 1);
        }
        stolen
    }

    /// With stealing: (*,0,0) -> (*,0,1), for as long as there is a queue whose head does not spin.
    fn try_enter<W: Word, P: Platform>(word: &AtomicU32, platform: &P) -> bool {
        if !T::STEALING {
            return try_lock(word);
        }
        let mut patience = T::WORK_CONSERVING.then(|| Patience::new(platform));
        loop {
            // Relaxed: `steal` is what acquires.
            let seen = word.load(Relaxed);
            if seen & LOCKED_PENDING == 0 && W::steal(word, seen) {
                platform.count(Event::PvLockStealing, 1);
                return true;
            }
            let head_spins = mutant!("pv-steal-from-spinner": seen & PENDING != 0 => false);
            if seen & TAIL_MASK == 0 || head_spins {
                return false;
            }
            let Some(patience) = &mut patience else {
                platform.pause();
                continue;
            };
            if !patience.pause() {
                return false;
            }
        }
    }

    /// P0. Relaxed, but for T1 and P0a: the acquiring wait of Q4 follows.
    fn wait_node<P: Platform>(shared: Shared<'_, P>, code: Code, node: &Node, prev: &Node) {
        let platform = shared.platform;
        loop {
            let Some(early) = spin_for_locked::<T, P>(platform, node, prev) else { return };
            node.state.store(HALTED, Relaxed);
            platform.point(Point::HaltedPublished);
            // T1, fence A; pairs with fence B in `kick_node`.
            if !faulty!("t1-no-fence-in-waiter") {
                fence(SeqCst);
            }
            if node.locked.load(Relaxed) == 0 {
                platform.count(Event::PvWaitNode, 1);
                if early {
                    platform.count(Event::PvWaitEarly, 1);
                }
                shared.sleep(code.cpu(), || node.state.load(Relaxed) == HALTED);
            }
            // Fails if the owner has made it HASHED, and then it stays so: the entry is in the table, or will
            // be. P0a: Acquire then; pairs with fence B.
            let acquire = mutant!("p0a-relaxed-wake": Acquire => Relaxed);
            mutant!(
                "pv-wake-forgets-hash": _ = node.state.compare_exchange(HALTED, RUNNING, Relaxed, acquire)
                    => node.state.store(RUNNING, Relaxed)
            );
            if node.locked.load(Relaxed) == 0 {
                platform.count(Event::PvSpuriousWakeup, 1);
            }
        }
    }

    /// P1 to P4.
    fn wait_head<W: Word, P: Platform>(
        word: &AtomicU32,
        shared: Shared<'_, P>,
        code: Code,
        node: &Node,
    ) -> u32 {
        let platform = shared.platform;
        platform.count(Event::LockSlowpath, 1);
        // Relaxed: the owner's K1 either came before the end of P0, which has seen it, or finds RUNNING and
        // fails.
        let mut registered = node.state.load(Relaxed) == HASHED;
        let mut slept = false;
        let mut courtesy = T::WORK_CONSERVING.then(|| Courtesy::new(shared, node));
        loop {
            // Relaxed: successors read it to decide whether to sleep early.
            node.state.store(RUNNING, Relaxed);

            // P1
            let taken = match &mut courtesy {
                Some(courtesy) => courtesy.spin::<W>(word),
                None => spin_for_lock::<T, W, P>(word, platform),
            };
            if let Some(seen) = taken {
                return seen;
            }

            if !registered {
                // P2
                shared.register(word, code);
                registered = true;
                platform.point(Point::HeadHashed);
                // P3: (*,0,x) -> (*,0,3). T3: the release in it publishes the entry.
                if W::swap_slow(word) == mutant!("pv-miss-the-gift": 0 => SLOW) {
                    // (*,0,3) -> (*,0,1): the owner left between P1 and P3, and this CPU owns the lock.
                    W::unmark_slow(word);
                    if !faulty!("pv-leave-the-entry") {
                        shared.deregister(word);
                    }
                    // Relaxed: the swap has acquired.
                    return word.load(Relaxed) | LOCKED;
                }
            }

            // P4. T2: HASHED, lest the owner that made this CPU head registers it once more.
            node.state.store(mutant!("t2-head-halts": HASHED => HALTED), Relaxed);
            platform.count(Event::PvWaitHead, 1);
            if slept {
                platform.count(Event::PvWaitAgain, 1);
            }
            slept = true;
            shared.sleep(code.cpu(), || word.load(Relaxed) & LOCKED_MASK == SLOW);
            if T::WORK_CONSERVING && has_been_released(word, node) {
                // Relaxed: the next one to set it is the unlocker that finds the next entry.
                node.taken_out.store(0, Relaxed);
                registered = false;
            }
        }
    }

    /// K1 and K2.
    fn kick_node<W: Word, P: Platform>(
        word: &AtomicU32,
        shared: Shared<'_, P>,
        next: Code,
        next_node: &Node,
    ) {
        // T1, fence B; pairs with fence A in `wait_node`.
        if !faulty!("t1-no-fence-in-owner") {
            fence(SeqCst);
        }
        // K1. The node is still the successor's, who cannot leave before this CPU unlocks. Relaxed: the fence
        // orders it, and nothing is read through it.
        if next_node.state.compare_exchange(HALTED, HASHED, Relaxed, Relaxed).is_ok() {
            shared.platform.point(Point::SuccessorHashed);
            // K2: (*,*,1) -> (*,*,3). In this order or the other: this CPU is the one that unlocks.
            W::mark_slow(word);
            shared.register(word, next);
        }
    }
}

#[cold]
#[inline(never)]
fn give_up_slice<D: Memory>(domain: &D) {
    give_up_unless_in_section(domain.shared().platform);
}

/// P0: spins for `locked`. `None` once it is set; else whether patience ended early because the predecessor
/// does not run.
fn spin_for_locked<T: Policy, P: Platform>(platform: &P, node: &Node, prev: &Node) -> Option<bool> {
    let mut patience = Patience::new(platform);
    loop {
        // Relaxed: Q4 acquires.
        if node.locked.load(Relaxed) != 0 {
            return None;
        }
        // Relaxed: a hint. Reading the predecessor's node is safe at any time, for nodes are never freed.
        let check_prev = T::WAIT_EARLY && patience.every(PREV_CHECK);
        if mutant!("pv-never-early": check_prev => false) && prev.state.load(Relaxed) != RUNNING {
            return Some(true);
        }
        if !patience.pause() {
            let may_sleep = || !T::WORK_CONSERVING || platform.is_overcommitted();
            if mutant!("wc-waiter-ignores-load": may_sleep() => true) {
                return Some(false);
            }
            patience = Patience::new(platform);
        }
    }
}

/// P1: spins for the lock. `Some` with the word as last seen, locked if this took the lock.
fn spin_for_lock<T: Policy, W: Word, P: Platform>(word: &AtomicU32, platform: &P) -> Option<u32> {
    if T::STEALING {
        return insist::<W, P>(word, platform);
    }
    let mut patience = Patience::new(platform);
    loop {
        // Acquire: pairs with unlock. Nobody else can take the lock, so Q6 or Q7 will.
        let seen = word.load(mutant!("v16-relaxed-head": Acquire => Relaxed));
        if seen & LOCKED_MASK == 0 {
            return Some(seen);
        }
        if !patience.pause() {
            return None;
        }
    }
}

/// P1 of a head that forbids stealing.
pub(super) fn insist<W: Word, P: Platform>(word: &AtomicU32, platform: &P) -> Option<u32> {
    let mut patience = Patience::new(platform);
    // (*,0,*) -> (*,1,*)
    W::announce_spinning(word);
    platform.point(Point::HeadSpinning);
    loop {
        // (*,1,0) -> (*,0,1)
        if W::spinning_to_locked(word) {
            // Relaxed: only tells Q6 whether somebody has queued behind.
            return Some(word.load(Relaxed) | LOCKED);
        }
        if !patience.pause() {
            // (*,1,*) -> (*,0,*)
            W::clear_pending(word);
            return None;
        }
    }
}

/// Whether the unlock that took this head's entry out of the table has also released the lock: one more entry
/// does not make two.
fn has_been_released(word: &AtomicU32, node: &Node) -> bool {
    // Acquire: pairs with U2, so that the byte is not one from before it became SLOW.
    let taken_out = mutant!("wc-guess-from-byte": node.taken_out.load(Acquire) != 0 => true);
    // Relaxed: as just said. While the byte is SLOW, the unlocker has yet to overwrite it: what this CPU
    // wrote there now would be lost.
    taken_out && mutant!("wc-trust-the-note": word.load(Relaxed) & LOCKED_MASK != SLOW => true)
}

/// U2: (*,*,3) -> (*,*,0), and kicks the head.
#[cold]
#[inline(never)]
fn unlock_slow<T: Policy, W: Word, D: Memory>(word: &AtomicU32, domain: &D, locked: u32) {
    let shared = domain.shared();
    let platform = shared.platform;
    // T14: a lock that is not held has no entry to look for; say what happened instead.
    assert!(
        faulty!("t14-no-diagnosis") || locked == SLOW,
        "unlock of a lock whose locked byte is {locked}: not held, or overwritten"
    );
    platform.point(Point::SlowSeen);
    // T3: pairs with the release in `swap_slow`. The failed exchange orders nothing.
    if !faulty!("t3-no-read-fence") {
        fence(Acquire);
    }
    if faulty!("t4-release-first") {
        W::unlock(word);
        platform.point(Point::SlowReleased);
    }
    let head = shared.deregister(word);
    platform.point(Point::EntryRemoved);
    if T::WORK_CONSERVING {
        // Release: pairs with the head's look after its sleep. The head cannot leave its node before the lock
        // is released below.
        shared.node(head).taken_out.store(1, Release);
    }
    if faulty!("t4-kick-first") {
        shared.kick(head.cpu());
    }
    // T4: the next owner may free the lock's memory. From here on, only the domain is touched.
    if !faulty!("t4-release-first") {
        W::unlock(word);
    }
    // The kick may be where the host takes this CPU away: not as the holder of anything.
    platform.announce(Activity::Other);
    platform.point(Point::SlowReleased);
    if !faulty!("t4-kick-first") {
        shared.kick(head.cpu());
    }
}
