//! A native queue spinlock whose acquisition may fail, after Linux' rqspinlock ("resilient", 6.15, K. K. Dwivedi): for code that takes
//! locks in any order, and has to be told of a deadlock instead of hanging in it.
//!
//! Each CPU lists the locks that it holds or waits for. A waiter that has waited for a while looks there for a deadlock of two CPUs, and
//! gives up; and it gives up when a time limit is over, which also finds what the lists do not.
//!
//! # Steps
//! ```text
//! E            list the lock; (0,0,0) -> (0,0,1): done
//! N1 to N4     as in the native lock; N5 for as long as the limit of a pending CPU; over: pending := 0, X
//! A            the lock is listed twice: X
//! Q0           claim a node; there is none: one more try, else X
//! Q1 to Q4     as in the native lock; a waiter that is not head looks at nothing but its node
//! H            head: wait for (*,0,0), for as long as its limit; Q6 to Q8
//! H1           over: DISSOLVED to the next, which hands that on: all of the queue fail
//! H2           deadlock: the next becomes head, the others wait on
//! X            strike the lock from the list; fail
//! U            unlock; strike the lock from the list
//! ```
//! A head or pending CPU looks for a deadlock at once, then once a millisecond:
//!
//! | deadlock | found by |
//! |---|---|
//! | of one CPU | the lock is in its own list already |
//! | of two | another CPU holds this lock, and the last in its list is one that this CPU holds |
//! | of more | the time limit |
//!
//! A list names a lock before it is taken and after it is released. So a deadlock may be reported that is about to dissolve, as in Linux.
//!
//! # How long a CPU waits
//! Served in order, unless a limit is over. A head returns from [`acquire`](RqSpinLock::acquire) when its limit is over; those behind it
//! follow, each when it runs. [`Lock::lock`] tries again when the queue is gone.
//!
//! # What it is for
//! A limit cannot tell a holder that does not run from one that never will. What is counted as
//! [`Event::RqspinlockLockTimeout`] where there are no deadlocks is a false alarm. [`Limits::own_time`] counts the waiter's own time on its
//! physical CPU instead of all time.
//!
//! # How it differs from Linux
//! Interrupts and NMIs are not served in the midst of it, no limit guards a test-and-set form, and locks may be released in any order.

use core::marker::PhantomData;

use super::{
    listed::List,
    node::Node,
    word::{LOCKED, LOCKED_MASK, LOCKED_PENDING, PENDING, Word, try_lock},
};
use crate::{
    contract::{Activity, Event, Lock, Platform, domain::domain},
    faults::mutant::mutant,
    memory::sync::{AtomicU32, MODELLED, Ordering::*, array, const_unless_loom},
    qspinlock::DefaultWord,
    waiting::nesting::{Code, LEVELS, Nesting},
};

/// How often N1 looks at the word.
const PENDING_LOOPS: u32 = if MODELLED { 1 } else { 512 };
/// Rounds between two looks at the clock. Linux takes 2^16, some milliseconds.
const CLOCK_EVERY: u32 = if MODELLED { 1 } else { 1 << 10 };
/// Time between two looks for a deadlock.
const SEARCH_EVERY_NS: u64 = 1_000_000;

/// In a node's `locked`: its CPU is head.
const HEAD: u32 = 1;
/// In a node's `locked`: a limit was over, and the queue is no more.
const DISSOLVED: u32 = 2;

/// Why a lock was not acquired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It would have been a deadlock, or nearly.
    Deadlock,
    /// A time limit was over.
    Timeout,
}

/// How long a CPU waits before it gives up.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The pending CPU, for one owner.
    pub pending_ns: u64,
    /// The head of the queue, for the owner and the pending CPU.
    pub head_ns: u64,
    /// Whether only time counts in which the waiting CPU runs ([`Platform::off_ticks`]).
    pub own_time: bool,
}

impl Limits {
    /// Limits of Linux.
    pub const LINUX: Self = Self { pending_ns: 250_000_000, head_ns: 500_000_000, own_time: false };
}

/// Queue spinlock that a CPU may fail to acquire.
#[derive(Debug)]
pub struct RqSpinLock<W = DefaultWord> {
    word: AtomicU32,
    layout: PhantomData<fn() -> W>,
}

