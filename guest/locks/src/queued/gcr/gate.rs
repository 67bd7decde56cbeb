//! The gate of a lock with restricted concurrency: it counts who races, and keeps all others in a queue, asleep.
//!
//! The steps J0 to J6 and L2 of the [module](super).

use core::{mem::offset_of, ptr};

use super::{ACTIVE, APPROVED, PROMOTE, SLEEPS};
use crate::{
    contract::{Activity, Event, Platform, Point, Queues, domain::domain},
    faults::mutant::mutant,
    memory::sync::{AtomicU32, Ordering::*, array, const_unless_loom, fence},
    waiting::{
        nesting::{Code, LEVELS, Nesting},
        patience::Patience,
        wake::{KickStamp, OF_SPINLOCKS},
    },
};

/// States of a node. The lowest byte is not 0 once its CPU is first: see [`Queues::locked`].
const RUNNING: u32 = 0;
/// Sleeps, or is about to, and is not first.
const HALTED: u32 = 1 << 8;
/// Is about to be made first by a CPU that has found it HALTED.
const HASHED: u32 = 2 << 8;
/// Is first.
const FIRST: u32 = 1;

/// A word and two links: see the table of the [module](super).
#[derive(Debug)]
#[repr(C)]
pub(super) struct Gate {
    pub(super) word: AtomicU32,
    /// Code of the first in the queue, and of the last one; 0: there is no queue.
    first: AtomicU32,
    tail: AtomicU32,
}

/// Memory that all such locks of one kernel share: the platform, and four nodes for each CPU.
#[derive(Debug)]
pub struct GcrDomain<P, const CPUS: usize> {
    platform: P,
    cpus: [PerCpu; CPUS],
}

#[derive(Debug)]
#[repr(C, align(64))]
struct PerCpu {
    /// Written by neighbours in a queue.
    nodes: [Node; LEVELS],
    own: Own,
}

/// The line that this CPU writes, but for the stamp of a kick.
#[derive(Debug)]
#[repr(C, align(64))]
struct Own {
    nesting: Nesting,
    /// Releases since this CPU let the first of a queue in. An interrupt may lose one.
    releases: AtomicU32,
    kicked: KickStamp,
}

/// A CPU in a queue.
#[derive(Debug)]
struct Node {
    /// Code of the successor, 0 while none is known. Written by the successor.
    next: AtomicU32,
    /// [`RUNNING`], [`HALTED`], [`HASHED`] or [`FIRST`].
    state: AtomicU32,
}

impl Node {
    const_unless_loom! {
        const fn new() -> Self {
            Self { next: AtomicU32::new(0), state: AtomicU32::new(RUNNING) }
        }
    }
}

impl PerCpu {
    const_unless_loom! {
        const fn new() -> Self {
            let own = Own { nesting: Nesting::new(), releases: AtomicU32::new(0), kicked: KickStamp::new() };
            Self { nodes: array![Node::new(); LEVELS], own }
        }
    }
}

domain!(GcrDomain<CPUS>, queues_in_memory);

impl<P, const CPUS: usize> GcrDomain<P, CPUS> {
    const_unless_loom! {
        /// The memory of `CPUS` CPUs, none of which waits.
        pub const fn new(platform: P) -> Self {
            const { assert!(CPUS < 1 << 16, "the lock word cannot count so many CPUs") };
            Self { platform, cpus: array![PerCpu::new(); CPUS] }
        }
    }

    fn queues_in_memory(&self) -> Queues {
        Queues {
            nodes: ptr::from_ref(&self.cpus[0].nodes).addr(),
            cpu_bytes: size_of::<PerCpu>(),
            node_bytes: size_of::<Node>(),
            nodes_per_cpu: LEVELS,
            in_use: ptr::from_ref(&self.cpus[0].own.nesting).addr(),
            next: offset_of!(Node, next),
            locked: offset_of!(Node, state),
            ..Queues::default()
        }
    }

    fn node(&self, code: Code) -> &Node {
        &self.cpus[code.cpu()].nodes[code.level()]
    }
}

impl<P: Platform, const CPUS: usize> GcrDomain<P, CPUS> {
    fn sleep(&self, cpu: usize, still: impl Fn() -> bool) {
        OF_SPINLOCKS.sleep(&self.platform, &self.cpus[cpu].own.kicked, still);
    }

