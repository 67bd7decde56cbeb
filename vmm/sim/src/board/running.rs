//! A CPU's run: where it begins, how far it may go, and an instruction that it could not complete.

/// Start of a CPU's run, and its limits.
#[derive(Clone, Copy, Debug)]
pub(super) struct From {
    pub(super) at_ps: u64,
    /// Completed in its life.
    pub(super) instructions: u64,
    /// Time of each instruction.
    pub(super) instruction_ps: u64,
    /// Up to then it may ask for lines: nothing happens elsewhere before.
    pub(super) horizon_ps: u64,
    /// Up to then it may use lines that it has.
    pub(super) reach_ps: u64,
    /// It stops at the first PAUSE from then on.
    pub(super) end_ps: u64,
}

/// Cost of an instruction that could not be completed. When it begins anew it meets its first accesses again, which it has paid:
/// if it paid twice, a later access would always be too late for its turn.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Attempt {
    /// Instructions completed before it.
    pub(super) instructions: u64,
    pub(super) cost_ps: u64,
}
