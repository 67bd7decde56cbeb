//! The event that a slot of the board waits for.

/// Event that a slot waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SlotState {
    /// The driver of the board.
    #[default]
    Still,
    /// Its turn.
    Due,
    /// A line that its instruction needs.
    Line,
    /// Its stores, all of them.
    Drain,
    /// One of its stores.
    Full,
    /// A change to what it reads in its spin loop.
    Parked,
}
