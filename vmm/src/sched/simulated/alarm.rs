//! The timer of a simulated pCPU, which costs nothing to set.

use std::cell::Cell;
use std::rc::Rc;

use crate::sched::slice::Timer;

use super::{PS, Simulated, State};

/// An alarm for the end of a slice: when it rings next, and how often after that.
#[derive(Clone, Default)]
pub(super) struct Alarm(Rc<Cell<(u64, u64)>>);

impl Timer for Alarm {
    const IS_DEAR: bool = false;

    fn set(&self, at_ns: u64, interval_ns: u64) {
        self.0.set((at_ns, interval_ns));
    }
}

impl Alarm {
    /// When it rings next.
    pub(super) fn rings_at(&self) -> u64 {
        self.0.get().0
    }

    /// It has rung at `now_ns`, and rings again; or something else has rung before it.
    pub(super) fn rang(&self, now_ns: u64) {
        let (at_ns, interval_ns) = self.0.get();
        if now_ns < at_ns {
            return;
        }
        let missed = now_ns.saturating_sub(at_ns).checked_div(interval_ns).unwrap_or(0);
        self.0.set((at_ns + (missed + 1) * interval_ns, interval_ns));
    }
}

impl<'a> Simulated<'a> {
    /// Tells the board when the alarm of a pCPU rings, which has entered a guest: at the end of a slice.
    pub(super) fn arm(state: &mut State<'a>, index: usize) {
        let slot = &state.slots[index];
        let at_ns = match &state.hosted {
            Some(hosted) => {
                hosted.limit_pauses(&mut state.board, slot);
                hosted.alarm_ns(index, state.now_ps / PS)
            }
            None => slot.alarm.rings_at().min(state.called_out_ns(index)),
        };
        state.board.set_alarm(slot.cpu, at_ns.saturating_mul(PS));
    }
}