/// Memory that such locks of one kernel share: the platform, and four nodes and a list for each CPU.
#[derive(Debug)]
pub struct RqSpinDomain<P, const CPUS: usize> {
    platform: P,
    limits: Limits,
    cpus: [PerCpu; CPUS],
}

domain!(RqSpinDomain<CPUS>);

#[derive(Debug)]
#[repr(C, align(64))]
struct PerCpu {
    nodes: [Node; LEVELS],
    nesting: Nesting,
    list: List,
}

impl<P, const CPUS: usize> RqSpinDomain<P, CPUS> {
    const_unless_loom! {
        /// The memory of `CPUS` CPUs, none of which waits.
        pub const fn new(platform: P, limits: Limits) -> Self {
            Self { platform, limits, cpus: array![PerCpu::new(); CPUS] }
        }
    }

    fn node(&self, code: Code) -> &Node {
        &self.cpus[code.cpu()].nodes[code.level()]
    }

    /// How many locks are listed by all CPUs: 0 if none is held.
    pub fn listed(&self) -> usize {
        self.cpus.iter().map(|cpu| cpu.list.len()).sum()
    }
}

impl PerCpu {
    const_unless_loom! {
        const fn new() -> Self {
            Self { nodes: array![Node::new(); LEVELS], nesting: Nesting::new(), list: List::new() }
        }
    }
}

/// A wait that may be given up.
struct Watch<'a, P, const CPUS: usize> {
    domain: &'a RqSpinDomain<P, CPUS>,
    word: &'a AtomicU32,
    cpu: usize,
    limit: u64,
    rounds: u32,
    since: u64,
    searched: u64,
}

impl<'a, P: Platform, const CPUS: usize> Watch<'a, P, CPUS> {
    fn new(domain: &'a RqSpinDomain<P, CPUS>, word: &'a AtomicU32, cpu: usize, limit_ns: u64) -> Self {
        // Model checkers say themselves when time is over.
        let limit = if MODELLED { domain.platform.spin_threshold() } else { domain.platform.ticks(limit_ns) };
        Self { domain, word, cpu, limit, rounds: 0, since: 0, searched: 0 }
    }

    /// Pauses for one round, unless there is a reason to give up.
    fn pause(&mut self) -> Result<(), Refused> {
        if self.rounds == 0 {
            if self.domain.cpus[self.cpu].list.holds(self.address()) {
                return Err(Refused::Deadlock);
            }
            (self.since, self.searched) = (self.now(), self.now());
        } else if self.rounds.is_multiple_of(CLOCK_EVERY) {
            let now = self.now();
            if now.wrapping_sub(self.since) >= self.limit {
                return Err(Refused::Timeout);
            }
            if now.wrapping_sub(self.searched) >= self.domain.platform.ticks(SEARCH_EVERY_NS) {
                self.searched = now;
                self.search()?;
            }
        }
        // Stays different from 0.
        self.rounds = self.rounds % CLOCK_EVERY + 1;
        self.domain.platform.pause();
        Ok(())
    }

    fn now(&self) -> u64 {
        let platform = &self.domain.platform;
        let off = if self.domain.limits.own_time { platform.off_ticks() } else { 0 };
        platform.now().wrapping_sub(off)
    }

    fn address(&self) -> usize {
        core::ptr::from_ref(self.word).addr()
    }

    /// Looks for a deadlock with another CPU.
    fn search(&self) -> Result<(), Refused> {
        let (lock, mine) = (self.address(), &self.domain.cpus[self.cpu].list);
        for (cpu, other) in self.domain.cpus.iter().enumerate() {
            if self.word.load(Relaxed) & LOCKED_MASK == 0 {
                return Ok(());
            }
            if cpu == self.cpu || !other.list.holds(lock) {
                continue;
            }
            let (_, awaited) = other.list.split();
            return if awaited != 0 && mine.holds(awaited) { Err(Refused::Deadlock) } else { Ok(()) };
        }
        Ok(())
    }
}

impl<W: Word> RqSpinLock<W> {
    const_unless_loom! {
        /// A free lock.
        #[expect(clippy::new_without_default, reason = "a lock is made in a static, where Default cannot be used")]
        pub const fn new() -> Self {
            Self { word: AtomicU32::new(0), layout: PhantomData }
        }
    }

    fn address(&self) -> usize {
        core::ptr::from_ref(&self.word).addr()
    }

