//! Resilient queue spinlock: the native lock, whose acquisition may fail instead of hanging (`rqspinlock`, Linux 6.15 and later).
//!
//! Written from a description of its behaviour as of 6.19. Each CPU has a table of the locks that it holds or asks for, in order. A waiter that would
//! wait for itself fails at once, one in a circle of two CPUs within one five-hundredth of [`Platform::lock_limit`], and any other after
//! that limit.
//!
//! # Steps
//! ```text
//! E   lock     count += 1; entry := lock; (0,0,0) -> (0,0,1), else the slow path
//! A            the CPU has this lock already: X, deadlock
//! N1..N4       as the native lock
//! N5           wait as the native lock, with C and half the limit; no use: (*,1,*) -> (*,0,*), X
//! Q            no node, or an NMI that interrupts a CPU in the queue: Q2 once; failed: X, deadlock
//! Q1..Q4       as the native lock; sent away: H with "sent away", X, timed out
//! Q5           wait as the native lock, with C and the limit; no use: H, X
//! Q6..Q8       as the native lock
//! C   check    the limit is over: timed out
//!              once in a while: the holder of this lock asks for one that this CPU holds: deadlock
//! H            last in the queue: (n,*,*) -> (0,*,*)
//!              else the next one becomes head after a deadlock, and is sent away after a timeout, as are all behind it
//! X            give the node back; entry := 0; count -= 1
//! U   unlock   (*,*,1) -> (*,*,0); entry := 0; count -= 1
//! ```
//! N and Q are the native lock's code; E, U, A, X, Q, H and C are in this file.
//!
//! # Why it excludes
//! It takes the lock where the native lock does. A CPU that gives up was pending or head, and stops being that by its last change of the word or
//! of the next node. A queue that is dissolved has a tail until its last CPU has left, so no second head can come.
//!
//! # After an error
//! A CPU that comes back at once joins the queue which is being dissolved, and is sent away again. If all do, the queue never ends, although the lock
//! is free. So [`Lock::lock`] waits until there is no queue before it tries again, or for a time that doubles with each failure: other CPUs may queue
//! all the time.
//!
//! # Orderings
//! | order | what it is for |
//! |---|---|
//! | entry before the lock is asked for, release before the entry goes | an NMI finds the lock of the CPU that it interrupts (RQ2) |
//! | entry cleared before the count falls; the count is released and acquired | no old entry is seen under a new count (RQ10) |
//! | those of the native lock | exclusion |
//!
//! Locks must be released in the opposite order, else the table names the wrong ones: exclusion holds, but a deadlock may be missed, or found where
//! none is. A lock that was just released, or not yet taken, may be reported, too.
//!
//! # Do the timeouts misfire?
//! They do if a CPU that loses its physical one is away for more than half the limit, for then the pending CPU gives up; and one head that gives up
//! sends dozens of others away. Failures of 1000 acquisitions, and in brackets those of waiters whose own clock ran out:
//!
//! | away for | limit 0.5 ms | 1 ms | 2 ms | 4 ms | 8 ms | 16 ms | 500 ms |
//! |---|---|---|---|---|---|---|---|
//! | 1 ms (ratio 2) | 1.1 (1.0) | 0.32 (0.32) | 0 | 0 | 0 | 0 | 0 |
//! | 3 ms (ratio 4) | 145 (13) | 76 (7.5) | 105 (8.0) | 0.68 (0.68) | 0.22 (0.22) | 0 | 0 |
//! | 7 ms (ratio 8) | 74 (2.6) | 233 (2.7) | 248 (3.7) | 81 (1.2) | 0.25 (0.25) | 0.25 (0.25) | 0 |
//!
//! The limits of Linux suffice while (ratio - 1) slices last less than 250 ms. At slices of 50 ms, sections of 5 ms and ratio 8, which is 350 ms, 2 of 1,194
//! acquisitions failed. In a queue that is always full they hardly fire, whatever the waits: CPUs that are not head have no clock, and an owner
//! begins its section when its slice has just begun.
//!
//! *Provenance: `haltkick bench examples/experiments/sim-rqspinlock.toml`, 4 pCPUs of the simulated machine skylake-8s, slices of 1 ms, hold 100 us, think 5 ms, three
//! runs of 4 s each, none invalid, 27 November 2026, commit a7db73a. The runs with slices of 50 ms are older than
//! the repair of the simulator of that day. With `rqspinlock-holder`, whose clock stood still while the holder was preempted, none of 156,000
//! acquisitions failed, at any limit: measured on that day at a7db73a, an arm that is no longer in the image.*
//!
//! # What differs from Linux
//! The clock is read every 16 rounds instead of every 65,536. There is no test-and-set form.

