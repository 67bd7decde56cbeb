//! Which events the executions of a model have come to.

use std::cell::Cell;

use haltkick_locks::Event;

thread_local! {
    /// Set of the events that some execution of this test has counted. A model checker runs all of them on one thread.
    static REACHED: Cell<u64> = const { Cell::new(0) };
}

pub(crate) fn reach(event: Event) {
    REACHED.with(|reached| reached.set(reached.get() | 1 << (event as usize)));
}

/// That the executions of this test have come to what they are about; of a schedule that is replayed, nothing is asked.
pub fn assert_reached<const EVENTS: usize>(events: [Event; EVENTS]) {
    let is_replay = std::env::var_os("SHUTTLE_REPLAY").is_some();
    for event in events {
        let reached = REACHED.with(Cell::get) & 1 << (event as usize) != 0;
        assert!(reached || is_replay, "no execution has come to {}", event.name());
    }
}
