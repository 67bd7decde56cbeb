//! The queue, which native and paravirtual locks share.

use super::{
    domain::{Memory, Shared},
    node::{HEAD, Node},
    word::{LOCKED, LOCKED_PENDING, PENDING, Word},
};
use crate::{
    contract::{Activity, Event, Platform, Point},
    faults::mutant::mutant,
    memory::sync::{AtomicU32, Ordering::*},
    waiting::nesting::Code,
};

/// Differences between a native and a paravirtual lock around the same queue.
pub(super) trait Queued {
    /// N1 to N6: tries to acquire without a queue node.
    fn lock_unqueued<W: Word, P: Platform>(word: &AtomicU32, shared: Shared<'_, P>, seen: u32) -> bool;

    /// Q2: the last try before queueing, and the only way in when there is no node.
    fn try_enter<W: Word, P: Platform>(word: &AtomicU32, platform: &P) -> bool;

    /// Q4: may sleep until `node.locked`.
    fn wait_node<P: Platform>(shared: Shared<'_, P>, code: Code, node: &Node, prev: &Node);

    /// Q5: waits for the lock to become free; returns the word as last seen, locked if this has claimed it.
    fn wait_head<W: Word, P: Platform>(
        word: &AtomicU32,
        shared: Shared<'_, P>,
        code: Code,
        node: &Node,
    ) -> u32;

    /// Q8: the owner has made `next` head.
    fn kick_node<W: Word, P: Platform>(word: &AtomicU32, shared: Shared<'_, P>, next: Code, next_node: &Node);
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
    let per_cpu = shared.cpu(cpu);
    let level = per_cpu.nesting().enter();
    match per_cpu.node(level) {
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
    per_cpu.nesting().leave();
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
        M::wait_node(shared, code, node, prev);
        // Acquire: pairs with the handoff in Q8. It makes the previous head's claim of the lock, which may
        // be a plain store (Q7), visible to Q5.
        while node.locked.load(Acquire) == 0 {
            platform.pause();
        }
    }

    // Q5: (*,x,y) -> (*,0,0), or (*,0,1) if the mode has claimed the lock already.
    platform.announce(Activity::Head);
    let seen = M::wait_head::<W, P>(word, shared, code, node);
    if let Some((next, next_node)) = claim::<W, P>(word, shared, code, node, seen) {
        M::kick_node::<W, P>(word, shared, next, next_node);
    }
}

/// Counts queue entries of nested levels.
pub(crate) fn count_level<P: Platform>(platform: &P, code: Code) {
    match code.level() {
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
    let next = await_next(shared.platform, node);
    let next_node = shared.node(next);
    // Release: pairs with the wait in Q4. From here on this node is not needed, but `leave` is what frees it.
    next_node.locked.store(verdict, mutant!("relaxed-hand-over": Release => Relaxed));
    shared.platform.point(Point::HandedOver);
    (next, next_node)
}

/// Q8: the successor of a node that is not the last one; its link is on the way.
fn await_next<P: Platform>(platform: &P, node: &Node) -> Code {
    loop {
        // Acquire: pairs with the link in Q4.
        if let Some(next) = Code::from_raw(node.next.load(Acquire)) {
            return next;
        }
        platform.pause();
    }
}

#[cfg(all(test, not(any(loom, shuttle, liveness))))]
mod tests {
    use super::*;
    use crate::{
        contract::test_platform::IDLE,
        qspinlock::{domain::PerCpu, table::Table, word::Whole},
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