use core::{marker::PhantomData, ptr};

use crate::{
    contract::{Activity, Event, Lock, Platform, Point, Queues, domain},
    faults::mutant::mutant,
    memory::{AtomicU32, AtomicUsize, MODELLED, Ordering::*, array, compiler_fence, fresh},
    qspinlock::{
        DefaultWord, Word,
        parts::{
            DISSOLVED, HEAD, LOCKED, LOCKED_MASK, LOCKED_PENDING, Node, PerCpu, Shared, TAIL_MASK, Table,
            WAITS, become_pending, claim, count_level, hand_over, join, pending_to_owner, queues_in_memory,
            try_lock,
        },
    },
    waiting::Code,
};

/// Resilient queue spinlock.
#[derive(Debug)]
pub struct RqSpinLock<W = DefaultWord> {
    word: AtomicU32,
    layout: PhantomData<fn() -> W>,
}

domain! {
    /// Memory that resilient queue spinlocks of one kernel share: the platform, four nodes and a table of held locks for each CPU.
    RqSpinDomain<CPUS> { cpus: PerCpu, held: Held }
    |domain| Queues { table: 0, ..queues_in_memory(&domain.cpus, &[]) }
}

impl<P, const CPUS: usize> RqSpinDomain<P, CPUS> {
    /// How many locks the table of `cpu` has: those that it holds, if it asks for none.
    pub fn held_by(&self, cpu: usize) -> usize {
        self.held[cpu].len()
    }
}

impl<P: Platform, const CPUS: usize> RqSpinDomain<P, CPUS> {
    fn waiter<'a>(&'a self, word: &'a AtomicU32, cpu: usize) -> Waiter<'a, P> {
        let shared = Shared { platform: &self.platform, cpus: &self.cpus, table: Table::new(&[]) };
        Waiter { shared, held: &self.held, cpu, word }
    }
}

fresh!(pub RqSpinLock<W: Word> { word: AtomicU32::new(0), layout: PhantomData });

impl<W: Word> RqSpinLock<W> {
    /// Acquires the lock, or says why not. After an error nothing is held, and `unlock` must not be called. [`Lock::lock`] tries again
    /// instead.
    #[inline]
    pub fn lock_or_fail<P: Platform, const CPUS: usize>(
        &self,
        domain: &RqSpinDomain<P, CPUS>,
    ) -> Result<(), LockError> {
        const { assert!(CPUS <= W::MAX_CPUS, "the tail of this layout cannot name so many CPUs") };
        let cpu = domain.platform.cpu();
        domain.held[cpu].enter(ptr::from_ref(&self.word).addr());
        domain.platform.point(Point::EntryMade);
        // (0,0,0) -> (0,0,1). Acquire: pairs with unlock.
        match self.word.compare_exchange(0, LOCKED, Acquire, Relaxed) {
            Ok(_) => Ok(()),
            Err(seen) => lock_slow::<W, P>(&domain.waiter(&self.word, cpu), seen),
        }
    }
}

impl<W: Word, P: Platform, const CPUS: usize> Lock<RqSpinDomain<P, CPUS>> for RqSpinLock<W> {
    type Token = ();

    #[inline]
    fn lock(&self, domain: &RqSpinDomain<P, CPUS>) {
        let mut limits = 1;
        while self.lock_or_fail(domain).is_err() {
            pause_before_retry(&self.word, &domain.platform, limits);
            limits = (2 * limits).min(MOST_LIMITS);
        }
    }

    #[inline]
    fn try_lock(&self, domain: &RqSpinDomain<P, CPUS>) -> Option<()> {
        let held = &domain.held[domain.platform.cpu()];
        held.enter(ptr::from_ref(&self.word).addr());
        let taken = try_lock(&self.word);
        if !taken {
            held.leave();
        }
        taken.then_some(())
    }

