//! Gifts of slices: to the owner of a lock, and to the predecessor in its queue.

use core::marker::PhantomData;

use crate::{
    contract::{Event, Platform},
    faults::mutant::mutant,
    memory::sync::{Ordering::*, fence},
    waiting::nesting::Code,
};

use super::{LOCKED, Looks, Node, OwnerQueue, OwnerYieldDomain, Rules, SLEEPY, owner};

/// A CPU that was found preempted.
pub(super) struct Preempted<R> {
    cpu: usize,
    /// Its [`yield_count`](Platform::yield_count) then.
    count: u64,
    rules: PhantomData<R>,
}

impl<R: Rules> Preempted<R> {
    pub(super) fn find<P: Platform>(platform: &P, cpu: usize) -> Option<Self> {
        if !platform.is_preempted(cpu) {
            return None;
        }
        let count = if R::IS_COMPLETE { platform.yield_count(cpu) } else { 0 };
        // The caller looks next whether that CPU still matters. Not before the count was read: it would lend its slice to a CPU that has
        // become idle. The fence orders the two loads; the host, which writes the count, has no part in it.
        fence(Acquire);
        // It may have got a pCPU between the look and the count, which then is that of a CPU that runs.
        if R::IS_COMPLETE && mutant!("powerpc-count-of-a-runner": !platform.is_preempted(cpu) => false) {
            return None;
        }
        Some(Self { cpu, count, rules: PhantomData })
    }

    /// Gives it this CPU's slice, unless it has run meanwhile.
    pub(super) fn give_slice<P: Platform>(&self, platform: &P) {
        if R::IS_COMPLETE && mutant!("powerpc-any-count": true => false) {
            let gave = platform.yield_to_seen(self.cpu, self.count);
            platform.count(Event::LockYielded, u64::from(gave));
        } else {
            platform.yield_to(Some(self.cpu));
        }
    }
}

impl<R: Rules> OwnerQueue<R> {
    /// Gives this CPU's slice to the owner, if `seen` still says who that is and it is preempted. `None`: it runs. Otherwise `tell` has been
    /// called, and the result says whether the slice was given.
    pub(super) fn yield_to_owner<P: Platform>(
        &self,
        platform: &P,
        seen: u32,
        tell: impl Fn(),
    ) -> Option<bool> {
        if seen & LOCKED == 0 {
            return None;
        }
        let preempted = Preempted::<R>::find(platform, owner(seen))?;
        if R::IS_COMPLETE {
            tell();
        }
        // Relaxed, both: hints. An exchange that fails leaves the next look to set the mark.
        if seen & SLEEPY == 0 {
            _ = self.word.compare_exchange(seen, seen | SLEEPY, Relaxed, Relaxed);
        }
        // On powerpc the mark is a change like any other: the look that sets it lends nothing, and the next one does.
        let mark = if R::IS_COMPLETE { 0 } else { SLEEPY };
        let is_owner = self.word.load(Relaxed) | mark == seen | mark;
        let gives = mutant!("owner-yield-stale-owner": is_owner => true);
        if gives {
            preempted.give_slice(platform);
        }
        if !R::IS_COMPLETE {
            tell();
        }
        Some(gives)
    }

    /// One round of waiting for the owner: a gift, or a pause. Counts the look.
    pub(super) fn wait_a_round<P: Platform>(
        &self,
        platform: &P,
        seen: u32,
        looks: &mut Looks<R>,
        tell: impl Fn(),
    ) {
        let gift = self.yield_to_owner(platform, seen, tell);
        if gift != Some(true) {
            platform.pause();
        }
        looks.count(seen, gift.is_some());
        // A lock that is not held has no owner to be marked. Relaxed: a hint.
        if looks.keep_mark() && seen & (LOCKED | SLEEPY) == LOCKED {
            _ = self.word.compare_exchange(seen, seen | SLEEPY, Relaxed, Relaxed);
        }
    }

    /// G3: waits to become head.
    pub(super) fn wait_as_waiter<P: Platform, const CPUS: usize>(
        &self,
        domain: &OwnerYieldDomain<P, CPUS>,
        prev_cpu: usize,
        node: &Node,
    ) {
        let platform = &domain.platform;
        // Acquire: pairs with the handoff in G6.
        while node.locked.load(Acquire) == 0 {
            let prev = Preempted::<R>::find(platform, prev_cpu);
            // Relaxed: a hint.
            let sleepy = node.sleepy.load(Relaxed) != 0;
            if !sleepy && mutant!("powerpc-prev-alone": prev.is_none() => true) {
                platform.pause();
                continue;
            }
            if !R::IS_COMPLETE && sleepy {
                pass_on(domain, node);
            }
            let tell = || {
                if R::IS_COMPLETE {
                    pass_on(domain, node)
                }
            };
            // Relaxed: a hint.
            match self.yield_to_owner(platform, self.word.load(Relaxed), tell) {
                Some(true) => continue,
                Some(false) => {
                    platform.pause();
                    continue;
                }
                None => {}
            }
            // The owner runs: a waiter that reported otherwise is late. A mark is wiped by its own CPU alone.
            node.sleepy.store(0, Relaxed);
            // Relaxed: the loop acquires. As head it has nothing to wait for here.
            match prev.filter(|_| node.locked.load(Relaxed) == 0) {
                Some(prev) => prev.give_slice(platform),
                None => platform.pause(),
            }
        }
    }
}

/// Tells the successor that the owner is preempted.
pub(super) fn pass_on<P, const CPUS: usize>(domain: &OwnerYieldDomain<P, CPUS>, node: &Node) {
    // Acquire: pairs with the link in G2, so that the mark is not wiped by the initialisation.
    if let Some(next) = Code::from_raw(node.next.load(Acquire)) {
        // Relaxed: a hint. Only this CPU makes the successor head, so its node is still in this queue.
        domain.node(next).sleepy.store(1, Relaxed);
    }
}
