//! CLH lock (Craig 1993; Landin and Hagersten 1994): a queue in which every waiter spins on its predecessor's
//! node.
//!
//! ```text
//! tail -----------------------------------+      a node: busy   1 from lock to unlock
//!                                         v
//! [released] <-- [owner] <-- [waiter] <-- [last]        each CPU remembers its predecessor; nothing is linked
//! ```
//!
//! A CPU marks its node busy, swaps it into `tail`, and waits until the node that it got for it is not busy.
//! Unlock clears the flag and nothing else; the node stays behind, for the successor may be looking at it,
//! and the CPU goes on with the predecessor's. So nodes wander between CPUs, one more of them than there are
//! CPUs in the queue, and each lock keeps one: it gets that one from the domain's stock when it is first
//! taken.
//!
//! Trying is the difficult part: between the look at the last node (not busy: the lock is free) and the exchange of
//! `tail` the lock may have been taken and released, and the same node may be the last one again, busy on behalf of
//! another CPU. There is no way out of a CLH queue, so a CPU that tries says which node it looks at, and no CPU puts a
//! node into a queue while another one looks at that node:
//!
//! ```text
//! trying                               the CPU that the node has come to
//! Y1  looked_at += 1                   X1  swapped it out of `tail`, earlier
//! Y2  tail still names it, not busy    X2  looked_at = 0, else another node
//! Y3  exchange of `tail`               X3  busy := 1, swap it into `tail`
//! ```
//! Y1, Y2, X1 and X2 are sequentially consistent: if Y2 sees the node as X1 has not yet swapped it out, X2 sees Y1. If it sees
//! the node in its new place, it sees that it is busy. In the memory model of C and Rust, a Y2 that reads from before X1 comes before it in the
//! one order of these four accesses, so Y1 comes before X2 there, which reads it. Loom takes the four for AcqRel, which would not do (two
//! stores, each followed by a load); no model here shows the difference, and the argument stands alone.
//!
//! A lock that is dropped leaves its node with the last CPU that had it, or with none: the stock bounds how many locks
//! a kernel ever uses, rather than how many at a time.

use core::{mem::offset_of, ptr};

use crate::{
    contract::{Activity, Lock, Platform, Point, Queues, domain::domain},
    faults::mutant::mutant,
    memory::{
        CachePadded,
        sync::{AtomicU32, Ordering::*, array, const_unless_loom},
    },
    waiting::slots::{SLOTS, Slots},
};

/// CLH lock.
#[derive(Debug)]
pub struct Clh {
    /// The node of the last CPU in the queue; 0 until the lock is first taken.
    tail: AtomicU32,
}

/// State shared by the CLH locks of one kernel: the platform, 8 nodes for each CPU, and one for each of `LOCKS` locks.
#[derive(Debug)]
pub struct ClhDomain<P, const CPUS: usize, const LOCKS: usize = 64> {
    platform: P,
    cpus: [PerCpu; CPUS],
    stock: [CachePadded<Node>; LOCKS],
    /// Nodes of `stock` that have been given to locks.
    given: AtomicU32,
}

/// State of the acquisition that unlock needs.
#[derive(Debug)]
#[must_use = "without its token the lock cannot be released"]
pub struct ClhToken {
    slot: usize,
    mine: Name,
    predecessor: Name,
}

/// Names a node: 1 + its number, those of the CPUs first and then the stock. 0 is no node.
#[derive(Clone, Copy, Debug)]
struct Name(u32);

#[derive(Debug)]
struct PerCpu {
    own: CachePadded<Own>,
    /// Initial place of this CPU's nodes.
    nodes: [CachePadded<Node>; SLOTS],
}

/// Written by this CPU only.
#[derive(Debug)]
#[repr(C)]
struct Own {
    /// A slot is in use while its node is in a queue.
    in_use: Slots,
    /// The name of the node in each slot; 0: the one that was there at first.
    slots: [AtomicU32; SLOTS],
}

#[derive(Debug)]
struct Node {
    /// 1 while its CPU holds or waits for a lock.
    busy: AtomicU32,
    /// How many CPUs that try a lock look at it.
    looked_at: AtomicU32,
}

