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
//! N and Q are the native lock's code; E and U are in this file, X to Q in `wait.rs`, C in `check.rs`, the table in `held.rs`.
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

mod check;
mod fallible;
mod held;
mod wait;

use core::{fmt, marker::PhantomData, ptr};

use held::Held;

pub use self::fallible::{FallibleLock, LockError};

use crate::{
    contract::{Lock, Platform, Point, Queues, domain::domain},
    memory::sync::{AtomicU32, Ordering::*, array, const_unless_loom},
    qspinlock::{
        DefaultWord, Word,
        parts::{LOCKED, PerCpu, Shared, Table, queues_in_memory, try_lock},
    },
};

/// Resilient queue spinlock.
pub struct RqSpinLock<W = DefaultWord> {
    word: AtomicU32,
    layout: PhantomData<fn() -> W>,
}

/// Memory that resilient queue spinlocks of one kernel share: the platform, four nodes and a table of held locks for each CPU.
#[derive(Debug)]
pub struct RqSpinDomain<P, const CPUS: usize> {
    platform: P,
    cpus: [PerCpu; CPUS],
    held: [Held; CPUS],
}

domain!(RqSpinDomain<CPUS>, queues_in_memory);

impl<P, const CPUS: usize> RqSpinDomain<P, CPUS> {
    const_unless_loom! {
        /// The memory of `CPUS` CPUs, which hold nothing.
        pub const fn new(platform: P) -> Self {
            Self { platform, cpus: array![PerCpu::new(); CPUS], held: array![Held::new(); CPUS] }
        }
    }

    /// How many locks the table of `cpu` has: those that it holds, if it asks for none.
    pub fn held_by(&self, cpu: usize) -> usize {
        self.held[cpu].len()
    }

    fn queues_in_memory(&self) -> Queues {
        Queues { table: 0, ..queues_in_memory(&self.cpus, &[]) }
    }
}

impl<P: Platform, const CPUS: usize> RqSpinDomain<P, CPUS> {
    fn view(&self, cpu: usize) -> View<'_, P> {
        let shared = Shared { platform: &self.platform, cpus: &self.cpus, table: Table::new(&[]) };
        View { shared, held: &self.held, cpu }
    }
}

/// A domain of any size, as a CPU sees it.
struct View<'a, P> {
    shared: Shared<'a, P>,
    held: &'a [Held],
    cpu: usize,
}

impl<P> Clone for View<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for View<'_, P> {}

impl<'a, P> View<'a, P> {
    /// This CPU's table.
    fn own(&self) -> &'a Held {
        &self.held[self.cpu]
    }
}

impl<W: Word> RqSpinLock<W> {
    const_unless_loom! {
        /// A free lock.
        pub const fn new() -> Self {
            Self { word: AtomicU32::new(0), layout: PhantomData }
        }
    }
}

impl<W> fmt::Debug for RqSpinLock<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RqSpinLock").field("word", &self.word).finish()
    }
}

impl<W: Word, P: Platform, const CPUS: usize> FallibleLock<RqSpinDomain<P, CPUS>> for RqSpinLock<W> {
    #[inline]
    fn lock_or_fail(&self, domain: &RqSpinDomain<P, CPUS>) -> Result<(), LockError> {
        const { assert!(CPUS <= W::MAX_CPUS, "the tail of this layout cannot name so many CPUs") };
        let cpu = domain.platform.cpu();
        domain.held[cpu].enter(ptr::from_ref(&self.word).addr());
        domain.platform.point(Point::EntryMade);
        // (0,0,0) -> (0,0,1). Acquire: pairs with unlock.
        match self.word.compare_exchange(0, LOCKED, Acquire, Relaxed) {
            Ok(_) => Ok(()),
            Err(seen) => wait::lock_slow::<W, P>(&self.word, domain.view(cpu), seen),
        }
    }
}

impl<W: Word, P: Platform, const CPUS: usize> Lock<RqSpinDomain<P, CPUS>> for RqSpinLock<W> {
    type Token = ();

    #[inline]
    fn lock(&self, domain: &RqSpinDomain<P, CPUS>) {
        let mut retry = wait::Retry::new();
        while self.lock_or_fail(domain).is_err() {
            retry.pause(&self.word, &domain.platform);
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
