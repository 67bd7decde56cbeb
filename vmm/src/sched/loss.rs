//! What the others lose while a vCPU is off.
//!
//! While a holder is off nobody gets its lock. So whoever waits for that lock when the holder comes back has waited since
//! it asked, or since the holder was taken off, whichever was later: one look at the return is exact.
//!
//! While the next in line is off, nobody gets the lock either, from the moment that it is free. When that was, the VMM
//! knows from its looks only: from the first at which nobody was inside, if no section has been entered since. That is a
//! lower bound, short by at most the time between two looks, which is less than a slice. And it is charged only to a vCPU
//! that then does enter: of all that were off meanwhile, that is the one the others waited for.
//!
//! The guest writes all that is read here. What it writes moves the figures, each within the time that has passed.

use std::sync::atomic::{AtomicU64, Ordering};

use haltkick_hypercalls::{ACTIVITY_HEAD, ACTIVITY_WAITER, MAX_LOCKS};

use crate::guest::memory::Memory;
use crate::host::clock::WindowTimes;

// Relaxed throughout: the guest's lines are read while it runs, and a watch that two runners write at once is wrong by
// the moment between them.

/// What was last seen of a lock.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// Sections entered.
    entered: AtomicU64,
    /// When that number was first seen.
    since_ns: AtomicU64,
}

impl Watch {
    /// A look at `now_ns`, when so many sections had been entered and `owner` was inside, or nobody (0). When nobody was:
    /// since when, as far as is known.
    pub(crate) fn idle_since(&self, entered: u64, owner: u32, now_ns: u64) -> Option<u64> {
        if self.entered.load(Ordering::Relaxed) != entered {
            self.since_ns.store(now_ns, Ordering::Relaxed);
            self.entered.store(entered, Ordering::Relaxed);
        }
        (entered > 0 && owner == 0).then(|| self.since_ns.load(Ordering::Relaxed))
    }
}

/// Who waits for what.
pub(crate) struct Losses<'a> {
    memory: &'a Memory,
    vcpus: u32,
    tsc_khz: u64,
    /// One per lock.
    watches: Vec<Watch>,
}

impl<'a> Losses<'a> {
    pub(crate) fn new(memory: &'a Memory, vcpus: u32, locks: u32, tsc_khz: u64) -> Self {
        let watches = (0..locks.min(MAX_LOCKS)).map(|_| Watch::default()).collect();
        Self { memory, vcpus, tsc_khz, watches }
    }

    /// `ns` in TSC ticks.
    pub(crate) fn ticks(&self, ns: u64) -> u64 {
        (u128::from(ns) * u128::from(self.tsc_khz) / 1_000_000) as u64
    }

    /// The lock that `vcpu` says it is at, if there is such a lock.
    pub(crate) fn lock_of(&self, vcpu: u32) -> Option<u32> {
        let lock = self.memory.area(vcpu).activity.lock.load(Ordering::Relaxed);
        ((lock as usize) < self.watches.len()).then_some(lock)
    }

    /// Whether `vcpu` is inside the section of the lock that it says it is at; `None` where nobody writes that down.
    pub(crate) fn is_inside(&self, vcpu: u32) -> Option<bool> {
        let oracle = self.memory.oracle(self.lock_of(vcpu)?);
        let kept = oracle.entered.load(Ordering::Relaxed) > 0;
        kept.then(|| oracle.owner.load(Ordering::Relaxed) == vcpu + 1)
    }

    /// Looks at `lock`. When nobody is inside: since when, as far as is known.
    pub(crate) fn idle_since(&self, lock: u32, now_ns: u64) -> Option<u64> {
        let oracle = self.memory.oracle(lock);
        let (entered, owner) = (oracle.entered.load(Ordering::Relaxed), oracle.owner.load(Ordering::Relaxed));
        self.watches[lock as usize].idle_since(entered, owner, now_ns)
    }

    /// Time that all but `vcpu` have waited for `lock` from `from_ns` to now (host time, guest's TSC), inside the window:
    /// spinning, asleep, or without a pCPU.
    pub(crate) fn waited_by_others(
        &self,
        vcpu: u32,
        lock: u32,
        from_ns: u64,
        (now_ns, now_tsc): (u64, u64),
        window: &WindowTimes,
    ) -> u64 {
        let Some((from_ns, to_ns)) = window.clip(from_ns, now_ns) else { return 0 };
        let (from, to) = (now_tsc - self.ticks(now_ns - from_ns), now_tsc - self.ticks(now_ns - to_ns));
        let waited = |other: u32| {
            let activity = &self.memory.area(other).activity;
            let waits = matches!(activity.state.load(Ordering::Relaxed), ACTIVITY_WAITER | ACTIVITY_HEAD);
            if other == vcpu || !waits || activity.lock.load(Ordering::Relaxed) != lock {
                return 0;
            }
            to - activity.since_tsc.load(Ordering::Relaxed).clamp(from, to)
        };
        let ticks: u64 = (0..self.vcpus).map(waited).sum();
        (u128::from(ticks) * 1_000_000 / u128::from(self.tsc_khz)) as u64
    }
}
