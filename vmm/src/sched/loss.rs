//! Time that the other vCPUs lose while a vCPU is off.
//!
//! While a holder is off no other vCPU gets its lock. So each vCPU that waits for that lock when the holder comes back has waited since
//! it asked, or since the holder was taken off, whichever was later: one look at the return is exact.
//!
//! While the next in line is off, no other vCPU gets the lock either, from the moment that it is free. The VMM knows that moment
//! from its looks only: from the first at which no vCPU was inside, if no section has been entered since. That is a
//! lower bound, short by at most the time between two looks, which is less than a slice. And it is charged only to a vCPU
//! that then does enter: of all that were off meanwhile, that is the one the others waited for.
//!
//! The guest writes all that is read here. What it writes moves the figures, each within the time that has passed.

use std::sync::atomic::{AtomicU64, Ordering};

use haltkick_hypercalls::{ACTIVITY_HEAD, ACTIVITY_WAITER, MAX_LOCKS};

use crate::guest::memory::Memory;
use crate::guest::{Activity, ByActivity};
use crate::host::clock::{Moment, Nanoseconds, Ticks, TscRate};
use crate::sched::window::WindowTimes;

// Relaxed throughout: the guest's lines are read while it runs, and what two runners write at once is wrong by
// the moment between them.

/// Last look at a lock, in lines of its own, since other looks write to theirs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct LastLook {
    /// Sections entered, where no vCPU was inside; else 0.
    entered: AtomicU64,
    /// When that number was first seen.
    since_ns: AtomicU64,
}

impl LastLook {
    /// A look at `now_ns`, when `entered` sections had been entered and `owner` was inside, or none (0). If none was inside:
    /// since when, as far as is known.
    pub(crate) fn idle_since(&self, entered: u64, owner: u32, now_ns: u64) -> Option<u64> {
        if owner != 0 {
            self.entered.store(0, Ordering::Relaxed);
            return None;
        }
        if self.entered.load(Ordering::Relaxed) != entered {
            self.since_ns.store(now_ns, Ordering::Relaxed);
            self.entered.store(entered, Ordering::Relaxed);
        }
        (entered > 0).then(|| self.since_ns.load(Ordering::Relaxed))
    }
}

pub(crate) struct Losses<'a> {
    memory: &'a Memory,
    /// One per lock.
    looks: Vec<LastLook>,
}

impl<'a> Losses<'a> {
    pub(crate) fn new(memory: &'a Memory, locks: u32) -> Self {
        Self { memory, looks: (0..locks.min(MAX_LOCKS)).map(|_| LastLook::default()).collect() }
    }

    /// The lock that `vcpu` says it is at, if there is such a lock.
    pub(crate) fn lock_of(&self, vcpu: u32) -> Option<u32> {
        let lock = self.memory.area(vcpu).activity.lock.load(Ordering::Relaxed);
        ((lock as usize) < self.looks.len()).then_some(lock)
    }

    /// Whether `vcpu` is inside the section of the lock that it says it is at; `None` where that is not recorded.
    pub(crate) fn is_inside(&self, vcpu: u32) -> Option<bool> {
        let oracle = self.memory.oracle(self.lock_of(vcpu)?);
        let kept = oracle.entered.load(Ordering::Relaxed) > 0;
        kept.then(|| oracle.owner.load(Ordering::Relaxed) == vcpu + 1)
    }

    /// Looks at `lock`. If no vCPU is inside: since when, as far as is known.
    pub(crate) fn idle_since(&self, lock: u32, now_ns: u64) -> Option<u64> {
        let oracle = self.memory.oracle(lock);
        let (entered, owner) = (oracle.entered.load(Ordering::Relaxed), oracle.owner.load(Ordering::Relaxed));
        self.looks[lock as usize].idle_since(entered, owner, now_ns)
    }

    /// Time that all but `vcpu` have waited for `lock` from `from_ns` until now by the `clock`.
    pub(crate) fn waited_by_others(&self, vcpu: u32, lock: u32, from_ns: u64, clock: GuestClock<'_>) -> u64 {
        let wait = |other: u32| {
            let activity = &self.memory.area(other).activity;
            let waits = matches!(activity.state.load(Ordering::Relaxed), ACTIVITY_WAITER | ACTIVITY_HEAD);
            (waits && activity.lock.load(Ordering::Relaxed) == lock)
                .then(|| activity.since_tsc.load(Ordering::Relaxed))
        };
        let since_tsc = (0..self.memory.vcpus()).filter(|&other| other != vcpu).filter_map(wait);
        clock.waited_ns(since_tsc, from_ns, clock.now.ns)
    }
}

/// A moment on the host's clock and on the guest's counter, from which others are reckoned, and the window outside of which no time
/// counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GuestClock<'a> {
    /// Not long ago.
    pub(crate) now: Moment,
    pub(crate) rate: TscRate,
    pub(crate) window: &'a WindowTimes,
}

