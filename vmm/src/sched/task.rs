//! A vCPU between its turns, and the vCPUs that neither run, are ready nor sleep in `pv_wait`: aside, dozing, not started, started
//! before others, done.
//!
//! A vCPU that is descheduled on purpose lies aside until its time is over. Then it is ready, and late: it is next.
//!
//! A vCPU that halts in KVM's hands (a Linux guest's) would keep its pCPU until something wakes it. So the runner looks whether it has
//! halted, each time after as long as it has looked away: unnoticed, it keeps the pCPU for at most as long as it has run. It dozes then.
//! No event tells when something has come for it, so runners look for that too, between turns.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::machine::vcpu::Vcpu;
use crate::sched::account::Account;
use crate::sched::guest_run::GuestRun;

/// A vCPU and its books.
pub(super) struct Task<'a> {
    pub(super) guest: &'a GuestRun<'a>,
    pub(super) vcpu: Vcpu,
    pub(super) account: Account,
    /// The pCPU that it ran on last. It is run there again where that is fair: its caches are warm there, and before
    /// Linux 6.13 a vCPU that changes threads waits for an RCU grace period.
    pub(super) last_pcpu: Option<u32>,
    /// The end of the run took it off its pCPU.
    pub(super) stopped: bool,
}

impl Task<'_> {
    /// Number among the vCPUs of all guests.
    pub(super) fn number(&self) -> u32 {
        self.guest.number_of(self.vcpu.id)
    }
}

/// vCPUs that neither run, are ready nor sleep in `pv_wait`. Tasks are boxed wherever they lie: they change places thousands of times a
/// second.
#[derive(Default)]
#[expect(clippy::vec_box, reason = "they come out of the other places boxed")]
pub(super) struct Apart<'a> {
    /// Descheduled on purpose, or kept by a quota: until when, and which.
    pub(super) aside: BTreeMap<(u64, u32), Box<Task<'a>>>,
    /// Halted in KVM's hands: when to look next, and which.
    pub(super) dozing: BTreeMap<(u64, u32), Box<Task<'a>>>,
    /// Not started until vCPU 0 says so.
    pub(super) not_started: Vec<Box<Task<'a>>>,
    /// Started, while others of their guests have not.
    pub(super) started: Vec<Box<Task<'a>>>,
    /// Done, or failed.
    pub(super) left: Vec<Box<Task<'a>>>,
}

impl<'a> Apart<'a> {
    /// When one of them is due next.
    pub(super) fn next_ns(&self) -> Option<u64> {
        let next = [self.aside.keys().next(), self.dozing.keys().next()];
        next.into_iter().flatten().min().map(|(due_ns, _)| *due_ns)
    }

    /// A vCPU whose time aside is over at `now_ns`.
    pub(super) fn take_aside(&mut self, now_ns: u64) -> Option<Box<Task<'a>>> {
        let entry = self.aside.first_entry().filter(|entry| entry.key().0 <= now_ns);
        entry.map(std::collections::btree_map::OccupiedEntry::remove)
    }

    /// A vCPU that dozes and has had no look since it was due at `now_ns`: one of `pcpu`'s own, or any if there is `nothing_else` to do.
    pub(super) fn take_dozing(
        &mut self,
        now_ns: u64,
        pcpu: u32,
        nothing_else: bool,
    ) -> Option<Box<Task<'a>>> {
        let mut due = self.dozing.iter().take_while(|((look_ns, _), _)| *look_ns <= now_ns);
        let (&key, _) = due.find(|(_, task)| nothing_else || task.last_pcpu == Some(pcpu))?;
        self.dozing.remove(&key)
    }

    /// Lays a halted vCPU to rest. The longer it has slept the less often it is looked at, so that it is found at most a
    /// quarter of that late; an idle guest must not keep its pCPUs busy.
    pub(super) fn doze(&mut self, now_ns: u64, first_look_ns: u64, task: Box<Task<'a>>) {
        let slept_ns = now_ns.saturating_sub(task.account.since_ns);
        let look_ns = (slept_ns / 4).clamp(first_look_ns, first_look_ns.max(LONGEST_LOOK_NS));
        self.dozing.insert((now_ns + look_ns, task.number()), task);
    }
}

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
