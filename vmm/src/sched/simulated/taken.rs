//! A pCPU that is taken away for a while with the vCPU that it runs: another tenant of the host runs there.

use std::cmp::Reverse;

use super::{Doing, Due, PS, Simulated, State};

/// Bit of what a witness says when it has a vCPU stand still: the pCPU is taken as well. The other bits: for how many nanoseconds.
pub(crate) const WITH_PCPU: u64 = 1 << 63;

/// Whether the pCPU is taken as well.
pub(super) fn takes_pcpu(told: u64) -> bool {
    told & WITH_PCPU != 0
}

/// For how long the vCPU is off; `None`: it comes back at once.
pub(super) fn for_ns(told: u64) -> Option<u64> {
    let for_ns = told & !WITH_PCPU;
    (for_ns > 0).then_some(for_ns)
}

impl<'a> Simulated<'a> {
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