impl GuestClock<'_> {
    /// The guest's counter at `ns`. It may wrap: the guest chooses where it began.
    fn tsc(&self, ns: u64) -> u64 {
        let ticks = |ns: u64| self.rate.ticks(Nanoseconds(ns)).0;
        match self.now.ns.checked_sub(ns) {
            Some(ago_ns) => self.now.tsc.wrapping_sub(ticks(ago_ns)),
            None => self.now.tsc.wrapping_add(ticks(ns - self.now.ns)),
        }
    }

    /// The total wait, between two moments of host time and inside the window, of the vCPUs that say they have waited
    /// since `since_tsc`: spinning, asleep, or without a pCPU.
    pub(crate) fn waited_ns(self, since_tsc: impl Iterator<Item = u64>, from_ns: u64, to_ns: u64) -> u64 {
        let Some((from_ns, to_ns)) = self.window.clip(from_ns, to_ns) else { return 0 };
        let from = self.tsc(from_ns);
        // If the counter wrapped meanwhile, nothing is counted.
        let to = self.tsc(to_ns).max(from);
        let ticks = since_tsc.map(|since| to - since.clamp(from, to)).fold(0, u64::saturating_add);
        self.rate.nanoseconds(Ticks(ticks)).0
    }
}

/// Time that others have lost to a vCPU, if it turns out that they waited for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    activity: Activity,
    lost_ns: u64,
    /// Sections that this vCPU had entered when it came back.
    entered: u64,
}

impl Claim {
    /// Settles the claim when the vCPU is off again and has entered `entered` sections: adds to `lost_ns` what the others lost, if it was
    /// this one that they waited for.
    pub(crate) fn settle(self, entered: u64, lost_ns: &mut ByActivity) {
        if entered != self.entered {
            *lost_ns.of(self.activity) += self.lost_ns;
        }
    }
}

/// Accounts for a vCPU that is back: it was taken off at `off_ns` while it did `activity`, and has entered `entered` sections. `idle_ns`:
/// since when no vCPU has been inside its lock, if none is. `waited_since`: the others' wait since a moment. Returns what they have lost
/// for sure, to a holder, and what else is claimed.
pub(crate) fn on_return(
    activity: Activity,
    off_ns: u64,
    idle_ns: Option<u64>,
    entered: u64,
    waited_since: impl FnOnce(u64) -> u64,
) -> (u64, Option<Claim>) {
    match (activity, idle_ns) {
        (Activity::Holder, _) => (waited_since(off_ns), None),
        (Activity::Head | Activity::Waiter, Some(idle_ns)) => {
            (0, Some(Claim { activity, lost_ns: waited_since(off_ns.max(idle_ns)), entered }))
        }
        _ => (0, None),
    }
}

/// Time that the scans of all waiters at the returns of one vCPU take, and the bound on it.
///
/// A scan reads a line of each vCPU, and with a thousand of them it may take longer than a short slice.
#[derive(Debug, Default)]
pub(crate) struct ScanBudget {
    spent_ns: u64,
    /// Scans that were left out: what they would have found is missing from the losses.
    pub(crate) skipped: u64,
}

impl ScanBudget {
    /// A vCPU's time on pCPUs over the time that may go into its scans.
    const SHARE: u64 = 100;
    /// Time for scans of a vCPU that has hardly run.
    const CREDIT_NS: u64 = 50_000;

    /// The result of `scan`, which returns what it has found and how long it took, if the vCPU has run long enough for it; else 0.
    pub(crate) fn within(&mut self, run_ns: u64, scan: impl FnOnce() -> (u64, u64)) -> u64 {
        if self.spent_ns > Self::CREDIT_NS + run_ns / Self::SHARE {
            self.skipped += 1;
            return 0;
        }
        let (found, took_ns) = scan();
        self.spent_ns = self.spent_ns.saturating_add(took_ns);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scans_take_one_part_in_a_hundred_and_the_others_are_counted() {
        const SLICE_NS: u64 = 100_000;
        for (scan_ns, all_are_made) in [(500, true), (20_000, false)] {
            let (mut budget, mut spent_ns, mut made) = (ScanBudget::default(), 0, 0);
            for slice in 0..10_000 {
                made += budget.within(slice * SLICE_NS, || {
                    spent_ns += scan_ns;
                    (1, scan_ns)
                });
            }
            assert_eq!((made + budget.skipped, budget.skipped == 0), (10_000, all_are_made), "{scan_ns} ns");
            let most_ns = 10_000 * SLICE_NS / 100 + ScanBudget::CREDIT_NS + scan_ns;
            assert!(spent_ns <= most_ns, "{spent_ns} ns");
            assert!(all_are_made || spent_ns > most_ns * 9 / 10, "{spent_ns} ns are less than allowed");
        }
    }
}
