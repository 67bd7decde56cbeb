//! Time-published MCS lock (He, Scherer and Scott, HiPC 2005): a queue in which a release skips the waiters that do not run.
//!
//! ```text
//! tail ------------------------------+     a node: next    who is behind, 0 if no CPU is known
//! holder, since                      v             status  WAITING, GRANTED or REMOVED
//! [owner] --next--> [waiter] --next--> [last]      stamp   when its CPU last looked
//! ```
//!
//! Waiters write the time to their nodes as they spin. A stale stamp shows that a CPU does not run, without any help of the host. A
//! waiter that sees a long section yields to its holder, the one CPU that it knows to be in everyone's way.
//!
//! # Steps
//! ```text
//! A1 lock    claim a node; WAITING, stamp := now; swap it into `tail`; no node before: has the lock
//! A2 wait    link behind p; spin until the status is not WAITING; stamp := now every few rounds
//! A3         the section is long: stamp := 0, yield to the holder, stamp := now
//! A4         REMOVED: A1 with the same node. GRANTED: has the lock
//!
//! Z1 unlock  c := own node
//! Z2         no node behind c: tail := 0 if c is the last, else find x, the next one
//! Z3         give c up: own node free, any other REMOVED
//! Z4         x is stale, and fewer than SCAN have been removed: c := x, Z2
//! Z5         holder := x, since := now; x GRANTED
//! ```
//! If Z2 finds that c is the last, it frees the lock, and gives c up.
//!
//! # Why it excludes
//! The tail is exchanged, so each node has one successor, and one CPU at a time is in Z1 to Z5: it has the lock. It gives the lock to the node
//! that it grants, or to the tail of which it has taken the last node away. A waiter writes its own status only before A1.
//!
//! # Why a node may be used again
//! Z2 reads the link of a node before it gives it up, and does not touch it afterwards. Its CPU uses it again when it has seen REMOVED. A
//! waiter never leaves by itself. So Z3 may store where the lock of the paper, whose waiters time out, has to exchange.
//!
//! The stamp is 0, which is stale, while its CPU yields: else a release would give the lock to a CPU that has just given its slice away.
//! Z5 names the next holder before that one runs, or waiters would yield to the last one.
//!
//! # How long a CPU waits
//! Those that are never found stale are served in order. One that is found stale goes to the end, each time: it has no bound. A release
//! looks at SCAN + 2 nodes at most.
//!
//! # What it is for
//! It shows what the host's knowledge is worth. Timestamps are enough to skip waiters that do not run. Where the holder does not run, a
//! waiter has to know the CPU to yield to.
//!
//! # Orderings
//! | release | acquire | what it is for |
//! |---|---|---|
//! | `tail` in Z2 | swap of `tail` in A1 | the critical section, where the lock was free |
//! | Z5 | A2 | the critical section |
//! | swap of `tail` in A1 | the same | the node is initialised, and so its link is not lost |
//! | link in A2 | Z2 | the node is initialised |
//! | Z3 | A2 | Z2 has read the link, before A1 clears it |

use core::{mem::offset_of, ptr};

use crate::{
    contract::{Activity, Event, Lock, Platform, Point, Queues, domain::domain},
    faults::mutant::mutant,
    memory::{
        CachePadded,
        sync::{AtomicU32, MODELLED, Ordering::*, Statistic, array, const_unless_loom},
    },
    waiting::slots::{SLOTS, SlotCode, Slots},
};

/// Most nodes that one release removes.
const SCAN: u32 = if MODELLED { 1 } else { 256 };
/// Rounds of spinning between two stamps.
const STAMP_EVERY: u32 = if MODELLED { 1 } else { 8 };
/// Rounds of spinning between two looks at how long the section lasts.
const LOOK_EVERY: u32 = if MODELLED { 2 } else { 64 };

/// States of a node. 0 while its CPU waits: see [`Queues::locked`].
const WAITING: u32 = 0;
const GRANTED: u32 = 1;
const REMOVED: u32 = 2;

/// Time-published MCS lock.
#[derive(Debug)]
pub struct McsTp {
    /// 0: free. Otherwise the [`SlotCode`] of the last node in the queue.
    tail: AtomicU32,
    /// The CPU that has the lock, and when it got it: hints.
    holder: Statistic,
    since: Statistic,
}

