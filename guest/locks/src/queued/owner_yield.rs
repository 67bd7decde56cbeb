//! Queue spinlocks for hypervisors with directed yield: the word names the owner.
//!
//! A waiter that finds the owner preempted gives its own slice to the owner. No waiter sleeps, so there is no wake-up
//! to lose, no table, and nothing for unlock to look for.
//!
//! | bits | field | |
//! |---|---|---|
//! | 0 | locked | |
//! | 1-14 | owner | CPU, while locked |
//! | 15 | sleepy | a waiter has seen the owner preempted |
//! | 16 | must queue | the head has waited long enough: no more stealing |
//! | 17-31 | tail | CPU + 1 of the last in the queue, 0 if none |
//!
//! A state is written (tail, must queue, locked), `n` for some queue and `*` for anything:
//!
//! | state | meaning |
//! |---|---|
//! | (0,0,0) | free |
//! | (*,0,1) | held |
//! | (n,0,0) | free to the head, and to thieves |
//! | (n,1,*) | no stealing: free to the head alone, once it is not locked |
//!
//! The tail has no room for a nesting level: the successor searches the predecessor's nodes for the one that
//! waits for this lock. A CPU waits for a lock once at most, so it is unique, if nodes that wait for nothing
//! say so (T18).
//!
//! # Steps
//!
//! ```text
//! S  steal       up to STEAL_SPINS looks; (*,0,0) -> (*,0,1)
//! G1 claim       a node of this level; node.lock := lock
//! G2 enqueue     (p,*,*) -> (n,*,*); link behind p
//! G3 wait        for node.locked; meanwhile yield to the owner or to p, if preempted
//! G4 head        wait for locked = 0; must queue := 1 after HEAD_SPINS; yield to the owner, if preempted
//! G5 take        (n,*,0) -> (n or 0,0,1), with the tail only if a CPU is behind
//! G6 hand over   next.locked := 1
//! ```
//!
//! A CPU that is nested deeper than there are nodes does not queue: it tries for the lock like a thief, and can starve.
//!
//! # What the lock of powerpc has besides
//!
//! This is a part of the lock that Linux has on powerpc; the lock object `powerpc` is the whole, as of 6.11. It differs in this:
//! 1. Any try takes a lock that is open, (*,0,0). Here [`Lock::try_lock`], and so the first look of `lock`, takes it only if no CPU queues.
//! 2. A yield is for a yield count, so none goes to an owner that has run meanwhile.
//! 3. From the first mark that it sees a CPU counts by the longer limit. Here it does so only while the mark "sleepy" stands.
//! 4. The look that marks the lock finds the word changed, by its own mark, and yields one look later. Here it also yields.
//! 5. A waiter looks whether the owner is preempted before it tells its successor. Here it passes on what it was told.
//!
//! A waiter that is not head reads the lock word only if its predecessor is preempted, or has told it that the owner is.

use core::{mem::offset_of, ptr};

use crate::{
    contract::{Activity, Event, Lock, Platform, Point, Queues, domain},
    faults::mutant::mutant,
    memory::{AtomicU8, AtomicU32, AtomicUsize, MODELLED, Ordering::*, array, fence, fresh},
    waiting::{Code, LEVELS, Nesting, await_next},
};

const LOCKED: u32 = 1;
const OWNER_SHIFT: u32 = 1;
const SLEEPY: u32 = 1 << 15;
const MUST_QUEUE: u32 = 1 << 16;
const TAIL_SHIFT: u32 = 17;
/// Everything but the tail and "must queue": what unlock clears.
const HELD_MASK: u32 = MUST_QUEUE - 1;
/// CPUs that the owner field can name.
const MAX_CPUS: usize = 1 << 14;

/// Looks at the lock before queueing.
const STEAL_SPINS: u32 = if MODELLED { 1 } else { 32 };
/// Looks of the head before it forbids stealing.
const HEAD_SPINS: u32 = if MODELLED { 1 } else { 256 };
/// How much longer both last while the lock is sleepy: a CPU that is not running has to leave first.
const SLEEPY_FACTOR: u32 = if MODELLED { 1 } else { 256 };

/// Queue spinlock whose waiters yield to a preempted owner.
#[derive(Debug)]
pub struct OwnerYield {
    word: AtomicU32,
}

#[derive(Debug)]
#[repr(C, align(64))]
struct PerCpu {
    /// Written by neighbours in a queue.
    nodes: [Node; LEVELS],
    nesting: Nesting,
}

