//! P1 of the work-conserving lock: how its head waits.
//!
//! The head of the PV qspinlock of Linux 4.5 and later announces itself at once, which forbids stealing, and so it gets
//! the next turn. Every turn of a head has a price. If a CPU sleeps behind it, that CPU has to be kicked, and on a
//! virtual machine a kick costs as much as thirty short critical sections. A lock that is never free for long has an
//! owner that wants it back at once: a row of heads turns the time of such a lock into kicks.
//!
//! This head is courteous instead:
//! 1. It takes a lock that seems unwanted: free at two looks in a row, or at one if no CPU sleeps behind it. The
//!    looks get rarer while the lock is held, for each of them takes the line away from the owner.
//! 2. It closes the lock to stealing after a handoff bound, so that no CPU waits forever, and owners change about as
//!    often as slices end.
//! 3. Before it insists it gives up a slice that is about to end, for the lock is closed to all while such a head is off its CPU.
//!    Then it wakes its successor, on its own time. When it has the lock there is no CPU to kick.
//! 4. It spins on while no other CPU waits for its physical CPU; else it sleeps as ever, once in a tenure. More often it
//!    would cost the owner a kick each time: it lets others run, and looks again. Unless it holds another lock
//!    ([`Platform::is_in_section`]): others wait for that one, and the vCPU that gets its slice may keep it off for
//!    long. Then it sleeps,
//!    for the kick brings it back.

use super::{
    domain::Shared,
    head::insist,
    node::{HALTED, Node, RUNNING},
    word::{LOCKED, LOCKED_PENDING, Word},
};
use crate::{
    contract::Platform,
    faults::mutant::mutant,
    memory::sync::{AtomicU32, MODELLED, Ordering::*},
    waiting::{nesting::Code, patience::Patience, slice::give_up_unless_in_section},
};

/// After how many spin thresholds the head insists. Shorter turns would be fairer in the short run and cost more
/// changes; at the default threshold this is two thirds of a millisecond.
const TENURE: u64 = if MODELLED { 2 } else { 32 };

/// Rounds between two looks at the lock: the fewest, and the most.
const LOOK_EVERY: (u32, u32) = if MODELLED { (1, 2) } else { (16, 256) };

/// A head that waits.
#[derive(Debug)]
pub(super) struct Courtesy<'a, P> {
    shared: Shared<'a, P>,
    node: &'a Node,
    since: u64,
    slept: Option<u64>,
}

impl<'a, P: Platform> Courtesy<'a, P> {
    /// `node` has just become head.
    pub(super) fn new(shared: Shared<'a, P>, node: &'a Node) -> Self {
        Self { shared, node, since: shared.platform.now(), slept: None }
    }

    /// P1: spins for the lock. `Some` with the word as last seen, locked if this took the lock; `None`: time to sleep.
    pub(super) fn spin<W: Word>(&mut self, word: &AtomicU32) -> Option<u32> {
        let platform = self.shared.platform;
        loop {
            if let Some(seen) = self.take_if_unwanted::<W>(word) {
                return Some(seen);
            }
            if self.is_over(self.since) {
                // A head that has just closed the lock must not lose its CPU.
                if mutant!("wc-insist-at-the-end": platform.slice_ends_soon() => false) {
                    give_up_unless_in_section(platform);
                }
                self.wake_ahead();
                if let Some(seen) = insist::<W, P>(word, platform, &mut Patience::new(platform)) {
                    return Some(seen);
                }
            }
            if !platform.is_overcommitted() {
                continue;
            }
            let may_sleep = self.slept.is_none_or(|slept| self.is_over(slept));
            if platform.is_in_section() || may_sleep {
                self.slept = Some(platform.now());
                return None;
            }
            platform.yield_to(None);
        }
    }

    fn is_over(&self, since: u64) -> bool {
        let platform = self.shared.platform;
        platform.now().wrapping_sub(since) >= TENURE * platform.spin_threshold()
    }

    /// (*,0,0) -> (*,0,1), for as long as patience lasts.
    fn take_if_unwanted<W: Word>(&self, word: &AtomicU32) -> Option<u32> {
        let mut patience = Patience::new(self.shared.platform);
        let (mut free_before, mut every) = (false, LOOK_EVERY.0);
        loop {
            // Relaxed: `steal` is what acquires. So is the link: whether anybody is there, not who.
            let seen = word.load(Relaxed);
            let free = seen & LOCKED_PENDING == 0;
            let unwanted = || free_before || self.node.next.load(Relaxed) == 0;
            if free && unwanted() && W::steal(word, seen) {
                return Some(seen | LOCKED);
            }
            free_before = free;
            if !free {
                every = (every * 2).min(LOOK_EVERY.1);
            }
            for _ in 0..every {
                if !patience.pause() {
                    return None;
                }
            }
        }
    }

    /// Wakes the next in the queue, which is about to become head, if he sleeps.
    ///
    /// K1 then finds RUNNING and does not register him. If he has gone to sleep again by then, it finds HALTED as
    /// ever. He cannot leave his node before this one has handed over.
    fn wake_ahead(&self) {
        // Acquire: pairs with the link in Q4, as in `await_next`.
        let Some(next) = Code::from_raw(self.node.next.load(Acquire)) else { return };
        let state = &self.shared.node(next).state;
        // Relaxed: `kick` is what makes it visible to one who looked before it; nothing is read through it.
        let slept = state.compare_exchange(HALTED, RUNNING, Relaxed, Relaxed).is_ok();
        if slept {
            self.shared.kick(next.cpu());
        }
    }
}
