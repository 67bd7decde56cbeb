//! An instruction's effect on registers and flags, to examine a loop as a whole.

pub(crate) use iced_x86::RflagsBits;

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
    /// What it does with registers and constants alone, if it is one of these.
    pub(crate) with_constants: Option<WithConstants>,
}

/// A register that is counted up or down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) register: u8,
    /// Bits of it: 32, and the upper half is cleared, or 64.
    pub(crate) width: u32,
}

/// An instruction whose operands are general registers, by number, and constants, if any. `width` is that of its operands in bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WithConstants {
    /// `to` becomes the sum.
    Add { to: u8, from: u8, plus: u64, width: u32 },
    /// Flags of the register and the mask.
    Test { register: u8, mask: u64, width: u32 },
    /// Flags of the register minus the constant.
    Compare { register: u8, with: u64, width: u32 },
    /// Flags of one register minus another.
    CompareBoth { first: u8, second: u8, width: u32 },
    /// `to` becomes `from` if flags say so.
    Select { to: u8, from: u8, condition: Condition, width: u32 },
}

/// A condition on flags, as instructions encode it: `negated`, where the number is odd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Condition(pub(crate) u8);

/// Flags that conditions depend on, but for parity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tested {
    pub(crate) overflow: bool,
    pub(crate) carry: bool,
    pub(crate) zero: bool,
    pub(crate) sign: bool,
}

impl Tested {
    /// After a test whose result is `result`.
    pub(crate) fn of_test(result: u64, width: u32) -> Self {
        let sign = result >> (width - 1) & 1 != 0;
        Self { overflow: false, carry: false, zero: result == 0, sign }
    }

    /// After `first` minus `second`, both of which have `width` bits.
    pub(crate) fn of_compare(first: u64, second: u64, width: u32) -> Self {
        let top = |value: u64| value >> (width - 1) & 1 != 0;
        let difference = top(first.wrapping_sub(second));
        Self {
            overflow: top(first) != top(second) && difference != top(first),
            carry: first < second,
            zero: first == second,
            sign: difference,
        }
    }

    /// Whether a condition holds; `None` for parity.
    pub(crate) fn meet(self, Condition(code): Condition) -> Option<bool> {
        let holds = match code >> 1 {
            0 => self.overflow,
            1 => self.carry,
            2 => self.zero,
            3 => self.carry || self.zero,
            4 => self.sign,
            6 => self.sign != self.overflow,
            7 => self.zero || self.sign != self.overflow,
            _ => return None,
        };
        Some(holds != (code & 1 != 0))
    }
}