/// A waiter in a queue.
#[derive(Debug)]
struct Node {
    /// The lock that this node waits for; 0: none. Written by its own CPU.
    lock: AtomicUsize,
    /// Code of the successor, 0 while none is known. Written by the successor.
    next: AtomicU32,
    /// 1 once this waiter is head. Written by the predecessor.
    locked: AtomicU8,
    /// 1 while the owner is known to be preempted. Written by the predecessor.
    sleepy: AtomicU8,
}

fresh!(Node {
    lock: AtomicUsize::new(0),
    next: AtomicU32::new(0),
    locked: AtomicU8::new(0),
    sleepy: AtomicU8::new(0),
});

fresh!(PerCpu { nodes: array![Node::new(); LEVELS], nesting: Nesting::new() });

domain! {
    /// State shared by the owner-yielding locks of one kernel: the platform, and four nodes for each CPU.
    OwnerYieldDomain<CPUS> { cpus: PerCpu }
    assert!(CPUS <= MAX_CPUS, "the lock word cannot name so many owners");
    |domain| {
        let cpu = &domain.cpus[0];
        Queues::of(cpu, &cpu.nodes, &cpu.nesting, offset_of!(Node, next), offset_of!(Node, locked))
    }
}

impl<P, const CPUS: usize> OwnerYieldDomain<P, CPUS> {
    fn node(&self, code: Code) -> &Node {
        &self.cpus[code.cpu()].nodes[code.place()]
    }

    /// The node with which `cpu` waits for `lock`.
    fn waiting(&self, cpu: usize, lock: usize) -> &Node {
        // Relaxed: published by the swap of the tail in G2, which the caller has acquired from.
        let waits = |node: &&Node| node.lock.load(Relaxed) == lock;
        self.cpus[cpu]
            .nodes
            .iter()
            .find(waits)
            .expect("the CPU in the tail has a node that waits for the lock")
    }
}

/// The CPU that holds a lock with this word.
const fn owner(word: u32) -> usize {
    ((word & HELD_MASK & !SLEEPY) >> OWNER_SHIFT) as usize
}

/// The fields {owner, locked} of a lock held by `cpu`.
const fn held_by(cpu: usize) -> u32 {
    (cpu as u32) << OWNER_SHIFT | LOCKED
}

fresh!(pub OwnerYield { word: AtomicU32::new(0) });

impl OwnerYield {
    fn address(&self) -> usize {
        ptr::from_ref(self).addr()
    }

    #[cold]
    #[inline(never)]
    fn lock_slow<P: Platform, const CPUS: usize>(&self, domain: &OwnerYieldDomain<P, CPUS>) {
        let platform = &domain.platform;
        platform.announce(Activity::Waiter);
        let cpu = platform.cpu();
        if self.steal(platform, cpu) {
            platform.count(Event::PvLockStealing, 1);
            return;
        }

        // G1: the node is this CPU's from `enter` to `leave`.
        let per_cpu = &domain.cpus[cpu];
        let level = per_cpu.nesting.enter();
        platform.count(Event::LockSlowpath, 1);
        match per_cpu.nodes.get(level) {
            Some(node) => self.queue(domain, cpu, Code::new(cpu, level), node),
            // T9: one more level than there are nodes.
            None => {
                platform.count(Event::LockNoNode, 1);
                while !self.take_unless_closed(self.word.load(Relaxed), cpu) {
                    platform.pause();
                }
            }
        }
        per_cpu.nesting.leave();
    }

    /// S: looks at the lock for a while. `true` if this took it.
    fn steal<P: Platform>(&self, platform: &P, cpu: usize) -> bool {
        let mut looks = 0;
        loop {
            // Relaxed: `take_past_queue` is what acquires.
            let seen = self.word.load(Relaxed);
            if is_closed(seen) || are_over(looks, seen, STEAL_SPINS) {
                return false;
            }
            if self.take_past_queue(seen, cpu) {
                return true;
            }
            self.wait_a_round(platform, seen, || {});
            looks += 1;
        }
    }

    /// (*,0,0) -> (*,0,1), given the word last seen.
    fn take_unless_closed(&self, seen: u32, cpu: usize) -> bool {
        !is_closed(seen) && self.take_past_queue(seen, cpu)
    }