impl Node {
    const_unless_loom! {
        const fn new() -> Self {
            Self { busy: AtomicU32::new(0), looked_at: AtomicU32::new(0) }
        }
    }
}

impl PerCpu {
    const_unless_loom! {
        const fn new() -> Self {
            let own = Own { in_use: Slots::new(), slots: array![AtomicU32::new(0); SLOTS] };
            Self { own: CachePadded::new(own), nodes: array![CachePadded::new(Node::new()); SLOTS] }
        }
    }
}

domain!(ClhDomain<CPUS, LOCKS>, queues_in_memory);

impl<P, const CPUS: usize, const LOCKS: usize> ClhDomain<P, CPUS, LOCKS> {
    const_unless_loom! {
        /// The memory of `CPUS` CPUs and `LOCKS` locks.
        pub const fn new(platform: P) -> Self {
            const { assert!(CPUS >= 1 && CPUS * SLOTS + LOCKS < u32::MAX as usize) };
            Self {
                platform,
                cpus: array![PerCpu::new(); CPUS],
                stock: array![CachePadded::new(Node::new()); LOCKS],
                given: AtomicU32::new(0),
            }
        }
    }

    /// The queue itself is not in memory: each waiter keeps its predecessor to itself. The table is the stock.
    fn queues_in_memory(&self) -> Queues {
        Queues {
            nodes: ptr::from_ref(&self.cpus[0].nodes).addr(),
            cpu_bytes: size_of::<PerCpu>(),
            node_bytes: size_of::<CachePadded<Node>>(),
            nodes_per_cpu: SLOTS,
            in_use: ptr::from_ref(&self.cpus[0].own).addr(),
            locked: offset_of!(Node, busy),
            table: ptr::from_ref(&self.stock).addr(),
            table_entries: LOCKS,
            ..Queues::default()
        }
    }

    fn node(&self, name: Name) -> &Node {
        let index = name.0 as usize - 1;
        match self.cpus.get(index / SLOTS) {
            Some(cpu) => &cpu.nodes[index % SLOTS],
            None => &self.stock[index - CPUS * SLOTS],
        }
    }

    /// The node that a lock keeps from the first time it is taken. It has never been busy.
    #[cold]
    fn take_from_stock(&self) -> Name {
        // Relaxed: a number that no other lock gets.
        let given = self.given.fetch_add(1, Relaxed) as usize;
        assert!(given < LOCKS, "more than {LOCKS} CLH locks in one domain");
        Name((CPUS * SLOTS + given + 1) as u32)
    }
}

impl<P: Platform, const CPUS: usize, const LOCKS: usize> ClhDomain<P, CPUS, LOCKS> {
    /// Claims a free node of the calling CPU, and marks it busy. `None` if others look at all of them.
    #[inline]
    fn try_claim(&self) -> Option<(usize, Name)> {
        let cpu = self.platform.cpu();
        let own = &self.cpus[cpu].own;
        // Relaxed: only this CPU writes its slots.
        let in_slot = |slot: usize| match own.slots[slot].load(Relaxed) {
            0 => Name((cpu * SLOTS + slot + 1) as u32),
            name => Name(name),
        };
        // X2. Sequentially consistent: after X1, and against Y1 and Y2.
        let is_looked_at =
            |name| mutant!("clh-reuse-unseen": self.node(name).looked_at.load(SeqCst) != 0 => false);
        let slot = own.in_use.claim_where(cpu, |slot| !is_looked_at(in_slot(slot)))?;
        self.platform.point(Point::NodeClaimed);
        let name = in_slot(slot);
        // An interrupt between the look and the claim may have left another node here.
        if is_looked_at(name) {
            own.in_use.give_back(slot);
            return None;
        }
        // Relaxed: published by the swap of `tail`.
        self.node(name).busy.store(1, Relaxed);
        Some((slot, name))
    }

    /// Claims the node, after a pause if need be: a CPU that looks is about to try, and done with it in a few
    /// instructions.
    #[inline]
    fn claim(&self) -> (usize, Name) {
        loop {
            if let Some(claimed) = self.try_claim() {
                return claimed;
            }
            self.platform.pause();
        }
    }

