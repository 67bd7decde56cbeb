//! Compact queue lock that moves waiters which do not run out of the way: CNA (Dice and Kogan, EuroSys 2019), whose release prefers
//! waiters of its own socket, with another predicate. Here it prefers waiters that the host has not taken off their CPUs.
//!
//! ```text
//! tail ---------------------------------------+   a node: next    who is behind, 0 if no CPU is known
//!                                             v           locked  0 waits; 1 owner, no CPU is aside; else owner, and who is
//! [owner] --next--> [waiter] --next--> [last]             last    of the first one aside: the last one aside
//!    |                                                    passed  of the first one aside: how often it was overtaken
//!    +--locked----> [aside] --next--> [aside]
//! ```
//!
//! Waiters that do not run are moved aside, into a second queue that the owner hands to the next owner. The first one aside comes back,
//! and all others with it, as soon as it runs, or when it has been overtaken MOST times.
//!
//! # Steps
//! ```text
//! H1 lock    claim a node; initialise it; swap it into `tail`; no node before: has the lock
//! H2 wait    link behind p; spin until locked is not 0
//!
//! H3 unlock  no node behind: tail := 0, or the last one aside, if this is the last; then nothing, or H4 without a rest
//!            else find the next one
//! H4         one is aside, and runs, or was overtaken MOST times: link the last one aside to the next one; grant the first one aside
//! H5 scan    the next one does not run, was not overtaken MOST times, and there is one behind it: put it aside, and look at that one
//! H6         count that the first one aside is overtaken; grant
//! ```
//!
//! # Why it excludes
//! As [`Mcs`](super::Mcs): a node has one successor, and the owner alone reads links, moves nodes, and grants to one of them, or
//! swaps the tail away from its own node to free the lock.
//!
//! # Why no waiter is lost
//! All that wait are aside or behind the owner, in two chains without a node in common. H5 does not touch the last node, which a newcomer
//! is about to link to: the next one's link must be known. Where H3 makes the last one aside the tail, that node's link is 0, and a
//! newcomer writes it.
//!
//! # How long a CPU waits
//! Both chains, the second one first, are in the order of arrival. So a CPU is overtaken while it is aside, and each time the first one
//! aside counts. That one arrived no later, and counts to MOST in all. So a CPU with q CPUs before it in the queue is overtaken
//! (q + 1) * MOST times at most: (N - 1) * MOST.
//!
//! # What it is for
//! It shows how much of a strict queue's loss is that of preempted waiters. A preempted holder still stops it, and so does a waiter that is
//! preempted after it was granted the lock.
//!
//! # Orderings
//! | release | acquire | what it is for |
//! |---|---|---|
//! | H3, where the lock becomes free | swap of `tail` in H1 | the critical section |
//! | grant | H2 | the critical section; both chains, which only owners look at |
//! | swap of `tail` in H1 | the same | the node is initialised, and so its link is not lost |
//! | link in H2 | H3, H5 | the node is initialised |
//! | H3, where the last one aside becomes the tail | swap of `tail` in H1 | that one's link is 0, before it is written |

use core::{mem::offset_of, ptr};

use crate::{
    contract::{Activity, Event, Lock, Platform, Point, Queues, domain::domain},
    faults::mutant::mutant,
    memory::{
        CachePadded,
        sync::{AtomicU32, MODELLED, Ordering::*, array, const_unless_loom},
    },
    waiting::slots::{SLOTS, SlotCode, Slots},
};

/// How often the first one aside is overtaken, at most, in one wait.
const MOST: u32 = if MODELLED { 2 } else { 64 };
/// Most nodes that one release puts aside.
const SCAN: usize = if MODELLED { 2 } else { 256 };

/// CNA lock whose predicate is whether a waiter runs.
#[derive(Debug)]
pub struct CnaLive {
    /// 0: free. Otherwise the [`SlotCode`] of the last node in the queue.
    tail: AtomicU32,
}

/// Memory that all such locks of one kernel share: the platform, and eight nodes for each CPU.
#[derive(Debug)]
pub struct CnaDomain<P, const CPUS: usize> {
    platform: P,
    cpus: [PerCpu; CPUS],
}

/// The node of a held lock, for `unlock`.
#[derive(Debug)]
#[must_use = "without its token the lock cannot be released"]
pub struct CnaToken(SlotCode);

