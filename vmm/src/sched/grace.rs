//! The grace (`--grace`): a vCPU whose slice ends while it holds a lock may run a little longer, once in a turn, to leave its
//! section.
//!
//! The time that it runs beyond the slice is charged to its next one. So a vCPU that always claims to hold a lock gains nothing.

use std::sync::atomic::Ordering;

use crate::guest::activity::Activity;
use crate::sched::pcpu::Pcpu;
use crate::sched::queue::Task;
use crate::sched::slice::Timer;

/// The rules of a run about grace.
pub(super) struct Grace {
    /// Its length; 0: there is none.
    pub(super) length_ns: u64,
    /// The length of a slice, which is the most that is ever charged.
    pub(super) slice_ns: u64,
}

impl Grace {
    /// The slice of the vCPU is over: whether it may run on. If so, the guest is asked to yield once it has left its section.
    pub(super) fn grants<T: Timer>(&self, task: &Task<'_>, pcpu: &mut Pcpu<'_, T>, now_ns: u64) -> bool {
        let Some(shared) = &task.guest.shared else { return false };
        // Relaxed: the vCPU is stopped.
        let asks = || shared.area(task.vcpu.id).activity.asks_for_no_grace.load(Ordering::Relaxed) == 0;
        if self.length_ns == 0
            || pcpu.grace.is_some()
            || task.guest.activity(task.vcpu.id) != Activity::Holder
            || !asks()
        {
            return false;
        }
        pcpu.grace = Some(now_ns);
        pcpu.slice.extend(now_ns + self.length_ns);
        // Relaxed: the vCPU is stopped.
        shared.area(task.vcpu.id).host.yield_wanted.store(1, Ordering::Relaxed);
        true
    }

    /// The turn ends, with grace or without: charges what the vCPU ran beyond its slice. `expired`: it did not leave its section
    /// in time.
    pub(super) fn settle<T: Timer>(
        &self,
        task: &mut Task<'_>,
        pcpu: &mut Pcpu<'_, T>,
        expired: bool,
        now_ns: u64,
    ) {
        let Some(granted_ns) = pcpu.grace.take() else { return };
        if let Some(shared) = &task.guest.shared {
            // Relaxed: the vCPU is stopped.
            shared.area(task.vcpu.id).host.yield_wanted.store(0, Ordering::Relaxed);
        }
        let overrun_ns = now_ns.saturating_sub(granted_ns);
        task.account.turns.debt_ns = overrun_ns.min(self.slice_ns);
        if task.guest.window.contains(now_ns) {
            let graces = &mut task.account.books.graces;
            graces.granted += 1;
            graces.expired += u64::from(expired);
            graces.overrun_ns += overrun_ns;
        }
    }
}