    /// (*,*,0) -> (*,*,1), given the word last seen. Acquire: pairs with unlock.
    fn take_past_queue(&self, seen: u32, cpu: usize) -> bool {
        let order = mutant!("owner-yield-relaxed-steal": Acquire => Relaxed);
        seen & LOCKED == 0 && self.word.compare_exchange(seen, seen | held_by(cpu), order, Relaxed).is_ok()
    }

    /// G1 to G6.
    fn queue<P: Platform, const CPUS: usize>(
        &self,
        domain: &OwnerYieldDomain<P, CPUS>,
        cpu: usize,
        code: Code,
        node: &Node,
    ) {
        let platform = &domain.platform;
        platform.point(Point::NodeClaimed);
        // G1. Relaxed: published by G2.
        node.next.store(0, Relaxed);
        node.locked.store(0, Relaxed);
        node.sleepy.store(0, Relaxed);
        node.lock.store(self.address(), Relaxed);

        // G2
        let tail = (cpu as u32 + 1) << TAIL_SHIFT;
        let prev = self.swap_tail(tail);
        platform.point(Point::TailPublished);
        if let Some(prev_cpu) = (prev as usize).checked_sub(1) {
            // Release: pairs with the acquire in G6.
            domain.waiting(prev_cpu, self.address()).next.store(code.raw(), Release);
            self.wait_as_waiter(domain, prev_cpu, node);
        }

        // G4, G5
        platform.announce(Activity::Head);
        let last = self.wait_as_head(domain, cpu, tail, node);

        // G6
        if !last {
            // The link of G2.
            let next = Code::from_raw(await_next(platform, &node.next)).expect("a link names a node");
            // Release: pairs with the wait in G3.
            domain.node(next).locked.store(1, Release);
            platform.point(Point::HandedOver);
        }

        // T18: an interrupt that claims this node again, and is interrupted before it has named its lock,
        // must not be found under the old one. Relaxed: a searching CPU has acquired from the swap in a
        // later G2.
        node.lock.store(0, Relaxed);
    }

    /// G2: (p,*,*) -> (n,*,*), returns p. Release: publishes the node. Acquire: the predecessor's node is
    /// published.
    fn swap_tail(&self, tail: u32) -> u32 {
        const TAIL_MASK: u32 = !0 << TAIL_SHIFT;
        // Relaxed: the exchange validates the value.
        let mut seen = self.word.load(Relaxed);
        loop {
            let order = mutant!("owner-yield-relaxed-tail": AcqRel => Relaxed);
            match self.word.compare_exchange_weak(seen, seen & !TAIL_MASK | tail, order, Relaxed) {
                Ok(_) => return seen >> TAIL_SHIFT,
                Err(now) => seen = now,
            }
        }
    }

    /// G4 and G5: waits for the lock and takes it; `true` if no CPU was behind.
    fn wait_as_head<P: Platform, const CPUS: usize>(
        &self,
        domain: &OwnerYieldDomain<P, CPUS>,
        cpu: usize,
        tail: u32,
        node: &Node,
    ) -> bool {
        let platform = &domain.platform;
        let mut looks = 0;
        loop {
            // Relaxed: the exchange acquires.
            let seen = self.word.load(Relaxed);
            if seen & LOCKED == 0 {
                // G5: (n,*,0) -> (n,0,1), or (0,0,1) if this is the last. Acquire: pairs with unlock.
                let last = seen >> TAIL_SHIFT == tail >> TAIL_SHIFT;
                let new = held_by(cpu) | if last { 0 } else { seen >> TAIL_SHIFT << TAIL_SHIFT };
                if self.word.compare_exchange(seen, new, Acquire, Relaxed).is_ok() {
                    return last;
                }
                continue;
            }
            if are_over(looks, seen, HEAD_SPINS) && seen & MUST_QUEUE == 0 {
                // (n,0,*) -> (n,1,*). Relaxed: forbids stealing, orders nothing.
                self.word.fetch_or(MUST_QUEUE, Relaxed);
                platform.point(Point::HeadSpinning);
            }
            self.wait_a_round(platform, seen, || pass_on(domain, node));
            // A bound, so that a model checker sees few states.
            looks = (looks + 1).min(HEAD_SPINS * SLEEPY_FACTOR);
        }
    }

