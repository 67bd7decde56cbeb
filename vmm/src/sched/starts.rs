//! How the vCPUs of a guest start: which have said that they have, and which may start next.
//!
//! A guest's vCPUs may say that they have started ([`Starts`]). The word of each vCPU counts once, and each speaks for itself alone: a
//! guest that says nothing, or says it again, delays no other guest and stops no vCPU of its own for good, since the supervisor ends a
//! run in which vCPUs do not start.
//!
//! vCPUs with threads of their own take turns to start ([`StartTurns`]): only a few start at a time, and those that have started wait
//! for the others. Without this the threads of a thousand vCPUs would all be ready at once. The host's scheduler would give each a slice of
//! milliseconds, of which a start needs a fraction, and those that have started would take most of the CPU time from those that have
//! not.
//!
//! Waiting is by condition variable and not by [`std::thread::park`], whose token is a latched kick.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex};

use crate::host::threads::{lock, wait};

#[derive(Debug, Default)]
pub(crate) struct Starts {
    /// Whether each vCPU has said it. Empty: they do not.
    said: Vec<AtomicBool>,
    count: AtomicU32,
}

impl Starts {
    /// Makes the starts of a guest whose `vcpus` vCPUs each say that they have started.
    pub(crate) fn said_by(vcpus: u32) -> Self {
        Self { said: (0..vcpus).map(|_| AtomicBool::new(false)).collect(), count: AtomicU32::new(0) }
    }

    pub(crate) fn are_said(&self) -> bool {
        !self.said.is_empty()
    }

    /// `vcpu` says that it has started, or will say nothing more. Whether that is news.
    pub(crate) fn says(&self, vcpu: u32) -> bool {
        let Some(said) = self.said.get(vcpu as usize) else { return false };
        // Relaxed, here and below: a vCPU is on one thread at a time, and the number is a hint.
        let is_news = !said.swap(true, Ordering::Relaxed);
        if is_news {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        is_news
    }

    pub(crate) fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
struct State {
    /// Turns that no vCPU has.
    free: u32,
    /// vCPUs that have not started.
    left: u32,
    over: bool,
}

#[derive(Debug, Default)]
pub(super) struct StartTurns {
    state: Mutex<State>,
    /// There is a turn, or the run is over.
    freed: Condvar,
    /// All have started, or the run is over.
    all_started: Condvar,
}

impl StartTurns {
    /// Turns of `vcpus` vCPUs, none of which is free yet.
    pub(super) fn new(vcpus: u32) -> Self {
        Self { state: Mutex::new(State { left: vcpus, ..State::default() }), ..Self::default() }
    }

    pub(super) fn open(&self, turns: u32) {
        lock(&self.state).free += turns;
        (0..turns).for_each(|_| self.freed.notify_one());
    }

    /// Waits for a turn. `false`: the run is over.
    pub(super) fn take(&self) -> bool {
        let mut state = wait(&self.freed, &self.state, |state| state.free == 0 && !state.over);
        state.free -= u32::from(!state.over);
        !state.over
    }

    /// A vCPU with a turn has started, or never will.
    pub(super) fn give_back(&self) {
        let mut state = lock(&self.state);
        state.free += 1;
        state.left = state.left.saturating_sub(1);
        let are_all_started = state.left == 0;
        drop(state);
        self.freed.notify_one();
        if are_all_started {
            self.all_started.notify_all();
        }
    }

    /// Waits until all have started, or the run is over.
    pub(super) fn await_all(&self) {
        drop(wait(&self.all_started, &self.state, |state| state.left > 0 && !state.over));
    }

    /// The run is over: nothing waits from now on.
    pub(super) fn end(&self) {
        lock(&self.state).over = true;
        self.freed.notify_all();
        self.all_started.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vcpu_starts_once_however_often_it_says_so() {
        let starts = Starts::said_by(2);
        assert_eq!(
            [1, 1, 0, 2, u32::MAX, 0].map(|vcpu| starts.says(vcpu)),
            [true, false, true, false, false, false]
        );
        assert_eq!(starts.count(), 2);
        let silent = Starts::default();
        assert!(!silent.are_said() && !silent.says(0));
    }
}
