//! The record in which Xen says whether a CPU runs.

use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{self, Relaxed},
};

/// `struct vcpu_runstate_info`: written by the host.
///
/// No document of Xen's shows it. The layout was checked against a reference generated from its interface as of Linux 3.7: an `int`, then
/// `state_entry_time` and `time[4]` of 64 bits each. The order of the states (running, runnable, blocked, offline) is from memory.
#[derive(Debug)]
#[repr(C)]
pub(super) struct RunState {
    state: AtomicU32,
    /// Since when, and how long in each state.
    times: [AtomicU64; 5],
}

const _: () = assert!(size_of::<RunState>() == 48);

impl RunState {
    pub(super) const fn new() -> Self {
        Self { state: AtomicU32::new(0), times: [const { AtomicU64::new(0) }; 5] }
    }

    /// Whether the CPU could run and does not.
    pub(super) fn is_preempted(&self) -> bool {
        /// `RUNSTATE_runnable`; 0 is running, 2 blocked, 3 offline.
        const RUNNABLE: u32 = 1;
        // A hint, which is old when it is read.
        const HINT: Ordering = Relaxed;
        self.state.load(HINT) == RUNNABLE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preempted_is_who_could_run_and_does_not() {
        let record = RunState::new();
        for (state, is_preempted) in [(0, false), (1, true), (2, false), (3, false)] {
            record.state.store(state, Relaxed);
            assert_eq!(record.is_preempted(), is_preempted, "state {state}");
        }
    }
}