    /// Gives this CPU's slice to the owner, if `seen` still says who that is and it is preempted. `None`: it runs. Otherwise `tell` has been
    /// called, and the result says whether the slice was given.
    fn yield_to_owner<P: Platform>(&self, platform: &P, seen: u32, tell: impl Fn()) -> Option<bool> {
        if seen & LOCKED == 0 || !is_preempted(platform, owner(seen)) {
            return None;
        }
        // Relaxed, both: hints. An exchange that fails leaves the next look to set the mark.
        if seen & SLEEPY == 0 {
            _ = self.word.compare_exchange(seen, seen | SLEEPY, Relaxed, Relaxed);
        }
        let is_owner = self.word.load(Relaxed) | SLEEPY == seen | SLEEPY;
        let gives = mutant!("owner-yield-stale-owner": is_owner => true);
        if gives {
            platform.yield_to(Some(owner(seen)));
        }
        tell();
        Some(gives)
    }

    /// One round of waiting for the owner: a gift, or a pause.
    fn wait_a_round<P: Platform>(&self, platform: &P, seen: u32, tell: impl Fn()) {
        if self.yield_to_owner(platform, seen, tell) != Some(true) {
            platform.pause();
        }
    }

    /// G3: waits to become head.
    fn wait_as_waiter<P: Platform, const CPUS: usize>(
        &self,
        domain: &OwnerYieldDomain<P, CPUS>,
        prev_cpu: usize,
        node: &Node,
    ) {
        let platform = &domain.platform;
        // Acquire: pairs with the handoff in G6.
        while node.locked.load(Acquire) == 0 {
            let prev_is_preempted = is_preempted(platform, prev_cpu);
            // Relaxed: a hint.
            let sleepy = node.sleepy.load(Relaxed) != 0;
            if !sleepy && !prev_is_preempted {
                platform.pause();
                continue;
            }
            if sleepy {
                pass_on(domain, node);
            }
            // Relaxed: a hint.
            match self.yield_to_owner(platform, self.word.load(Relaxed), || {}) {
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
            if prev_is_preempted && node.locked.load(Relaxed) == 0 {
                platform.yield_to(Some(prev_cpu));
            } else {
                platform.pause();
            }
        }
    }
}

/// Whether `most` looks have been made. They are more while the lock is sleepy.
fn are_over(looks: u32, seen: u32, most: u32) -> bool {
    looks >= if seen & SLEEPY != 0 { most * SLEEPY_FACTOR } else { most }
}

/// Whether a CPU is preempted. The caller looks next whether that CPU still matters.
fn is_preempted<P: Platform>(platform: &P, cpu: usize) -> bool {
    let preempted = platform.is_preempted(cpu);
    // The next look comes after this one. The host, which writes the flag, has no part in the order.
    fence(Acquire);
    preempted
}

/// Tells the successor that the owner is preempted.
fn pass_on<P, const CPUS: usize>(domain: &OwnerYieldDomain<P, CPUS>, node: &Node) {
    // Acquire: pairs with the link in G2, so that the mark is not wiped by the initialisation.
    if let Some(next) = Code::from_raw(node.next.load(Acquire)) {
        // Relaxed: a hint. Only this CPU makes the successor head, so its node is still in this queue.
        domain.node(next).sleepy.store(1, Relaxed);
    }
}

/// Whether the head has forbidden to overtake it.
fn is_closed(seen: u32) -> bool {
    mutant!("owner-yield-always-steal": seen & MUST_QUEUE != 0 => false)
}

impl<P: Platform, const CPUS: usize> Lock<OwnerYieldDomain<P, CPUS>> for OwnerYield {
    type Token = ();

    #[inline(always)]
    fn lock(&self, domain: &OwnerYieldDomain<P, CPUS>) {
        if self.try_lock(domain).is_none() {
            self.lock_slow(domain);
        }
    }

    #[inline(always)]
    fn try_lock(&self, domain: &OwnerYieldDomain<P, CPUS>) -> Option<()> {
        // (0,0,0) -> (0,0,1). Acquire: pairs with unlock. Relaxed load: failing needs no ordering.
        let taken = self.word.load(Relaxed) == 0
            && self.word.compare_exchange(0, held_by(domain.platform.cpu()), Acquire, Relaxed).is_ok();
        taken.then_some(())
    }

    #[inline(always)]
    fn unlock(&self, _: &OwnerYieldDomain<P, CPUS>, (): ()) {
        // (*,*,1) -> (*,*,0): locked, owner and sleepy go together. Release: pairs with all acquires above.
        self.word.fetch_and(!HELD_MASK, mutant!("owner-yield-relaxed-unlock": Release => Relaxed));
    }
}