    #[inline]
    fn unlock(&self, domain: &RqSpinDomain<P, CPUS>, (): ()) {
        // Release: pairs with every acquire of the word.
        W::unlock(&self.word);
        domain.platform.point(Point::EntryStays);
        domain.held[domain.platform.cpu()].leave();
    }
}

/// Why a lock was not acquired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LockError {
    /// The caller would have waited for itself.
    Deadlock,
    /// The lock did not become free in time.
    TimedOut,
}

/// Locks that a table has room for; deeper ones are not watched.
const MOST: usize = if MODELLED { 2 } else { 31 };

/// One CPU's table. Written by this CPU only; interrupts leave it as they found it.
#[derive(Debug)]
#[cfg_attr(not(any(loom, shuttle)), repr(C, align(64)))]
struct Held {
    /// Locks held or asked for. Entries from here on are 0.
    count: AtomicUsize,
    /// Addresses of lock words; 0: the entry is not made yet, or no longer.
    entries: [AtomicUsize; MOST],
}

#[cfg(not(any(loom, shuttle, liveness)))]
const _: () = assert!(usize::BITS < 64 || size_of::<Held>() == 256);

fresh!(Held { count: AtomicUsize::new(0), entries: array![AtomicUsize::new(0); MOST] });

impl Held {
    /// Entries in use, as this CPU sees it.
    fn len(&self) -> usize {
        // Relaxed: own data.
        self.count.load(Relaxed)
    }

    /// Release: pairs with the scan in `wait_in_a_circle`. A scan that sees this count sees the entries as they were then, or newer: not an
    /// old lock under a new count (RQ10).
    #[inline(always)]
    fn set_len(&self, count: usize) {
        self.count.store(count, mutant!("rq-relaxed-count": Release => Relaxed));
    }

    /// E: adds a lock, before it is asked for.
    #[inline(always)]
    fn enter(&self, lock: usize) {
        let count = self.len();
        self.set_len(count + 1);
        // An interrupt from here on uses the next entry.
        compiler_fence(SeqCst);
        if let Some(entry) = self.entries.get(count) {
            // Relaxed: a scan that misses it finds it next time.
            entry.store(lock, Relaxed);
        }
        // An interrupt from here on, and so before the lock is taken, finds the entry (RQ2).
        compiler_fence(SeqCst);
    }

    /// X, U: removes the last lock, after its release.
    #[inline(always)]
    fn leave(&self) {
        // An interrupt up to here finds the entry, though the lock may be free (RQ2).
        compiler_fence(SeqCst);
        let count = self.len() - 1;
        if let Some(entry) = self.entries.get(count) {
            // Relaxed: ordered by the count.
            entry.store(0, Relaxed);
        }
        compiler_fence(SeqCst);
        self.set_len(count + mutant!("rq-keep-entry": 0 => 1));
    }

    /// AA: whether this CPU had the lock before the last one in its table.
    fn held_before_the_last(&self, lock: usize) -> bool {
        self.is_below(lock, self.len())
    }

    /// The lock that another CPU's table ends with, if it holds `lock` below; `None` says nothing.
    fn asked_while_holding(&self, lock: usize) -> Option<usize> {
        // Acquire: pairs with `set_len`.
        let count = self.count.load(Acquire);
        if !(2..=MOST).contains(&count) {
            return None;
        }
        // Relaxed, here and in `is_below`: the count orders what is older.
        let last = self.entries[count - 1].load(Relaxed);
        (last != 0 && self.is_below(lock, count)).then_some(last)
    }

    fn is_below(&self, lock: usize, count: usize) -> bool {
        let below = &self.entries[..count.saturating_sub(1).min(MOST)];
        below.iter().any(|entry| entry.load(Relaxed) == lock)
    }
}

/// The pending CPU waits for one section, the head of the queue for two.
const OF_PENDING: u64 = 2;
const OF_HEAD: u64 = 1;

/// Acquires a lock that is in the CPU's table and whose word was `seen` when it was not free. After an error, X: it is in the table no more.
#[cold]
#[inline(never)]
fn lock_slow<W: Word, P: Platform>(waiter: &Waiter<'_, P>, seen: u32) -> Result<(), LockError> {
    let platform = waiter.shared.platform;
    platform.announce(Activity::Waiter);
    let taken = waiter.lock::<W>(seen);
    if let Err(error) = taken {
        waiter.own().leave();
        platform.announce(Activity::Other);
        let event = match error {
            LockError::Deadlock => Event::LockDeadlock,
            LockError::TimedOut => Event::LockTimedOut,
        };
        platform.count(event, 1);
    }
    taken
}