    /// After a release: kicks the CPU that [`Gate::leave`] has found.
    pub(super) fn let_in(&self, first: Option<Code>) {
        if let Some(first) = first {
            self.platform.announce(Activity::Other);
            self.platform.point(Point::SlowReleased);
            OF_SPINLOCKS.kick(&self.platform, &self.cpus[first.cpu()].own.kicked, first.cpu());
        }
    }

    /// Whether this release of the calling CPU lets the first in the queue in.
    fn counts_enough_releases(&self) -> bool {
        let releases = &self.cpus[self.platform.cpu()].own.releases;
        // Relaxed, and not one step: only this CPU writes it.
        let now = (releases.load(Relaxed) + 1) % PROMOTE;
        releases.store(now, Relaxed);
        now == 0
    }
}

/// How many CPUs race or hold, by this word.
pub(super) const fn active(word: u32) -> u32 {
    word / ACTIVE
}

/// Whether the first in the queue may join, by this word.
const fn lets_in(word: u32) -> bool {
    word & APPROVED != 0 || active(word) == 0
}

impl Gate {
    const_unless_loom! {
        pub(super) const fn new() -> Self {
            Self { word: AtomicU32::new(0), first: AtomicU32::new(0), tail: AtomicU32::new(0) }
        }
    }

    /// J0
    pub(super) fn queue<P: Platform, const CPUS: usize>(&self, domain: &GcrDomain<P, CPUS>) {
        let platform = &domain.platform;
        let cpu = platform.cpu();
        // The node is this CPU's from `enter` to `leave`.
        let per_cpu = &domain.cpus[cpu];
        let level = per_cpu.own.nesting.enter();
        match per_cpu.nodes.get(level) {
            Some(node) => self.queue_with(domain, Code::new(cpu, level), node),
            // T9: one more level than there are nodes: one more that races. Relaxed: B2 acquires.
            None => {
                platform.count(Event::LockNoNode, 1);
                self.word.fetch_add(ACTIVE, Relaxed);
            }
        }
        per_cpu.own.nesting.leave();
    }

    /// J1 to J6.
    fn queue_with<P: Platform, const CPUS: usize>(
        &self,
        domain: &GcrDomain<P, CPUS>,
        code: Code,
        node: &Node,
    ) {
        let platform = &domain.platform;
        platform.point(Point::NodeClaimed);
        platform.count(Event::LockSlowpath, 1);
        // J1. Relaxed: published by the swap.
        node.next.store(0, Relaxed);
        node.state.store(RUNNING, Relaxed);
        // Release: publishes the node. Acquire: the predecessor's node is published, or what the last one has left.
        let prev = self.tail.swap(code.raw(), mutant!("gcr-relaxed-tail": AcqRel => Relaxed));
        platform.point(Point::TailPublished);
        match Code::from_raw(prev) {
            Some(prev) => {
                // Release: pairs with the acquire in J5.
                domain.node(prev).next.store(code.raw(), Release);
                wait_behind(domain, code, node);
            }
            // Relaxed: J3 publishes it.
            None => self.first.store(code.raw(), Relaxed),
        }
        self.wait_as_first(domain, code);
        self.leave_queue(domain, code, node);
    }

    /// J3, J4.
    fn wait_as_first<P: Platform, const CPUS: usize>(&self, domain: &GcrDomain<P, CPUS>, code: Code) {
        let platform = &domain.platform;
        let mut patience = Patience::new(platform);
        // Relaxed, here and below: the exchange validates the value.
        let mut seen = self.word.load(Relaxed);
        loop {
            while lets_in(seen) {
                // J4. Relaxed: B2 acquires, and what the word's flags publish is this CPU's own.
                let joined = (seen + ACTIVE) & !(APPROVED | SLEEPS);
                match self.word.compare_exchange(seen, joined, Relaxed, Relaxed) {
                    Ok(_) => return,
                    Err(now) => seen = now,
                }
            }
            if !patience.pause() {
                // J3. Release: pairs with L2, for `first`.
                let before = self.word.fetch_or(SLEEPS, mutant!("gcr-relaxed-flag": Release => Relaxed));
                platform.point(Point::HeadHashed);
                if mutant!("gcr-sleep-blindly": !lets_in(before) => true) {
                    platform.count(Event::PvWaitHead, 1);
                    domain.sleep(code.cpu(), || self.word.load(Relaxed) & SLEEPS != 0);
                }
                patience = Patience::new(platform);
            }
            seen = self.word.load(Relaxed);
        }
    }

