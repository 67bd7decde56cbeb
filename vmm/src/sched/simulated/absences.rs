//! vCPUs that are off because a recorded schedule or a witness says so.
//!
//! A recorded schedule is repeated: each vCPU is off its pCPU when it was so in the recording, from the opening of the window on. A
//! witness may take a pCPU away for a while with the vCPU that it runs: another tenant of the host runs there.

use std::cmp::Reverse;
use std::sync::Arc;

use haltkick_sim::machine::Machine;
use haltkick_sim::schedule::{Absence, Schedule};
use serde::{Deserialize, Serialize};

use crate::sched::core::Turn;
use crate::sched::guest_run::GuestRun;
use crate::sched::task::Task;

use super::{Doing, Due, PS, Simulated, State};

/// How much of a recorded schedule was repeated.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Repeated {
    /// Times that a vCPU was to be off, inside the window.
    pub absences: u64,
    /// Time that vCPUs were to be off, all together.
    pub absent_ns: u64,
    /// Share of that time in which they were.
    pub honoured: f64,
}

/// The schedule of a run, and how well it is kept.
pub(super) struct Recorded {
    schedule: Arc<Schedule>,
    /// A vCPU that is called out takes this long.
    way_out_ns: u64,
    /// Time in which vCPUs ran that were to be off.
    ran_ns: u64,
}

impl Recorded {
    pub(super) fn new(schedule: Arc<Schedule>, machine: &Machine) -> Self {
        let costs = &machine.costs.guest;
        Self { schedule, way_out_ns: (costs.exit_ps / 2 + costs.timer_ps) / PS, ran_ns: 0 }
    }

    /// The absence that a vCPU is in at `now_ns`, or is to leave for, or else the next one, in host time.
    fn next(&self, guest: &GuestRun<'_>, vcpu: u32, now_ns: u64) -> Option<Absence> {
        let [open_ns, _] = guest.window.times();
        if guest.window.is_closed() || open_ns == u64::MAX {
            return None;
        }
        let since_ns = (now_ns + self.way_out_ns).saturating_sub(open_ns);
        let next = self.schedule.next(vcpu, since_ns)?;
        Some(Absence { from_ns: next.from_ns + open_ns, until_ns: next.until_ns + open_ns })
    }

    pub(super) fn repeated(&self, guest: &GuestRun<'_>) -> Repeated {
        let [open_ns, close_ns] = guest.window.times();
        let window_ns = close_ns.saturating_sub(open_ns);
        let absent = |vcpu| self.schedule.absent_ns(vcpu, 0, window_ns);
        let absent_ns: u64 = (0..guest.vcpus).map(absent).sum();
        Repeated {
            absences: self.schedule.begun_by(window_ns),
            absent_ns,
            honoured: 1.0 - self.ran_ns as f64 / absent_ns.max(1) as f64,
        }
    }

    fn ran(&mut self, task: &Task<'_>, from_ns: u64, until_ns: u64) {
        let window = &task.guest.window;
        if let Some((from_ns, until_ns)) = window.clip(from_ns, until_ns) {
            let [open_ns, _] = window.times();
            self.ran_ns += self.schedule.absent_ns(task.vcpu.id, from_ns - open_ns, until_ns - open_ns);
        }
    }
}

/// Bit of what a witness says when it has a vCPU stand still: the pCPU is taken as well. The other bits: for how many nanoseconds.
pub(crate) const WITH_PCPU: u64 = 1 << 63;

/// For how long the vCPU is off; `None`: it comes back at once.
pub(super) fn for_ns(told: u64) -> Option<u64> {
    let for_ns = told & !WITH_PCPU;
    (for_ns > 0).then_some(for_ns)
}

impl<'a> State<'a> {
    /// When the vCPU that runs on a pCPU is to be called out for an absence.
    pub(super) fn called_out_ns(&self, index: usize) -> u64 {
        let Doing::Runs { task, .. } = &self.slots[index].doing else { return u64::MAX };
        let recorded = self.recorded.as_ref();
        let next = recorded.and_then(|it| Some((it.next(task.guest, task.vcpu.id, self.now_ps / PS)?, it)));
        next.map_or(u64::MAX, |(next, it)| next.from_ns.saturating_sub(it.way_out_ns))
    }

    /// How long `task` is to be off from `now_ns` on.
    pub(super) fn absent_for(&self, task: &Task<'_>, now_ns: u64) -> Option<u64> {
        let recorded = self.recorded.as_ref()?;
        let next = recorded.next(task.guest, task.vcpu.id, now_ns)?;
        (next.from_ns <= now_ns + recorded.way_out_ns).then(|| next.until_ns - now_ns)
    }

    /// A turn ended as `turn` says.
    pub(super) fn note_turn(
        &mut self,
        index: usize,
        task: &Task<'_>,
        turn: &Turn<'_>,
        (began_ns, ended_ns): (u64, u64),
    ) {
        if let Some(recorded) = &mut self.recorded {
            recorded.ran(task, began_ns, ended_ns);
        }
        if let Turn::Injected(for_ns) = turn {
            // pCPUs that are idle now look no earlier by themselves.
            self.due.push(Reverse(((ended_ns + for_ns) * PS, Due::Looks(index))));
        }
    }
}

impl<'a> Simulated<'a> {
    /// Tells the board when vCPUs that run are to be called out: the window may have been opened just now.
    pub(super) fn call_out(&self, state: &mut State<'a>) {
        if state.recorded.is_some() {
            for index in 0..state.slots.len() {
                let slot = &state.slots[index];
                if matches!(slot.doing, Doing::Runs { .. }) && slot.out.is_none() {
                    Self::arm(state, index);
                }
            }
        }
    }

    /// The pCPU has come to `task`, whose turn would begin at `at_ps`: it is handed back if it is to run, and off again if not.
    pub(super) fn unless_absent(
        &self,
        state: &mut State<'a>,
        index: usize,
        task: Box<Task<'a>>,
        at_ps: u64,
    ) -> Option<Box<Task<'a>>> {
        let now_ns = self.core.clock.now_ns();
        let Some(for_ns) = state.absent_for(&task, now_ns) else { return Some(task) };
        let turn = Turn::Injected(for_ns);
        state.note_turn(index, &task, &turn, (now_ns, now_ns));
        let next = self.core.end_turn(task, &mut state.slots[index].pcpu, turn, (now_ns, now_ns));
        self.changes(state, index, next, at_ps);
        None
    }

    /// The pCPU is gone for as long as the vCPU that it ran.
    pub(super) fn take(&self, state: &mut State<'a>, index: usize, told: u64, at_ps: u64) {
        state.slots[index].doing = Doing::Taken;
        let until_ps = at_ps + for_ns(told).unwrap_or(0) * PS;
        state.due.push(Reverse((until_ps, Due::Returns(index))));
    }

    /// The pCPU comes back, and looks for something to run.
    pub(super) fn returns(&self, state: &mut State<'a>, index: usize, at_ps: u64) {
        if matches!(state.slots[index].doing, Doing::Taken) {
            self.changes(state, index, None, at_ps);
        }
    }
}
