//! The paravirtual slow paths: waiters that have spun long enough sleep, and are kicked.
//!
//! A waiter that is not head sleeps on the `state` of its own node, the head on the locked byte of the lock.
//! The owner wakes neither when it hands over the queue: it registers the sleeping new head in the
//! [table](super::table), so that one kick at unlock does for both. The steps P, K and U are listed with all the others in
//! the documentation of [`qspinlock`](super), and what goes wrong without their fences and checks in [`races`](crate::races).

use super::{
    courtesy::Courtesy,
    domain::{Memory, Shared},
    head::spin_for_lock,
    mode::Mode,
    node::{HALTED, HASHED, Node, RUNNING},
    policy::Policy,
    queue::{self, Queued},
    word::{LOCKED, LOCKED_MASK, LOCKED_PENDING, PENDING, SLOW, TAIL_MASK, Word, try_lock},
};
use crate::{
    contract::{Activity, Event, Platform, Point},
    faults::mutant::mutant,
    memory::sync::{AtomicU32, MODELLED, Ordering::*, fence},
    waiting::{nesting::Code, patience::Patience, slice::give_up_unless_in_section},
};

/// Rounds between two looks at the predecessor's state.
const PREV_CHECK: u32 = if MODELLED { 2 } else { 256 };

impl<T: Policy> Mode for T {
    #[inline(always)]
    fn lock_slow<W: Word, D: Memory>(word: &AtomicU32, domain: &D, seen: u32) {
        queue::lock_slow::<Self, W, D>(word, domain, seen);
    }