/// The value of `locked` that tells a new owner who is first aside. The lowest bit is set, see [`Queues::locked`].
const fn granted(aside: Option<SlotCode>) -> u32 {
    match aside {
        Some(first) => first.0 << 1 | 1,
        None => 1,
    }
}

#[derive(Debug)]
struct PerCpu {
    in_use: CachePadded<Slots>,
    nodes: [CachePadded<Node>; SLOTS],
}

#[derive(Debug)]
struct Node {
    /// SlotCode of the successor, 0 while none is known. Written by the successor, and by owners when it is known.
    next: AtomicU32,
    /// 0 while its CPU waits; then see [`granted`].
    locked: AtomicU32,
    /// The last one aside, in the node of the first one. Only owners use it, and the next field.
    last: AtomicU32,
    /// How often it was overtaken while it was the first one aside.
    passed: AtomicU32,
}

domain!(CnaDomain<CPUS>, queues_in_memory);

impl<P, const CPUS: usize> CnaDomain<P, CPUS> {
    const_unless_loom! {
        /// The memory of `CPUS` CPUs, all nodes free.
        pub const fn new(platform: P) -> Self {
            const { assert!(CPUS >= 1 && CPUS < (u32::MAX as usize >> 1) / SLOTS) };
            Self { platform, cpus: array![PerCpu::new(); CPUS] }
        }
    }

    fn queues_in_memory(&self) -> Queues {
        Queues {
            nodes: ptr::from_ref(&self.cpus[0].nodes).addr(),
            cpu_bytes: size_of::<PerCpu>(),
            node_bytes: size_of::<CachePadded<Node>>(),
            nodes_per_cpu: SLOTS,
            in_use: ptr::from_ref(&self.cpus[0].in_use).addr(),
            next: offset_of!(Node, next),
            locked: offset_of!(Node, locked),
            ..Queues::default()
        }
    }

    fn node(&self, code: SlotCode) -> &Node {
        &self.cpus[code.cpu()].nodes[code.slot()]
    }
}

impl<P: Platform, const CPUS: usize> CnaDomain<P, CPUS> {
    /// Claims a free node of the calling CPU, and initialises it.
    #[inline]
    fn claim(&self) -> (SlotCode, &Node) {
        let cpu = self.platform.cpu();
        let slot = self.cpus[cpu].in_use.claim(cpu);
        let node = &self.cpus[cpu].nodes[slot];
        self.platform.point(Point::NodeClaimed);
        // Relaxed: published by the swap of `tail`.
        node.next.store(0, Relaxed);
        node.locked.store(0, Relaxed);
        node.passed.store(0, Relaxed);
        (SlotCode::new(cpu, slot), node)
    }

    #[inline]
    fn give_back(&self, code: SlotCode) {
        self.cpus[code.cpu()].in_use.give_back(code.slot());
    }

    /// H2
    #[cold]
    #[inline(never)]
    fn wait_behind(&self, prev: SlotCode, code: SlotCode, node: &Node) {
        self.platform.announce(Activity::Waiter);
        // Release: pairs with H3 and H5.
        self.node(prev).next.store(code.0, mutant!("cna-relaxed-link": Release => Relaxed));
        // Acquire: pairs with `grant`.
        while node.locked.load(Acquire) == 0 {
            self.platform.pause();
        }
    }

    fn await_next(&self, node: &Node) -> SlotCode {
        loop {
            // Acquire: pairs with the link in H2.
            if let Some(next) = SlotCode::from_raw(node.next.load(Acquire)) {
                return next;
            }
            self.platform.pause();
        }
    }

    fn grant(&self, code: SlotCode, aside: Option<SlotCode>) {
        // Release: pairs with H2.
        self.node(code).locked.store(granted(aside), mutant!("cna-relaxed-grant": Release => Relaxed));
    }

    /// Whether a node may be overtaken once more, and does not run. Relaxed: only owners use the count.
    fn is_skipped(&self, code: SlotCode) -> bool {
        let may_be = mutant!("cna-pass-for-ever": self.node(code).passed.load(Relaxed) < MOST => true);
        may_be && self.platform.is_preempted(code.cpu())
    }

