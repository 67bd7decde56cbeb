//! Whether a guest that stands still could have moved.

use std::time::Duration;

use crate::host::clock::Clock;
use crate::sched::Scheduler;

/// How often every ready vCPU must have had its turn, and how much CPU time the process, before standing still means
/// anything: on a busy host, time passes in which no vCPU could have moved.
const WATCHDOG_ROUNDS: u32 = 3;
const WATCHDOG_CPU_TIME: Duration = Duration::from_millis(500);

/// Turns and CPU time that a guest has had since it last moved.
#[derive(Debug)]
pub(super) struct Chances {
    /// Times that every ready vCPU has had a turn.
    rounds: u32,
    /// Host time since when the present round has been counted.
    round_ns: u64,
    /// CPU time of the process when the guest last moved.
    pub(super) cpu_time: Duration,
}

impl Chances {
    pub(super) fn from_now(clock: &Clock, scheduler: &Scheduler<'_>) -> Self {
        Self { rounds: 0, round_ns: clock.now_ns(), cpu_time: scheduler.cpu_time() }
    }

    pub(super) fn count(&mut self, clock: &Clock, scheduler: &Scheduler<'_>) {
        if scheduler.everybody_ran_since(self.round_ns) {
            (self.rounds, self.round_ns) = (self.rounds + 1, clock.now_ns());
        }
    }

    pub(super) fn were_enough(&self, scheduler: &Scheduler<'_>) -> bool {
        self.rounds >= WATCHDOG_ROUNDS
            && scheduler.cpu_time().saturating_sub(self.cpu_time) >= WATCHDOG_CPU_TIME
    }
}