/// Memory that time-published MCS locks of one kernel share: the platform, and eight nodes for each CPU.
#[derive(Debug)]
pub struct McsTpDomain<P, const CPUS: usize> {
    platform: P,
    cpus: [PerCpu; CPUS],
}

/// The node of a held lock, for `unlock`.
#[derive(Debug)]
#[must_use = "without its token the lock cannot be released"]
pub struct McsTpToken(SlotCode);

#[derive(Debug)]
struct PerCpu {
    in_use: CachePadded<Slots>,
    nodes: [CachePadded<Node>; SLOTS],
}

#[derive(Debug)]
struct Node {
    /// SlotCode of the successor, 0 while none is known. Written by the successor.
    next: AtomicU32,
    /// [`WAITING`], [`GRANTED`] or [`REMOVED`]. Written by the CPU that releases the lock.
    status: AtomicU32,
    /// When this node's CPU last looked, in ticks; 0: it has given its slice away.
    stamp: Statistic,
}

domain!(McsTpDomain<CPUS>, queues_in_memory);

impl<P, const CPUS: usize> McsTpDomain<P, CPUS> {
    const_unless_loom! {
        /// The memory of `CPUS` CPUs, all nodes free.
        pub const fn new(platform: P) -> Self {
            const { assert!(CPUS >= 1 && CPUS < u32::MAX as usize / SLOTS) };
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
            locked: offset_of!(Node, status),
            ..Queues::default()
        }
    }

    fn node(&self, code: SlotCode) -> &Node {
        &self.cpus[code.cpu()].nodes[code.slot()]
    }
}

impl<P: Platform, const CPUS: usize> McsTpDomain<P, CPUS> {
    #[inline]
    fn claim(&self) -> (SlotCode, &Node) {
        let cpu = self.platform.cpu();
        let slot = self.cpus[cpu].in_use.claim(cpu);
        (SlotCode::new(cpu, slot), &self.cpus[cpu].nodes[slot])
    }

    /// The first part of A1. Relaxed: published by the swap of `tail`.
    #[inline]
    fn initialise(&self, node: &Node) {
        node.next.store(0, Relaxed);
        node.status.store(WAITING, Relaxed);
        node.stamp.store(self.now(), Relaxed);
    }

    /// Z3: gives a node up, which is not read afterwards. `own` is the node of the CPU that releases.
    fn give_up(&self, code: SlotCode, own: SlotCode) {
        if code == own {
            self.cpus[code.cpu()].in_use.give_back(code.slot());
        } else {
            self.platform.count(Event::LockSkipped, 1);
            // Release: pairs with A2. No test sees it weakened: loom lets no store pass the load of the link before it.
            self.node(code).status.store(REMOVED, Release);
        }
    }

    /// The time, never 0; of ticks that do not fit the lower half, which is enough for differences of a second.
    #[inline(always)]
    fn now(&self) -> usize {
        (self.platform.now() as usize).max(1)
    }

    /// Whether `then` is `ticks` ago, or 0. Clocks of two CPUs may differ: what is in the future is not.
    fn is_ago(&self, then: usize, ticks: u64) -> bool {
        let ago = self.now().wrapping_sub(then).cast_signed();
        then == 0 && !MODELLED || ago >= 0 && ago as u64 >= ticks
    }

    /// Z4
    fn is_stale(&self, node: &Node) -> bool {
        self.is_ago(node.stamp.load(Relaxed), self.platform.spin_threshold())
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
            Self { next: AtomicU32::new(0), status: AtomicU32::new(WAITING), stamp: Statistic::new(0) }
        }
    }
}

impl McsTp {
    const_unless_loom! {
        /// A free lock.
        pub const fn new() -> Self {
            Self { tail: AtomicU32::new(0), holder: Statistic::new(0), since: Statistic::new(0) }
        }
    }

    /// Tells waiters who has the lock. Relaxed: hints.
    #[inline(always)]
    fn name_holder(&self, cpu: usize, now: usize) {
        self.holder.store(cpu, Relaxed);
        self.since.store(now, Relaxed);
    }