    /// Acquires the lock, or says why not.
    ///
    /// # Errors
    /// If a deadlock was found, or a time limit was over.
    #[inline(always)]
    pub fn acquire<P: Platform, const CPUS: usize>(
        &self,
        domain: &RqSpinDomain<P, CPUS>,
    ) -> Result<(), Refused> {
        const { assert!(CPUS <= W::MAX_CPUS, "the tail of this layout cannot name so many CPUs") };
        // E: listed first, so that what interrupts this CPU in between finds it.
        domain.cpus[domain.platform.cpu()].list.add(self.address());
        // Acquire: pairs with unlock.
        match self.word.compare_exchange(0, LOCKED, Acquire, Relaxed) {
            Ok(_) => Ok(()),
            Err(seen) => self.acquire_slow(domain, seen),
        }
    }

    #[cold]
    #[inline(never)]
    fn acquire_slow<P: Platform, const CPUS: usize>(
        &self,
        domain: &RqSpinDomain<P, CPUS>,
        seen: u32,
    ) -> Result<(), Refused> {
        let platform = &domain.platform;
        let cpu = platform.cpu();
        platform.announce(Activity::Waiter);
        let acquired = match self.wait_pending(domain, cpu, seen) {
            Some(result) => result,
            None => self.wait_queued(domain, cpu),
        };
        if let Err(refused) = acquired {
            platform.count(
                match refused {
                    Refused::Deadlock => Event::LockDeadlock,
                    Refused::Timeout => Event::RqspinlockLockTimeout,
                },
                1,
            );
            if !mutant!("rq-keep-listed": false => true) {
                domain.cpus[cpu].list.strike(self.address());
            }
            platform.announce(Activity::Other);
        }
        acquired
    }

    /// N1 to N6; `None`: to the queue.
    fn wait_pending<P: Platform, const CPUS: usize>(
        &self,
        domain: &RqSpinDomain<P, CPUS>,
        cpu: usize,
        mut seen: u32,
    ) -> Option<Result<(), Refused>> {
        let (word, platform) = (&self.word, &domain.platform);
        // N1
        for _ in 0..PENDING_LOOPS {
            if seen != PENDING {
                break;
            }
            platform.pause();
            // Relaxed: N3 acquires.
            seen = word.load(Relaxed);
        }
        // N2
        if seen & !LOCKED_MASK != 0 {
            return None;
        }
        // N3
        let old = W::set_pending(word);
        if old & !LOCKED_MASK != 0 {
            // N4
            if old & PENDING == 0 {
                W::clear_pending(word);
            }
            return None;
        }
        platform.announce(Activity::Head);
        let mut watch = Watch::new(domain, word, cpu, domain.limits.pending_ns);
        // N5. Acquire: pairs with unlock.
        while word.load(Acquire) & LOCKED_MASK != 0 {
            if let Err(refused) = watch.pause() {
                W::clear_pending(word);
                return Some(Err(refused));
            }
        }
        // N6
        W::pending_to_locked(word);
        platform.count(Event::LockPending, 1);
        Some(Ok(()))
    }

    /// Q0 to Q8.
    fn wait_queued<P: Platform, const CPUS: usize>(
        &self,
        domain: &RqSpinDomain<P, CPUS>,
        cpu: usize,
    ) -> Result<(), Refused> {
        // A
        if domain.cpus[cpu].list.holds(self.address()) {
            return Err(Refused::Deadlock);
        }
        domain.platform.count(Event::LockSlowpath, 1);
        let per_cpu = &domain.cpus[cpu];
        let level = per_cpu.nesting.enter();
        let acquired = match per_cpu.nodes.get(level) {
            Some(node) => self.queue(domain, Code::new(cpu, level), node),
            None => {
                domain.platform.count(Event::LockNoNode, 1);
                if try_lock(&self.word) { Ok(()) } else { Err(Refused::Deadlock) }
            }
        };
        per_cpu.nesting.leave();
        acquired
    }

