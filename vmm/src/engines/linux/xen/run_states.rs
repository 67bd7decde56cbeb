//! What a guest may learn of its vCPUs: whether each runs, or sleeps in a poll.
//!
//! Of what Xen writes into a run-state record there is the state alone, and no times; and of the states not "runnable": that a vCPU could run
//! and does not is known to the kernel below, which takes its thread off a pCPU, and to no thread of the VMM that runs then.

use std::sync::Mutex;
use std::sync::atomic::Ordering;

use vm_memory::{Bytes as _, GuestAddress, GuestMemoryMmap};

use crate::host::locks::lock;

/// A state of a vCPU, by Xen's numbers. From memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Running = 0,
    Blocked = 2,
}

/// Where the state of each vCPU is written, if anywhere.
#[derive(Debug)]
pub(super) struct RunStates(Vec<Mutex<Option<GuestAddress>>>);

impl RunStates {
    /// Those of so many vCPUs: nowhere yet.
    pub(super) fn new(vcpus: u32) -> Self {
        Self((0..vcpus).map(|_| Mutex::default()).collect())
    }

    /// From here on `vcpu`'s is written at `place`, a word of the guest's memory. `false`: there is no such vCPU.
    pub(super) fn register(&self, vcpu: u64, place: Option<GuestAddress>) -> bool {
        let own = usize::try_from(vcpu).ok().and_then(|vcpu| self.0.get(vcpu));
        own.is_some_and(|own| {
            *lock(own) = place;
            true
        })
    }

    /// `vcpu` is in this state.
    pub(super) fn set(&self, memory: &GuestMemoryMmap, vcpu: u32, state: State) {
        let place = self.0.get(vcpu as usize).and_then(|own| *lock(own));
        if let Some(place) = place {
            // Relaxed: a hint, which is old when it is read. The place was checked when it was registered.
            _ = memory.store(state as u32, place, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_written_where_its_vcpu_wants_it_until_it_does_not() {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x1000)]).unwrap();
        let states = RunStates::new(2);
        states.set(&memory, 0, State::Blocked);
        assert!(states.register(0, Some(GuestAddress(8))) && !states.register(2, None));
        assert!(!states.register(u64::MAX, None));
        for (state, number) in [(State::Blocked, 2), (State::Running, 0), (State::Blocked, 2)] {
            states.set(&memory, 0, state);
            states.set(&memory, 1, State::Blocked);
            states.set(&memory, 9, State::Blocked);
            assert_eq!(memory.read_obj::<[u32; 4]>(GuestAddress(0)).unwrap(), [0, 0, number, 0]);
        }
        assert!(states.register(0, None));
        states.set(&memory, 0, State::Running);
        assert_eq!(memory.read_obj::<u32>(GuestAddress(8)).unwrap(), 2);
    }
}
