//! Any lock, behind a gate: a few CPUs ask for it, and all others stand in a queue and sleep.
//!
//! ```text
//! I1 lock    active += 1 if active < LIMIT, else queue (J0 to J6); then lock the inner one
//! I2 try     try the inner one, if active < LIMIT; active += 1
//! I3 unlock  active -= 1, unless the first in the queue sleeps, and may join from here on: L2
//! I4         unlock the inner one; kick the CPU that L2 has found
//! ```
//!
//! # Why no sleeper is forgotten
//! The argument of the [module](super) rests on this: while the lock is held, active only grows. I3 comes before I4 for that. If it came
//! after, several CPUs could be in L2, and one of them could find the word as it was, and kick a CPU that had been first before.
//! I2 counts the CPU when it holds the lock, for one that had counted itself and failed would have to leave without holding it.
//!
//! Therefore active is one too small between I3 and I4, and between the two steps of I2: one CPU too many may ask for the inner lock.
//!
//! # How long a CPU waits
//! In the queue as in [`Gcr`](super::Gcr): the first is let in after (N - 1) * (PROMOTE - 1) + 1 sections of others. From then on as
//! in the inner lock, where LIMIT CPUs and those that were let in wait.
//!
//! # What it is for
//! It separates the gate from the lock behind it. The CPUs that the gate lets in still wait there as that lock does, in a strict queue
//! behind one that does not run.

use super::{
    ACTIVE, LIMIT,
    gate::{Gate, GcrDomain, active},
};
use crate::{
    contract::{Domain, Lock, Platform, Queues},
    memory::sync::{Ordering::*, const_unless_loom},
};

/// A lock of type `L` for which only a few CPUs ask at a time.
#[derive(Debug)]
#[repr(C)]
pub struct GcrOver<L> {
    gate: Gate,
    inner: L,
}

/// The domain of the gates, and that of the inner locks.
#[derive(Debug)]
pub struct GcrOverDomain<P, D, const CPUS: usize> {
    gates: GcrDomain<P, CPUS>,
    inner: D,
}

impl<P, D, const CPUS: usize> GcrOverDomain<P, D, CPUS> {
    const_unless_loom! {
        /// The memory of `CPUS` CPUs, and `inner`, that of the inner locks on the same platform.
        pub const fn new(platform: P, inner: D) -> Self {
            Self { gates: GcrDomain::new(platform), inner }
        }
    }
}

impl<P: Platform, D: Sync, const CPUS: usize> Domain for GcrOverDomain<P, D, CPUS> {
    type Platform = P;

    #[inline(always)]
    fn platform(&self) -> &P {
        self.gates.platform()
    }

    /// The queues of the gates.
    fn queues(&self) -> Option<Queues> {
        self.gates.queues()
    }
}

impl<L> GcrOver<L> {
    const_unless_loom! {
        /// A free lock over a free lock.
        pub const fn new(inner: L) -> Self {
            Self { gate: Gate::new(), inner }
        }
    }

    /// I1 where others race or wait.
    #[cold]
    #[inline(never)]
    fn join<P: Platform, const CPUS: usize>(&self, domain: &GcrDomain<P, CPUS>, mut seen: u32) {
        while active(seen) < LIMIT {
            // Relaxed: the inner lock orders.
            match self.gate.word.compare_exchange_weak(seen, seen + ACTIVE, Relaxed, Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
        self.gate.queue(domain);
    }
}

impl<L, P, D, const CPUS: usize> Lock<GcrOverDomain<P, D, CPUS>> for GcrOver<L>
where
    L: Lock<D>,
    P: Platform,
{
    type Token = L::Token;

    #[inline(always)]
    fn lock(&self, domain: &GcrOverDomain<P, D, CPUS>) -> L::Token {
        // I1. Relaxed, here and below: the inner lock orders.
        if let Err(seen) = self.gate.word.compare_exchange(0, ACTIVE, Relaxed, Relaxed) {
            self.join(&domain.gates, seen);
        }
        self.inner.lock(&domain.inner)
    }

    #[inline(always)]
    fn try_lock(&self, domain: &GcrOverDomain<P, D, CPUS>) -> Option<L::Token> {
        if active(self.gate.word.load(Relaxed)) >= LIMIT {
            return None;
        }
        let token = self.inner.try_lock(&domain.inner)?;
        // I2
        self.gate.word.fetch_add(ACTIVE, Relaxed);
        Some(token)
    }

    #[inline(always)]
    fn unlock(&self, domain: &GcrOverDomain<P, D, CPUS>, token: L::Token) {
        // I3
        let first = match self.gate.word.compare_exchange(ACTIVE, 0, Relaxed, Relaxed) {
            Ok(_) => None,
            Err(seen) => self.gate.leave(&domain.gates, seen, ACTIVE),
        };
        // I4. T4: from here on, only the domain is touched.
        self.inner.unlock(&domain.inner, token);
        domain.gates.let_in(first);
    }
}