    fn queue<P: Platform, const CPUS: usize>(
        &self,
        domain: &RqSpinDomain<P, CPUS>,
        code: Code,
        node: &Node,
    ) -> Result<(), Refused> {
        let (word, platform) = (&self.word, &domain.platform);
        node.init();
        if try_lock(word) {
            return Ok(());
        }
        // Q3, Q4
        if let Some(prev) = Code::from_raw(W::swap_tail(word, code.raw())) {
            // Release: pairs with the acquire in `await_next`.
            domain.node(prev).next.store(code.raw(), Release);
            // Acquire: pairs with the stores to `locked`.
            let made = loop {
                match node.locked.load(Acquire) {
                    0 => platform.pause(),
                    made => break made,
                }
            };
            if made == DISSOLVED {
                self.leave(domain, code, node, DISSOLVED);
                return Err(Refused::Timeout);
            }
        }
        // H
        platform.announce(Activity::Head);
        let mut watch = Watch::new(domain, word, code.cpu(), domain.limits.head_ns);
        let seen = loop {
            // Acquire: pairs with unlock.
            let seen = word.load(Acquire);
            if seen & LOCKED_PENDING == 0 {
                break seen;
            }
            if let Err(refused) = watch.pause() {
                let next = match refused {
                    Refused::Timeout => DISSOLVED,
                    Refused::Deadlock => mutant!("rq-deadlock-dissolves": HEAD => DISSOLVED),
                };
                self.leave(domain, code, node, next);
                return Err(refused);
            }
        };
        // Q6, Q7: as in the native lock.
        if seen & !LOCKED_MASK == code.raw() << W::TAIL_SHIFT
            && word.compare_exchange(seen, LOCKED, Relaxed, Relaxed).is_ok()
        {
            return Ok(());
        }
        W::set_locked(word);
        // Q8
        hand_on(domain, node, HEAD);
        Ok(())
    }

    /// After a failure: waits until the queue is gone. A CPU that joined it at once would fail with it, and again, for as long as the
    /// others do the same: the lock is free then, and no CPU gets it.
    #[cold]
    #[inline(never)]
    fn await_no_queue<P: Platform>(&self, platform: &P) {
        platform.announce(Activity::Waiter);
        platform.pause();
        // Relaxed: a hint when to try.
        while self.word.load(Relaxed) & !LOCKED_PENDING != 0 {
            platform.pause();
        }
    }

    /// H1, H2: leaves the queue without the lock. The next one, if any, is told `what`.
    fn leave<P: Platform, const CPUS: usize>(
        &self,
        domain: &RqSpinDomain<P, CPUS>,
        code: Code,
        node: &Node,
        what: u32,
    ) {
        // Relaxed: the exchange validates the value.
        let mut seen = self.word.load(Relaxed);
        while seen & !LOCKED_PENDING == mutant!("rq-last-awaits-next": code.raw() << W::TAIL_SHIFT => 0) {
            // Relaxed: the node is this CPU's again, and no CPU has it from here.
            match self.word.compare_exchange(seen, seen & LOCKED_PENDING, Relaxed, Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
        hand_on(domain, node, what);
    }
}

/// Tells the next in the queue, whose link may be on the way.
fn hand_on<P: Platform, const CPUS: usize>(domain: &RqSpinDomain<P, CPUS>, node: &Node, what: u32) {
    let next = loop {
        // Acquire: pairs with the link in Q4.
        match Code::from_raw(node.next.load(Acquire)) {
            Some(next) => break next,
            None => domain.platform.pause(),
        }
    };
    // Release: pairs with the wait in Q4. From here on this node is not needed.
    domain.node(next).locked.store(what, Release);
}

impl<W: Word, P: Platform, const CPUS: usize> Lock<RqSpinDomain<P, CPUS>> for RqSpinLock<W> {
    type Token = ();

    /// Tries again for as long as it fails: a real deadlock is one.
    #[inline(always)]
    fn lock(&self, domain: &RqSpinDomain<P, CPUS>) {
        while self.acquire(domain).is_err() {
            self.await_no_queue(&domain.platform);
        }
    }

    #[inline(always)]
    fn try_lock(&self, domain: &RqSpinDomain<P, CPUS>) -> Option<()> {
        let list = &domain.cpus[domain.platform.cpu()].list;
        list.add(self.address());
        let taken = try_lock(&self.word);
        if !taken {
            list.strike(self.address());
        }
        taken.then_some(())
    }

    #[inline(always)]
    fn unlock(&self, domain: &RqSpinDomain<P, CPUS>, (): ()) {
        W::unlock(&self.word);
        domain.cpus[domain.platform.cpu()].list.strike(self.address());
    }
}
