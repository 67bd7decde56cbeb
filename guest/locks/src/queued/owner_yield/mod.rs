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
//! # The locks of this family
//!
//! | lock | yields to | |
//! |---|---|---|
//! | [`OwnerYield`] | owner, predecessor | a part of the lock of powerpc |
//! | [`Powerpc`] | owner, predecessor | the lock that Linux has there, as of 6.11 |
//!
//! [`OwnerYield`] differs from the complete lock in this:
//! 1. [`Lock::try_lock`], and so the first look of `lock`, takes a lock only if no CPU queues. The complete lock takes any that is open: (*,0,0).
//! 2. A yield names a CPU and no yield count ([`Platform::yield_count`]), so it may go to an owner that has run meanwhile.
//! 3. A CPU counts by the longer limit only while the mark "sleepy" stands. In the complete lock it does so from the first mark it sees.
//! 4. The look that marks the lock also yields. In the complete lock it finds the word changed, by its own mark, and yields one look later.
//! 5. A waiter passes on what it was told. In the complete lock it looks first whether the owner is preempted, and tells before it yields.
//!
//! [`Rules`] also has the sticky mark and the kick of a preempted head, which Linux turns off by default. Its other
//! switches are missing: stealing while the head yields, rounds that do not count while the owner is preempted, an interval for the mark.
//! A shorter limit for owners on another node is missing too, for a platform does not number nodes. Unlock changes the word by one atomic operation,
//! where powerpc stores half of it.
//!
//! A waiter that is not head reads the lock word only if its predecessor is preempted, or has told it that the owner is.
//!
//! # Which yield pays
//! The one to the predecessor. With the yield to the owner alone, a waiter that is off its pCPU keeps all behind it waiting, and a head that
//! is off keeps a lock closed that is free. The yield to the owner adds 1 % to sections of 500 ns at ratios 2 and 4, and takes 1 % from those of 5 us.
//! Thousand sections a second, and in brackets Jain's index of fairness:
//!
//! | hold, ratio | `powerpc` | `powerpc-owner` | `powerpc-prev` | `owner-yield` | `qspinlock`, pv |
//! |---|---|---|---|---|---|
//! | 500 ns, 1 | 1120 (1.00) | 1120 (1.00) | 1120 (1.00) | 1120 (1.00) | 1020 (1.00) |
//! | 500 ns, 2 | 1020 (0.99) | 996 (0.65) | 1010 (0.99) | 1010 (0.99) | 1040 (0.99) |
//! | 500 ns, 4 | 1050 (0.96) | 850 (0.23) | 1040 (0.93) | 1050 (0.94) | 1030 (0.98) |
//! | 5 us, 1 | 184 (1.00) | 184 (1.00) | 185 (1.00) | 184 (1.00) | 183 (1.00) |
//! | 5 us, 2 | 183 (1.00) | 128 (0.43) | 185 (1.00) | 185 (1.00) | 183 (1.00) |
//! | 5 us, 4 | 150 (0.98) | 107 (0.12) | 151 (0.99) | 152 (0.98) | 185 (0.75) |
//!
//! The intervals are at most 1.2 % of the value, but for `powerpc-owner`: 4 % at ratio 2, and 8 and 21 % at ratio 4.
//!
//! *Provenance: `haltkick run --engine sim --machine icelake-2s --cpus 0-15 --think 2us --duration 20ms --warmup 5ms --repeat 5 --pv on
//! --preempted-hint on`, Hodges-Lehmann estimates of five seeds, none disturbed, slices of 1 ms, measured on 27 November 2026.
//! `powerpc-owner` yielded to owners only, `powerpc-prev` to predecessors only: arms of e9d2b011 that are no longer in the image.*

mod domain;
mod rules;
mod yielding;

use core::{marker::PhantomData, ptr};

use crate::{
    contract::{Activity, Event, Lock, Platform, Point},
    faults::mutant::mutant,
    memory::sync::{AtomicU32, MODELLED, Ordering::*, const_unless_loom},
    waiting::nesting::Code,
};

use self::{
    domain::Node,
    rules::{Complete, Looks, Part},
    yielding::pass_on,
};
pub use self::{domain::OwnerYieldDomain, rules::Rules};

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