/// Longest wait between two attempts, in limits.
const MOST_LIMITS: u64 = if MODELLED { 1 } else { 1024 };

/// Before another attempt: lets a queue that is being dissolved end, or a while pass, which is this many limits long.
#[cold]
#[inline(never)]
fn pause_before_retry<P: Platform>(word: &AtomicU32, platform: &P, limits: u64) {
    let since = platform.now();
    loop {
        platform.pause();
        // Relaxed: a hint when to try.
        let is_gone = mutant!("rq-come-back-at-once": word.load(Relaxed) & TAIL_MASK == 0 => true);
        if is_gone || platform.now().wrapping_sub(since) >= platform.lock_limit().saturating_mul(limits) {
            return;
        }
    }
}

/// A CPU in the slow path, whatever the size of its domain.
struct Waiter<'a, P> {
    shared: Shared<'a, P>,
    held: &'a [Held],
    cpu: usize,
    word: &'a AtomicU32,
}

impl<P: Platform> Waiter<'_, P> {
    /// This CPU's table.
    fn own(&self) -> &Held {
        &self.held[self.cpu]
    }

    fn lock<W: Word>(&self, seen: u32) -> Result<(), LockError> {
        let Self { shared, word, .. } = *self;
        let platform = shared.platform;
        // A: before anything that others would have to wait for (RQ3, RQ5).
        if mutant!("rq-forget-own": self.own().held_before_the_last(self.lock_address()) => false) {
            return Err(LockError::Deadlock);
        }
        if let Some(old) = become_pending::<W, P>(word, platform, seen) {
            if old & LOCKED_MASK != 0
                && let Err(error) = self.wait_until_clear(LOCKED_MASK, OF_PENDING)
            {
                W::clear_pending(word);
                return Err(error);
            }
            pending_to_owner::<W, P>(word, platform);
            return Ok(());
        }
        platform.count(Event::LockSlowpath, 1);

        let per_cpu = &shared.cpus[self.cpu];
        let level = per_cpu.own.nesting.enter();
        let taken = match per_cpu.nodes.get(level).filter(|_| self.may_queue(level)) {
            Some(node) => self.queue::<W>(Code::new(self.cpu, level), node),
            None => {
                platform.count(Event::LockNoNode, 1);
                if try_lock(word) { Ok(()) } else { Err(LockError::Deadlock) }
            }
        };
        per_cpu.own.nesting.leave();
        taken
    }

    /// An NMI must not queue if its CPU queues already: it might wait for what it has interrupted (RQ1, RQ4).
    fn may_queue(&self, level: usize) -> bool {
        mutant!("rq-nmi-never-queues": level == 0 => false)
            || !mutant!("rq-nmi-queues": self.shared.platform.is_in_nmi() => false)
    }

    /// Q1 to Q8.
    fn queue<W: Word>(&self, code: Code, node: &Node) -> Result<(), LockError> {
        let Self { shared, word, .. } = *self;
        let platform = shared.platform;
        platform.point(Point::NodeClaimed);
        // Q1, Q2
        count_level(platform, code);
        node.init();
        if try_lock(word) {
            return Ok(());
        }
        // Q3, Q4
        if join::<W, P>(word, shared, code).is_some() && self.await_verdict(node) == DISSOLVED {
            platform.count(Event::LockDissolved, 1);
            self.leave_queue::<W>(code, node, DISSOLVED);
            return Err(LockError::TimedOut);
        }
        // Q5
        platform.announce(Activity::Head);
        match self.wait_until_clear(LOCKED_PENDING, OF_HEAD) {
            Ok(seen) => {
                claim::<W, P>(word, shared, code, node, seen);
                Ok(())
            }
            // The others have done nothing wrong (RQ6).
            Err(LockError::Deadlock) => {
                self.leave_queue::<W>(code, node, mutant!("rq-punish-the-queue": HEAD => DISSOLVED));
                Err(LockError::Deadlock)
            }
            Err(LockError::TimedOut) => {
                self.leave_queue::<W>(code, node, DISSOLVED);
                Err(LockError::TimedOut)
            }
        }
    }

    /// Q4: waits to be made head, or to be sent away; without a clock.
    fn await_verdict(&self, node: &Node) -> u32 {
        loop {
            // Acquire: pairs with Q8, as in the queue of other locks.
            match node.locked.load(Acquire) {
                WAITS => self.shared.platform.pause(),
                verdict => return verdict,
            }
        }
    }

    /// N5, Q5: waits until no bit of `mask` is set; returns the word.
    fn wait_until_clear(&self, mask: u32, part: u64) -> Result<u32, LockError> {
        let mut check = Check::new(self, part);
        loop {
            // Acquire: pairs with unlock.
            let seen = self.word.load(mutant!("rq-relaxed-wait": Acquire => Relaxed));
            if seen & mask == 0 {
                return Ok(seen);
            }
            check.pause()?;
        }
    }

    /// H: leaves the queue, whose next CPU gets the verdict. The last one takes the tail with it: no other would come (RQ9).
    fn leave_queue<W: Word>(&self, code: Code, node: &Node, verdict: u32) {
        // Relaxed: the exchange validates the value.
        let mut seen = self.word.load(Relaxed);
        let own = code.raw() << W::TAIL_SHIFT;
        while mutant!("rq-await-a-successor": seen & !LOCKED_PENDING == own => verdict == DISSOLVED && seen & !LOCKED_PENDING == own)
        {
            // Relaxed: a newcomer that finds no tail needs nothing of this node.
            match self.word.compare_exchange(seen, seen & LOCKED_PENDING, Relaxed, Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
        hand_over(self.shared, node, verdict);
    }

    fn lock_address(&self) -> usize {
        ptr::from_ref(self.word).addr()
    }

    /// ABBA: whether the holder waits for a lock that this CPU holds. Looks at all CPUs, since the word does not name the holder. Circles of
    /// three CPUs end by time.
    fn is_in_a_circle(&self) -> bool {
        for cpu in (0..self.held.len()).filter(|cpu| *cpu != self.cpu) {
            // Acquire: pairs with unlock; if it was released meanwhile, what its last holder asks for does not matter.
            if self.word.load(Acquire) & LOCKED_MASK == 0 {
                return false;
            }
            if let Some(asked) = self.held[cpu].asked_while_holding(self.lock_address()) {
                return mutant!("rq-no-circle": self.own().held_before_the_last(asked) => false);
            }
        }
        false
    }
}

/// Rounds of spinning between two looks at the clock.
const CLOCK_EVERY: u32 = if MODELLED { 1 } else { 16 };
/// Checks for a circle of two CPUs in the time that a head waits.
const CHECKS: u64 = 500;

/// One bounded wait.
struct Check<'a, P> {
    waiter: &'a Waiter<'a, P>,
    /// Divisor of [`Platform::lock_limit`]: the wait is over after the quotient.
    part: u64,
    rounds: u32,
    /// When the wait began, and the last look, in ticks.
    since: u64,
    last: u64,
}

impl<'a, P: Platform> Check<'a, P> {
    /// Starts the clock.
    fn new(waiter: &'a Waiter<'a, P>, part: u64) -> Self {
        let since = waiter.shared.platform.now();
        Self { waiter, part, rounds: 0, since, last: since }
    }

    /// Pauses for one round, or says why there is no use in waiting.
    fn pause(&mut self) -> Result<(), LockError> {
        self.rounds += 1;
        if self.rounds >= CLOCK_EVERY {
            self.rounds = 0;
            self.look()?;
        }
        self.waiter.shared.platform.pause();
        Ok(())
    }

    fn look(&mut self) -> Result<(), LockError> {
        let platform = self.waiter.shared.platform;
        let (limit, now) = (platform.lock_limit(), platform.now());
        if now.wrapping_sub(self.since) >= limit / self.part {
            return Err(LockError::TimedOut);
        }
        if now.wrapping_sub(self.last) < limit / CHECKS {
            return Ok(());
        }
        self.last = now;
        if self.waiter.is_in_a_circle() { Err(LockError::Deadlock) } else { Ok(()) }
    }
}
