//! When to look whether a vCPU that halts in KVM's hands (a Linux guest's) has halted, or has been woken.
//!
//! Such a vCPU would keep its pCPU until something wakes it. So the runner looks whether it has halted, each time after as
//! long as it has looked away: unnoticed, it keeps the pCPU for at most as long as it has run. It dozes then. No event
//! tells when something has come for it, so runners look for that too, between turns.

use std::sync::atomic::{AtomicU64, Ordering};

/// The first look waits at least `LOOK_NS`, and at least `LOOK_COSTS` times the recent cost of a look. On hardware the former is more;
/// emulated, a look may take a millisecond.
const LOOK_NS: u64 = 100_000;
const LOOK_COSTS: u64 = 16;
/// The longest that anyone waits for the next look after a wake-up: less than a tick of most kernels.
pub(super) const LONGEST_LOOK_NS: u64 = 2_000_000;

/// The recent cost of a look.
#[derive(Default)]
pub(super) struct LookCost(AtomicU64);

impl LookCost {
    /// A look has taken `ns`.
    pub(super) fn note(&self, ns: u64) {
        // Relaxed: an estimate; one that is lost by two at once is as good.
        let lately_ns = self.0.load(Ordering::Relaxed);
        self.0.store((lately_ns * 7 + ns) / 8, Ordering::Relaxed);
    }

    /// When to look first at a vCPU that has got a pCPU, or has gone to sleep; within a slice in any case.
    pub(super) fn first_look_ns(&self, slice_ns: u64) -> u64 {
        // Relaxed: an estimate.
        let costs_ns = self.0.load(Ordering::Relaxed) * LOOK_COSTS;
        costs_ns.min(slice_ns / 2).max(LOOK_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLICE_NS: u64 = 10_000_000;

    #[test]
    fn looks_that_cost_more_are_rarer_but_within_the_slice() {
        let cost = LookCost::default();
        assert_eq!(cost.first_look_ns(SLICE_NS), LOOK_NS);
        (0..100).for_each(|_| cost.note(50_000));
        let later = cost.first_look_ns(SLICE_NS);
        assert!((700_000..=800_000).contains(&later), "{later}");
        (0..100).for_each(|_| cost.note(5_000_000));
        assert_eq!(cost.first_look_ns(SLICE_NS), SLICE_NS / 2);
    }
}
