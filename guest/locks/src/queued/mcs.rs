//! MCS lock (Mellor-Crummey and Scott, TOCS 1991): a queue in which every waiter spins on a line of its own.
//!
//! ```text
//! tail ------------------------------+        a node: next    the CPU behind, 0 if none is known
//!                                    v                locked  1 when its CPU may enter
//! [owner] --next--> [waiter] --next--> [last]
//! ```
//!
//! A CPU swaps its node into `tail`; if there was a node before, it links itself behind that one and waits
//! for `locked`. The owner's node stays queued until `unlock`, which hands over to `next`, or empties `tail`
//! if there is none. Nodes are named by number, not by address: no pointer is followed, so no code here is
//! unsafe.
//!
//! As the owner keeps its node, and locks need not be released in the order they were taken, a CPU uses any
//! of its eight nodes that is free.

use core::mem::offset_of;

use crate::{
    contract::{Activity, Lock, Platform, Queues, domain},
    faults::mutant::mutant,
    memory::{AtomicU32, CachePadded, Ordering::*, array, fresh},
    waiting::{SLOTS, SlotCode, Slots, await_next},
};

/// MCS lock.
#[derive(Debug)]
pub struct Mcs {
    /// 0: free. Otherwise the [`SlotCode`] of the last node in the queue.
    tail: AtomicU32,
}

/// The node of a held lock, for `unlock`.
#[derive(Debug)]
#[must_use = "without its token the lock cannot be released"]
pub struct McsToken(SlotCode);

#[derive(Debug)]
struct PerCpu {
    in_use: CachePadded<Slots>,
    nodes: [CachePadded<Node>; SLOTS],
}

#[derive(Debug)]
struct Node {
    /// SlotCode of the successor, 0 while none is known. Written by the successor.
    next: AtomicU32,
    /// 1 once this node's CPU may enter. Written by the predecessor.
    locked: AtomicU32,
}

domain! {
    /// State shared by the MCS locks of one kernel: the platform, and eight nodes for each CPU.
    McsDomain<CPUS> { cpus: PerCpu }
    assert!(CPUS >= 1 && CPUS < u32::MAX as usize / SLOTS);
    |domain| {
        let cpu = &domain.cpus[0];
        Queues::of(cpu, &cpu.nodes, &cpu.in_use, offset_of!(Node, next), offset_of!(Node, locked))
    }
}

impl<P, const CPUS: usize> McsDomain<P, CPUS> {
    fn node(&self, code: SlotCode) -> &Node {
        &self.cpus[code.cpu()].nodes[code.place()]
    }
}

impl<P: Platform, const CPUS: usize> McsDomain<P, CPUS> {
    /// Claims a free node of the calling CPU, and initialises it.
    #[inline]
    fn claim(&self) -> (SlotCode, &Node) {
        let cpu = self.platform.cpu();
        let per_cpu = &self.cpus[cpu];
        let slot = per_cpu.in_use.claim(cpu);
        let node = &per_cpu.nodes[slot];
        // Relaxed: published by the swap of `tail`.
        node.next.store(0, Relaxed);
        node.locked.store(0, Relaxed);
        (SlotCode::new(cpu, slot), node)
    }

    /// Gives back a node that is out of reach of all other CPUs.
    #[inline]
    fn give_back(&self, code: SlotCode) {
        self.cpus[code.cpu()].in_use.give_back(code.place());
    }

    /// Links `code` behind `prev` and waits until it is handed the lock.
    #[cold]
    #[inline(never)]
    fn wait_behind(&self, prev: SlotCode, code: SlotCode, node: &Node) {
        self.platform.announce(Activity::Waiter);
        // Release: a CPU that reads this link finds `locked` initialised. Pairs with the loads of `next` in `unlock`.
        self.node(prev).next.store(code.raw(), mutant!("mcs-relaxed-link": Release => Relaxed));
        // Acquire: pairs with the handoff in `unlock`.
        while node.locked.load(Acquire) == 0 {
            self.platform.pause();
        }
    }
}

fresh!(PerCpu {
    in_use: CachePadded::new(Slots::new()),
    nodes: array![CachePadded::new(Node::new()); SLOTS]
});

fresh!(Node { next: AtomicU32::new(0), locked: AtomicU32::new(0) });

fresh!(pub Mcs { tail: AtomicU32::new(0) });

impl<P: Platform, const CPUS: usize> Lock<McsDomain<P, CPUS>> for Mcs {
    type Token = McsToken;

    #[inline]
    fn lock(&self, domain: &McsDomain<P, CPUS>) -> McsToken {
        let (code, node) = domain.claim();
        // Acquire: pairs with the release that emptied the queue, or that initialised the predecessor's node.
        // Release: publishes the initialised node.
        let prev = self.tail.swap(code.raw(), mutant!("mcs-relaxed-tail": AcqRel => Relaxed));
        if let Some(prev) = SlotCode::from_raw(prev) {
            domain.wait_behind(prev, code, node);
        }
        McsToken(code)
    }

    #[inline]
    fn try_lock(&self, domain: &McsDomain<P, CPUS>) -> Option<McsToken> {
        // Relaxed: failing needs no ordering.
        if self.tail.load(Relaxed) != 0 {
            return None;
        }
        let (code, _) = domain.claim();
        // AcqRel: as in `lock`.
        match self.tail.compare_exchange(0, code.raw(), AcqRel, Relaxed) {
            Ok(_) => Some(McsToken(code)),
            Err(_) => {
                domain.give_back(code);
                None
            }
        }
    }

    #[inline]
    fn unlock(&self, domain: &McsDomain<P, CPUS>, McsToken(code): McsToken) {
        let node = domain.node(code);
        // Acquire: pairs with the link in `wait_behind`.
        let known = node.next.load(Acquire);
        // Release: pairs with the acquire of the next to swap `tail`.
        let alone = known == 0
            && self
                .tail
                .compare_exchange(code.raw(), 0, mutant!("mcs-relaxed-unlock": Release => Relaxed), Relaxed)
                .is_ok();
        if !mutant!("mcs-forget-late-link": alone => known == 0) {
            let next = if known != 0 { known } else { await_next(&domain.platform, &node.next) };
            let next = SlotCode::from_raw(next).expect("a link names a node");
            // Release: pairs with the wait in `wait_behind`.
            domain.node(next).locked.store(1, mutant!("mcs-relaxed-hand-over": Release => Relaxed));
        }
        domain.give_back(code);
    }
}