    /// A2 to A4: whether it was granted the lock.
    #[cold]
    #[inline(never)]
    fn wait_behind<P: Platform, const CPUS: usize>(
        &self,
        domain: &McsTpDomain<P, CPUS>,
        prev: SlotCode,
        code: SlotCode,
        node: &Node,
    ) -> bool {
        let platform = &domain.platform;
        platform.announce(Activity::Waiter);
        // Release: pairs with Z2.
        domain.node(prev).next.store(code.0, mutant!("mcs-tp-relaxed-link": Release => Relaxed));
        let mut round = 0;
        loop {
            // Acquire: pairs with Z3 and Z5.
            match node.status.load(Acquire) {
                WAITING => {}
                status => return status == GRANTED,
            }
            platform.pause();
            // Counted up to here, and then anew: a model checker compares states.
            round = (round + 1) % LOOK_EVERY;
            if round.is_multiple_of(STAMP_EVERY) {
                node.stamp.store(domain.now(), Relaxed);
            }
            // Half as long as what makes a waiter stale: who yields at once is back before that.
            if round == 0 && domain.is_ago(self.since.load(Relaxed), platform.spin_threshold() / 2) {
                // A3
                platform.count(Event::LockYielded, 1);
                node.stamp.store(0, Relaxed);
                platform.yield_to(Some(self.holder.load(Relaxed)));
                node.stamp.store(domain.now(), Relaxed);
            }
        }
    }

    /// Z2: the node behind `code`; `None` if there is none, and the lock is free now.
    fn next_or_free<P: Platform, const CPUS: usize>(
        &self,
        domain: &McsTpDomain<P, CPUS>,
        code: SlotCode,
    ) -> Option<SlotCode> {
        let node = domain.node(code);
        // Acquire, here and below: pairs with the link in A2.
        let mut next = node.next.load(Acquire);
        if next == 0 {
            // Release: pairs with the swap of `tail`.
            let release = mutant!("mcs-tp-relaxed-unlock": Release => Relaxed);
            if self.tail.compare_exchange(code.0, 0, release, Relaxed).is_ok() {
                return None;
            }
            while next == 0 {
                domain.platform.pause();
                next = node.next.load(Acquire);
            }
        }
        Some(SlotCode(next))
    }
}

impl<P: Platform, const CPUS: usize> Lock<McsTpDomain<P, CPUS>> for McsTp {
    type Token = McsTpToken;

    #[inline]
    fn lock(&self, domain: &McsTpDomain<P, CPUS>) -> McsTpToken {
        let (code, node) = domain.claim();
        loop {
            domain.platform.point(Point::NodeClaimed);
            domain.initialise(node);
            // Acquire: pairs with Z2. Release: publishes the node.
            let prev = self.tail.swap(code.0, mutant!("mcs-tp-relaxed-tail": AcqRel => Relaxed));
            domain.platform.point(Point::TailPublished);
            if prev == 0 {
                self.name_holder(code.cpu(), domain.now());
                break;
            }
            if self.wait_behind(domain, SlotCode(prev), code, node) {
                break;
            }
        }
        McsTpToken(code)
    }

    #[inline]
    fn try_lock(&self, domain: &McsTpDomain<P, CPUS>) -> Option<McsTpToken> {
        // Relaxed: failing needs no ordering.
        if self.tail.load(Relaxed) != 0 {
            return None;
        }
        let (code, node) = domain.claim();
        domain.initialise(node);
        // AcqRel: as in `lock`.
        if self.tail.compare_exchange(0, code.0, AcqRel, Relaxed).is_err() {
            domain.give_up(code, code);
            return None;
        }
        self.name_holder(code.cpu(), domain.now());
        Some(McsTpToken(code))
    }

    #[inline]
    fn unlock(&self, domain: &McsTpDomain<P, CPUS>, McsTpToken(own): McsTpToken) {
        let mut code = own;
        for removed in 0.. {
            // Z2 comes before Z3: the node is not read afterwards.
            let next = self.next_or_free(domain, code);
            domain.give_up(code, own);
            let Some(next) = next else { return };
            let node = domain.node(next);
            if removed == SCAN || !mutant!("mcs-tp-never-skip": domain.is_stale(node) => false) {
                self.name_holder(next.cpu(), domain.now());
                // Z5. Release: pairs with A2.
                node.status.store(GRANTED, mutant!("mcs-tp-relaxed-grant": Release => Relaxed));
                return;
            }
            code = next;
        }
    }
}