    #[inline(always)]
    fn before_lock<D: Memory>(domain: &D) {
        if T::WORK_CONSERVING && domain.shared().platform.slice_ends_soon() {
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
        let mut patience = T::BOUNDED.then(|| Patience::new(platform));
        loop {
            // Relaxed: `steal` is what acquires.
            let seen = word.load(Relaxed);
            if seen & LOCKED_PENDING == 0 && W::steal(word, seen) {
                platform.count(Event::PvLockStealing, 1);
                return true;
            }
            let head_spins = seen & PENDING != 0;
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
            let Some(spin) = spin_for_locked::<T, P>(platform, node, prev) else { return };
            node.state.store(HALTED, Relaxed);
            platform.point(Point::HaltedPublished);
            // T1, fence A; pairs with fence B in `kick_node`.
            fence(SeqCst);
            if node.locked.load(Relaxed) == 0 {
                platform.count(Event::PvWaitNode, 1);
                let halt = if spin.ended_early {
                    platform.count(Event::PvWaitEarly, 1);
                    platform.count(Event::PvLatencySpinEarly, spin.ticks);
                    Event::PvLatencyHaltEarly
                } else {
                    platform.count(Event::PvLatencySpinNode, spin.ticks);
                    Event::PvLatencyHaltNode
                };
                shared.sleep(code.cpu(), halt, || node.state.load(Relaxed) == HALTED);
            }
            // Fails if the owner has made it HASHED, and then it stays so: the entry is in the table, or will
            // be. P0a: Acquire then; pairs with fence B.
            let acquire = mutant!("p0a-relaxed-wake": Acquire => Relaxed);
            _ = node.state.compare_exchange(HALTED, RUNNING, Relaxed, acquire);
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
            let mut patience = Patience::new(platform);
            let taken = match &mut courtesy {
                Some(courtesy) => courtesy.spin::<W>(word),
                None => spin_for_lock::<T, W, P>(word, platform, &mut patience),
            };
            if let Some(seen) = taken {
                return seen;
            }
            let spin = patience.spent();

            if !registered {
                // P2
                shared.register(word, code);
                registered = true;
                platform.point(Point::HeadHashed);
                // P3: (*,0,x) -> (*,0,3). T3: the release in it publishes the entry.
                if W::swap_slow(word) == 0 {
                    // (*,0,3) -> (*,0,1): the owner left between P1 and P3, and this CPU owns the lock.
                    W::unmark_slow(word);
                    shared.deregister(word);
                    // Relaxed: the swap has acquired.
                    return word.load(Relaxed) | LOCKED;
                }
            }

            // P4. T2: HASHED, so that the owner that made this CPU head does not register it once more.
            node.state.store(HASHED, Relaxed);
            let halt = count_wait_of_head(platform, spin, slept);
            slept = true;
            shared.sleep(code.cpu(), halt, || word.load(Relaxed) & LOCKED_MASK == SLOW);
            if T::BOUNDED && has_been_released(word, node) {
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
        fence(SeqCst);
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

/// Counts that a head sleeps after a spin of `ticks`, once more if it has `slept`; returns what counts the time of the sleep.
fn count_wait_of_head<P: Platform>(platform: &P, ticks: u64, slept: bool) -> Event {
    platform.count(Event::PvWaitHead, 1);
    if slept {
        platform.count(Event::PvWaitAgain, 1);
        platform.count(Event::PvLatencySpinAgain, ticks);
        return Event::PvLatencyHaltAgain;
    }
    platform.count(Event::PvLatencySpinHead, ticks);
    Event::PvLatencyHaltHead
}

/// A spin that was given up.
struct Spin {
    /// Because the predecessor does not run.
    ended_early: bool,
    /// Time of the CPU that it took.
    ticks: u64,
}

/// P0: spins for `locked`. `None` once it is set.
fn spin_for_locked<T: Policy, P: Platform>(platform: &P, node: &Node, prev: &Node) -> Option<Spin> {
    let mut patience = Patience::new(platform);
    let mut ticks = 0;
    loop {
        // Relaxed: Q4 acquires.
        if node.locked.load(Relaxed) != 0 {
            return None;
        }
        let may_sleep = || !T::WORK_CONSERVING || platform.is_overcommitted();
        // Relaxed: a hint. Reading the predecessor's node is safe at any time, for nodes are never freed.
        let prev_sleeps = || prev.state.load(Relaxed) != RUNNING;
        let load_first = || mutant!("wc-early-ignores-load": may_sleep() => true);
        if T::WAIT_EARLY && patience.every(PREV_CHECK) && prev_sleeps() && load_first() {
            return Some(Spin { ended_early: true, ticks: ticks + patience.spent() });
        }
        if !patience.pause() {
            ticks += patience.spent();
            if may_sleep() {
                return Some(Spin { ended_early: false, ticks });
            }
            patience = Patience::new(platform);
        }
    }
}

/// Whether the unlock that took this head's entry out of the table has also released the lock: one more entry
/// does not make two.
fn has_been_released(word: &AtomicU32, node: &Node) -> bool {
    // Acquire: pairs with U2, so that the byte is not one from before it became SLOW.
    let taken_out = node.taken_out.load(Acquire) != 0;
    // Relaxed: as just said. While the byte is SLOW, the unlocker has yet to overwrite it: what this CPU
    // wrote there now would be lost.
    taken_out && word.load(Relaxed) & LOCKED_MASK != SLOW
}

/// U2: (*,*,3) -> (*,*,0), and kicks the head.
#[cold]
#[inline(never)]
fn unlock_slow<T: Policy, W: Word, D: Memory>(word: &AtomicU32, domain: &D, locked: u32) {
    // T14: a lock that is not held has no entry to look for; say what happened instead.
    assert!(locked == SLOW, "unlock of a lock whose locked byte is {locked}: not held, or overwritten");
    let shared = domain.shared();
    shared.platform.point(Point::SlowSeen);
    // T3: pairs with the release in `swap_slow`. The failed exchange orders nothing.
    fence(Acquire);
    let head = shared.deregister(word);
    shared.platform.point(Point::EntryRemoved);
    if T::BOUNDED {
        // Release: pairs with `has_been_released`. The head cannot leave its node before the lock is released below.
        shared.node(head).taken_out.store(1, Release);
    }
    // T4: the next owner may free the lock's memory. From here on, only the domain is touched.
    W::unlock(word);
    // The kick may be where the host takes this CPU away: not as the holder of anything.
    shared.platform.announce(Activity::Other);
    shared.platform.point(Point::SlowReleased);
    shared.kick(head.cpu());
}