    /// J5, J6, by a CPU that is active by now.
    fn leave_queue<P: Platform, const CPUS: usize>(
        &self,
        domain: &GcrDomain<P, CPUS>,
        code: Code,
        node: &Node,
    ) {
        // Acquire, here and below: pairs with the link in J1.
        let mut next = node.next.load(Acquire);
        if next == 0 {
            // J5. Release: pairs with the swap of `tail`, for `first`.
            if self.tail.compare_exchange(code.raw(), 0, Release, Relaxed).is_ok() {
                return;
            }
            while next == 0 {
                domain.platform.pause();
                next = node.next.load(Acquire);
            }
        }
        // J6. Relaxed: published by what follows.
        self.first.store(next, Relaxed);
        let state = &domain.node(Code::from_raw(next).expect("not 0")).state;
        loop {
            // Release, here and below: pairs with J2.
            if state.compare_exchange(RUNNING, FIRST, Release, Relaxed).is_ok() {
                break;
            }
            // Relaxed: the store below publishes. While it is HASHED its CPU waits for that.
            if state.compare_exchange(HALTED, HASHED, Relaxed, Relaxed).is_ok() {
                domain.platform.point(Point::SuccessorHashed);
                // Release: pairs with L2, for `first`.
                self.word.fetch_or(SLEEPS, Release);
                state.store(FIRST, Release);
                break;
            }
        }
        domain.platform.point(Point::HandedOver);
    }

    /// L1 where others race or wait, and L2, by the CPU that holds the lock: takes `share` from the word, which was `seen` last.
    /// Returns the first in the queue, if it may join and has to be kicked.
    #[cold]
    #[inline(never)]
    pub(super) fn leave<P: Platform, const CPUS: usize>(
        &self,
        domain: &GcrDomain<P, CPUS>,
        mut seen: u32,
        share: u32,
    ) -> Option<Code> {
        // T14: say what happened instead of a word that has become nonsense.
        assert!(
            seen & share & (ACTIVE - 1) == share & (ACTIVE - 1) && active(seen) != 0,
            "unlock of a lock whose word is {seen:#x}: not held, or overwritten"
        );
        let mut due = None;
        loop {
            let left = seen - share;
            let mut kick = None;
            let mut new = left;
            if seen & SLEEPS != 0 {
                let due = *due.get_or_insert_with(|| domain.counts_enough_releases());
                let promoted = mutant!("gcr-never-promote": due => false);
                if promoted || mutant!("gcr-forget-when-idle": active(left) == 0 => false) {
                    // Acquire: pairs with J3 and J6.
                    mutant!("gcr-relaxed-kick": fence(Acquire) => ());
                    kick = Code::from_raw(self.first.load(Relaxed));
                    new = left & !SLEEPS | if promoted { APPROVED } else { 0 };
                }
            }
            // L1, L2. Release: pairs with B0, B1, B2.
            let release = mutant!("gcr-relaxed-unlock": Release => Relaxed);
            match self.word.compare_exchange_weak(seen, new, release, Relaxed) {
                Ok(_) => return kick,
                Err(now) => seen = now,
            }
        }
    }
}

/// J2: waits to be made first.
fn wait_behind<P: Platform, const CPUS: usize>(domain: &GcrDomain<P, CPUS>, code: Code, node: &Node) {
    let platform = &domain.platform;
    loop {
        let mut patience = Patience::new(platform);
        loop {
            // Acquire: pairs with J6.
            if node.state.load(Acquire) == FIRST {
                return;
            }
            if !patience.pause() {
                break;
            }
        }
        // Relaxed: `state` is all that is asked about, and each of its changes is an exchange (T1).
        if node.state.compare_exchange(RUNNING, HALTED, Relaxed, Relaxed).is_ok() {
            platform.point(Point::HaltedPublished);
            platform.count(Event::PvWaitNode, 1);
            domain.sleep(code.cpu(), || node.state.load(Relaxed) != FIRST);
            // Fails if it is HASHED, or FIRST.
            if node.state.compare_exchange(HALTED, RUNNING, Relaxed, Relaxed).is_ok() {
                platform.count(Event::PvSpuriousWakeup, 1);
            }
        } else {
            // HASHED: it is about to be first.
            platform.pause();
        }
    }
}