/// Queue spinlock whose word names its owner, with the [`Rules`] `R`.
#[derive(Debug)]
pub struct OwnerQueue<R> {
    word: AtomicU32,
    rules: PhantomData<fn() -> R>,
}

/// Queue spinlock whose waiters yield to a preempted owner.
pub type OwnerYield = OwnerQueue<Part>;

/// Queue spinlock of Linux on powerpc: as [`OwnerYield`], and any CPU that tries takes a lock that is open, past its queue.
pub type Powerpc = OwnerQueue<Complete>;

/// The CPU that holds a lock with this word.
const fn owner(word: u32) -> usize {
    ((word & HELD_MASK & !SLEEPY) >> OWNER_SHIFT) as usize
}

/// The fields {owner, locked} of a lock held by `cpu`.
const fn held_by(cpu: usize) -> u32 {
    (cpu as u32) << OWNER_SHIFT | LOCKED
}

impl<R: Rules> OwnerQueue<R> {
    const_unless_loom! {
        /// A free lock.
        pub const fn new() -> Self {
            Self { word: AtomicU32::new(0), rules: PhantomData }
        }
    }

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
        let mut looks = Looks::<R>::new();
        loop {
            // Relaxed: `take_past_queue` is what acquires.
            let seen = self.word.load(Relaxed);
            if is_closed(seen) || looks.are_over(seen, STEAL_SPINS) {
                return false;
            }
            if self.take_past_queue(seen, cpu) {
                return true;
            }
            self.wait_a_round(platform, seen, &mut looks, || {});
        }
    }

    /// (*,0,0) -> (*,0,1), given the word last seen.
    fn take_unless_closed(&self, seen: u32, cpu: usize) -> bool {
        !is_closed(seen) && self.take_past_queue(seen, cpu)
    }

    /// (*,0,0) -> (*,0,1), unless the lock is not open.
    #[inline(always)]
    fn try_past_queue(&self, cpu: usize) -> bool {
        loop {
            // Relaxed: `take_past_queue` is what acquires.
            let seen = self.word.load(Relaxed);
            // Any bit but those of the tail. A CPU that joins the queue meanwhile makes the exchange fail, and it is tried again.
            if is_closed(seen) || seen & HELD_MASK != 0 {
                return false;
            }
            if self.take_past_queue(seen, cpu) {
                return true;
            }
        }
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
            let next = loop {
                // Acquire: pairs with the link in G2.
                if let Some(next) = Code::from_raw(node.next.load(Acquire)) {
                    break next;
                }
                platform.pause();
            };
            // Release: pairs with the wait in G3.
            domain.node(next).locked.store(1, Release);
            platform.point(Point::HandedOver);
            // Its CPU is known by the link: the node may be used anew from the store on.
            if R::PRODS_HEAD && platform.is_preempted(next.cpu()) {
                platform.kick(next.cpu());
            }
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
        let mut looks = Looks::<R>::new();
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
            if looks.are_over(seen, HEAD_SPINS) && seen & MUST_QUEUE == 0 {
                // (n,0,*) -> (n,1,*). Relaxed: forbids stealing, orders nothing.
                self.word.fetch_or(MUST_QUEUE, Relaxed);
                platform.point(Point::HeadSpinning);
            }
            self.wait_a_round(platform, seen, &mut looks, || pass_on(domain, node));
        }
    }
}

/// Whether the head has forbidden to overtake it.
fn is_closed(seen: u32) -> bool {
    mutant!("owner-yield-always-steal": seen & MUST_QUEUE != 0 => false)
}

impl<R: Rules, P: Platform, const CPUS: usize> Lock<OwnerYieldDomain<P, CPUS>> for OwnerQueue<R> {
    type Token = ();

    #[inline(always)]
    fn lock(&self, domain: &OwnerYieldDomain<P, CPUS>) {
        if self.try_lock(domain).is_none() {
            self.lock_slow(domain);
        }
    }

    #[inline(always)]
    fn try_lock(&self, domain: &OwnerYieldDomain<P, CPUS>) -> Option<()> {
        if mutant!("powerpc-try-queues": R::IS_COMPLETE => false) {
            return self.try_past_queue(domain.platform.cpu()).then_some(());
        }
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
