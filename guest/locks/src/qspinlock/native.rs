//! The native lock: pending bit, then queue, all spinning.

use super::{
    domain::{Memory, Shared},
    mode::{Mode, sealed},
    node::Node,
    queue::{self, Queued},
    word::{LOCKED_MASK, LOCKED_PENDING, PENDING, Word, try_lock},
};
use crate::{
    contract::{Activity, Event, Platform, Point},
    faults::mutant::mutant,
    memory::sync::{AtomicU32, MODELLED, Ordering::*},
    waiting::nesting::Code,
};

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
        queue::lock_slow::<Self, W, D>(word, domain, seen);
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

    fn wait_node<P: Platform>(_: Shared<'_, P>, _: Code, _: &Node, _: &Node) {}

    /// Q5: waits for the owner and for the pending CPU to leave.
    fn wait_head<W: Word, P: Platform>(word: &AtomicU32, shared: Shared<'_, P>, _: Code, _: &Node) -> u32 {
        loop {
            // Acquire: pairs with unlock.
            let seen = word.load(mutant!("relaxed-head": Acquire => Relaxed));
            if seen & LOCKED_PENDING == 0 {
                return seen;
            }
            shared.platform.pause();
        }
    }

    fn kick_node<W: Word, P: Platform>(_: &AtomicU32, _: Shared<'_, P>, _: Code, _: &Node) {}
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
