//! pCPUs that have nothing to run, and how they wake up.

use std::cmp::Reverse;

use crate::sched::core::Next;

use super::placing::Snapshot;
use super::{Doing, Due, PS, Simulated, State};

impl<'a> Simulated<'a> {
    /// An idle pCPU takes a vCPU, if one is ready, and gets to it after it has woken up.
    pub(super) fn looks(&self, state: &mut State<'a>, index: usize, at_ps: u64) {
        if state.hosted.is_some() {
            return self.looks_hosted(state, index, at_ps);
        }
        let slot = &mut state.slots[index];
        let Doing::Idle { since_ps } = slot.doing else { return };
        self.core.idle.leave(slot.cpu);
        match self.core.next(slot.cpu) {
            Next::Runs(task) => {
                let deep_ps = self.machine.deep_wake_ps(at_ps.saturating_sub(since_ps));
                slot.doing = Doing::Changes { task, since_ps: None };
                let wake_ps = state.scattered(self.machine.costs.guest.wake_ps + deep_ps);
                state.due.push(Reverse((at_ps + wake_ps, Due::Begins(index))));
            }
            Next::Idles(until_ns) => {
                if let Some(until_ns) = until_ns {
                    state.due.push(Reverse(((until_ns * PS).max(at_ps + PS), Due::Looks(index))));
                }
            }
            Next::Ends => slot.doing = Doing::Ended,
        }
    }

    /// Each vCPU that is ready wakes up an idle pCPU, as long as there are both.
    pub(super) fn wake_idle(&self, state: &mut State<'a>) {
        if state.hosted.is_some() {
            return self.admit(state);
        }
        while let Some(last) = self.core.next_ran_on() {
            let snapshot =
                Snapshot { topology: &self.machine.topology, used: &state.used, idle: &self.core.idle.set };
            let Some(pcpu) = snapshot.place(self.machine.model.placement, last) else { return };
            self.looks(state, state.slot_of[pcpu as usize], state.now_ps);
        }
    }
}