    /// H5: puts waiters aside, from `next` on. Returns who is to be granted the lock, and who is first aside then.
    /// Relaxed, but for links: only owners use what is read and written here.
    fn put_aside(&self, mut next: SlotCode, mut aside: Option<SlotCode>) -> (SlotCode, Option<SlotCode>) {
        for _ in 0..SCAN {
            if !self.is_skipped(next) {
                break;
            }
            let node = self.node(next);
            // Acquire: pairs with the link in H2.
            let Some(behind) = SlotCode::from_raw(node.next.load(Acquire)) else { break };
            self.platform.count(Event::LockSkipped, 1);
            node.next.store(0, Relaxed);
            match aside {
                Some(first) => {
                    let last = SlotCode(self.node(first).last.load(Relaxed));
                    self.node(last).next.store(next.0, Relaxed);
                    self.node(first).last.store(next.0, Relaxed);
                }
                None => {
                    node.last.store(next.0, Relaxed);
                    aside = Some(next);
                }
            }
            next = behind;
        }
        (next, aside)
    }
}

impl PerCpu {
    const_unless_loom! {
        const fn new() -> Self {
            Self { in_use: CachePadded::new(Slots::new()), nodes: array![CachePadded::new(Node::new()); SLOTS] }
        }
    }
}

impl Node {
    const_unless_loom! {
        const fn new() -> Self {
            Self {
                next: AtomicU32::new(0),
                locked: AtomicU32::new(0),
                last: AtomicU32::new(0),
                passed: AtomicU32::new(0),
            }
        }
    }
}

impl CnaLive {
    const_unless_loom! {
        /// A free lock.
        pub const fn new() -> Self {
            Self { tail: AtomicU32::new(0) }
        }
    }

    /// H3 to H6.
    fn hand_over<P: Platform, const CPUS: usize>(&self, domain: &CnaDomain<P, CPUS>, code: SlotCode) {
        let node = domain.node(code);
        // Relaxed, here and below: only owners use what the last one has left.
        let aside = SlotCode::from_raw(node.locked.load(Relaxed) >> 1);
        // H3. Acquire: pairs with the link in H2.
        let next = match SlotCode::from_raw(node.next.load(Acquire)) {
            Some(next) => next,
            None => {
                let last = aside.map_or(0, |first| domain.node(first).last.load(Relaxed));
                // Release: pairs with the swap of `tail`.
                let release = mutant!("cna-relaxed-unlock": Release => Relaxed);
                if self.tail.compare_exchange(code.0, last, release, Relaxed).is_ok() {
                    return aside.into_iter().for_each(|first| domain.grant(first, None));
                }
                domain.await_next(node)
            }
        };
        if let Some(first) = aside
            && !domain.is_skipped(first)
        {
            // H4
            let last = SlotCode(domain.node(first).last.load(Relaxed));
            mutant!("cna-forget-the-rest": domain.node(last).next.store(next.0, Relaxed) => ());
            return domain.grant(first, None);
        }
        let (next, aside) = domain.put_aside(next, aside);
        // H6
        if let Some(first) = aside {
            let passed = &domain.node(first).passed;
            passed.store(passed.load(Relaxed) + 1, Relaxed);
        }
        domain.grant(next, aside);
    }
}

impl<P: Platform, const CPUS: usize> Lock<CnaDomain<P, CPUS>> for CnaLive {
    type Token = CnaToken;

    #[inline]
    fn lock(&self, domain: &CnaDomain<P, CPUS>) -> CnaToken {
        let (code, node) = domain.claim();
        // Acquire: pairs with H3. Release: publishes the node.
        let prev = self.tail.swap(code.0, mutant!("cna-relaxed-tail": AcqRel => Relaxed));
        domain.platform.point(Point::TailPublished);
        if let Some(prev) = SlotCode::from_raw(prev) {
            domain.wait_behind(prev, code, node);
        }
        CnaToken(code)
    }

    #[inline]
    fn try_lock(&self, domain: &CnaDomain<P, CPUS>) -> Option<CnaToken> {
        // Relaxed: failing needs no ordering.
        if self.tail.load(Relaxed) != 0 {
            return None;
        }
        let (code, _) = domain.claim();
        // AcqRel: as in `lock`.
        match self.tail.compare_exchange(0, code.0, AcqRel, Relaxed) {
            Ok(_) => Some(CnaToken(code)),
            Err(_) => {
                domain.give_back(code);
                None
            }
        }
    }

    #[inline]
    fn unlock(&self, domain: &CnaDomain<P, CPUS>, CnaToken(code): CnaToken) {
        self.hand_over(domain, code);
        domain.give_back(code);
    }
}