    /// Puts a node that no other CPU looks at into a slot, and frees the slot.
    #[inline]
    fn give_back(&self, slot: usize, name: Name) {
        let own = &self.cpus[self.platform.cpu()].own;
        // Relaxed: as in `claim`.
        own.slots[slot].store(name.0, Relaxed);
        own.in_use.give_back(slot);
    }

    /// Waits until the predecessor has left, and returns its node.
    #[inline]
    fn wait_for(&self, predecessor: u32) -> Name {
        if predecessor == 0 {
            return self.take_from_stock();
        }
        // Acquire: pairs with the release in `unlock`.
        if self.node(Name(predecessor)).busy.load(Acquire) != 0 {
            self.wait_slow(Name(predecessor));
        }
        Name(predecessor)
    }

    #[cold]
    #[inline(never)]
    fn wait_slow(&self, predecessor: Name) {
        self.platform.announce(Activity::Waiter);
        // Acquire: as in `wait_for`.
        while self.node(predecessor).busy.load(Acquire) != 0 {
            self.platform.pause();
        }
    }
}

impl Clh {
    const_unless_loom! {
        /// A free lock.
        pub const fn new() -> Self {
            Self { tail: AtomicU32::new(0) }
        }
    }

    /// Y3: puts a node of the calling CPU behind node `tail`, which is not busy, if it is the last one still.
    #[inline]
    fn put_behind<P: Platform, const CPUS: usize, const LOCKS: usize>(
        &self,
        domain: &ClhDomain<P, CPUS, LOCKS>,
        tail: u32,
    ) -> Option<ClhToken> {
        let (slot, mine) = domain.try_claim()?;
        // As in `lock`; this is an X1, too.
        match self.tail.compare_exchange(tail, mine.0, SeqCst, Relaxed) {
            Ok(_) => Some(ClhToken { slot, mine, predecessor: domain.wait_for(tail) }),
            Err(_) => {
                domain.give_back(slot, mine);
                None
            }
        }
    }
}

impl<P: Platform, const CPUS: usize, const LOCKS: usize> Lock<ClhDomain<P, CPUS, LOCKS>> for Clh {
    type Token = ClhToken;

    #[inline]
    fn lock(&self, domain: &ClhDomain<P, CPUS, LOCKS>) -> ClhToken {
        let (slot, mine) = domain.claim();
        // Release: publishes the busy flag. Acquire: the predecessor's flag is the one of this wait, not of
        // an earlier one. Sequentially consistent: this is X1.
        let predecessor = self.tail.swap(mine.0, SeqCst);
        ClhToken { slot, mine, predecessor: domain.wait_for(predecessor) }
    }

    /// Fails, for no reason that the caller can see, if all its CPU's free nodes are being looked at.
    #[inline]
    fn try_lock(&self, domain: &ClhDomain<P, CPUS, LOCKS>) -> Option<ClhToken> {
        // Relaxed: looked at again in Y2, before anything is made of it.
        let tail = self.tail.load(Relaxed);
        if tail == 0 {
            // Never taken, and not named 0 again once it has been.
            return self.put_behind(domain, tail);
        }
        let last = domain.node(Name(tail));
        // Y1
        last.looked_at.fetch_add(1, SeqCst);
        // Y2. Acquire, the second: pairs with the release in `unlock`.
        let is_free = self.tail.load(SeqCst) == tail && last.busy.load(Acquire) == 0;
        let token = if is_free { self.put_behind(domain, tail) } else { None };
        // Release: Y3 is done before anybody finds the node unseen.
        last.looked_at.fetch_sub(1, Release);
        token
    }

    #[inline]
    fn unlock(&self, domain: &ClhDomain<P, CPUS, LOCKS>, ClhToken { slot, mine, predecessor }: ClhToken) {
        // Release: pairs with the acquire in `wait_for`.
        domain.node(mine).busy.store(0, mutant!("clh-relaxed-unlock": Release => Relaxed));
        domain.give_back(slot, mutant!("clh-keep-node": predecessor => mine));
    }
}
