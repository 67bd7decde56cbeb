//! An instruction's effect on registers and flags, to examine a loop as a whole.

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Effect {
    /// General registers that it reads, also for an address, or for a part of what it writes: a bit each.
    pub(crate) reads: u16,
    /// General registers that it writes, or parts of them.
    pub(crate) writes: u16,
    /// Flags that it reads, as `RflagsBits` of the decoder.
    pub(crate) flags_read: u32,
    /// Flags that it may change.
    pub(crate) flags_changed: u32,
    /// Flags that are what it made them, whatever they were.
    pub(crate) flags_settled: u32,
    /// It adds to a register, or subtracts from it, what does not depend on that register, and writes no other.
    pub(crate) counts: Option<Counts>,
}

/// A register that is counted up or down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) register: u8,
    /// Bits of it: 32, and the upper half is cleared, or 64.
    pub(crate) width: u32,
}
