//! Time of pCPUs: with a vCPU, idle, or in the VMM. Also the time of vCPUs, for a profile: the board counts it, and is told for which
//! vCPU and when.

use crate::guest::Activity;
use crate::observe::Where;
use crate::observe::profile::Sampled;
use crate::sched::guest_run::GuestRun;

use super::{Doing, PS, Simulated, State};

/// Time that is over, of all pCPUs.
#[derive(Debug, Default)]
pub(super) struct Spent {
    /// Turns of vCPUs.
    pub(super) busy_ps: u64,
    /// Exits from leaving a guest to entering it again, or to the end of the vCPU's turn.
    pub(super) exits_ps: u64,
    /// Changes from one vCPU to the next.
    pub(super) switches_ps: u64,
}

impl<'a> Simulated<'a> {
    pub(super) fn asleep(&self, state: &State<'a>) -> u32 {
        let sleeps = |at: Where| matches!(at, Where::Asleep);
        let off = state.hosted.iter().flat_map(super::Hosted::tasks);
        let off = off.filter(|task| sleeps(task.account.whereabouts().at)).count();
        (off + self.core.whereabouts().iter().filter(|found| sleeps(found.at)).count()) as u32
    }

    /// Address of the mark for the vCPU's time in a profile, while the window of its guest is open.
    pub(super) fn mark_at(&self, guest: &GuestRun<'_>, vcpu: u32, now_ps: u64) -> Option<u64> {
        let memory = guest.shared.as_ref().filter(|_| guest.window.contains(now_ps / PS))?.memory;
        Some(self.partitions[guest.index].start + memory.address_of(&memory.area(vcpu).activity.state))
    }

    /// A window may have opened or closed. CPUs that have come ahead of the others by then are counted from where they are, or up to
    /// there: at most 20 us each.
    pub(super) fn count_time(&self, state: &mut State<'a>) {
        for slot in &state.slots {
            if let Doing::Runs { task, .. } = &slot.doing {
                let mark_at = self.mark_at(task.guest, task.vcpu.id, state.now_ps);
                state.board.count_time_of(slot.cpu, mark_at);
            }
        }
    }

    pub(super) fn hand_in_time(&self) {
        let state = self.state.borrow();
        let spent: Vec<_> = state.board.spent().collect();
        let spent_ps: u64 = spent.iter().map(|(_, ps)| ps).sum();
        let guest = &self.core.guests[0];
        let window_ns = if guest.window.is_closed() { guest.window.length().as_nanos() as u64 } else { 0 };
        let all_ns = window_ns * state.slots.len() as u64;
        let spent = spent.iter().map(|(on, ps)| {
            let activity = Activity::said(on.mark);
            (Sampled { rip: on.rip, activity, in_vmm: on.still }, ps / PS)
        });
        if let Some(samples) = &guest.notes.samples {
            samples.hand_in_all(spent, all_ns.saturating_sub(spent_ps / PS));
        }
    }
}
