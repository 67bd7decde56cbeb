//! One decoded instruction: a function and what it works on; and its effect on registers and flags, to examine a loop as a whole.

pub(crate) use iced_x86::RflagsBits;

use crate::cpu::state::{Cpu, slot};

/// The function that carries out an operation.
pub(crate) type Run<B> = fn(&mut Cpu, &mut B, &Op<B>) -> Outcome;

/// How the CPU goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// With the next operation.
    Next,
    /// At [`Cpu::rip`], which the operation has set.
    Jump,
}

/// The operation was not completed, or the driver goes on: see [`Cpu::out`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Left;

pub(crate) type Outcome = Result<Flow, Left>;

/// A memory operand: base + (index << scale) + displacement + segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) displacement: i64,
    pub(crate) base: u8,
    pub(crate) index: u8,
    pub(crate) scale: u8,
    /// A [`slot`].
    pub(crate) segment: u8,
}

impl Address {
    pub(crate) const NONE: Self =
        Self { displacement: 0, base: slot::ZERO, index: slot::ZERO, scale: 0, segment: slot::ZERO };
}

#[derive(Debug)]
pub(crate) struct Op<B> {
    pub(crate) run: Run<B>,
    /// The immediate operand; of a branch its target.
    pub(crate) immediate: i64,
    pub(crate) address: Address,
    /// The register of the first operand that is one, or the only one.
    pub(crate) first: u8,
    /// The register of the second.
    pub(crate) second: u8,
    /// Its place in its block.
    pub(crate) position: u8,
    /// Bytes of the instruction.
    pub(crate) length: u8,
    /// Its first byte, from that of the block.
    pub(crate) offset: u16,
}

impl Cpu {
    /// Address of a memory operand, without its segment (LEA).
    #[inline(always)]
    pub(crate) fn offset_of(&self, address: &Address) -> u64 {
        let part = |register: u8| self.file[usize::from(register & 31)];
        part(address.base)
            .wrapping_add(part(address.index) << (address.scale & 3))
            .wrapping_add(address.displacement as u64)
    }

    #[inline(always)]
    pub(crate) fn effective(&self, address: &Address) -> u64 {
        self.offset_of(address).wrapping_add(self.file[usize::from(address.segment & 31)])
    }
}

/// An instruction's effect on registers and flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Effect {
    /// General registers that it reads, also for an address, or for a part of what it writes: a bit each.
    pub(crate) reads: u16,
    /// General registers that it writes, or parts of them.
    pub(crate) writes: u16,
    /// Flags that it reads, as `RflagsBits` of the decoder.
    pub(crate) flags_read: u32,
    pub(crate) flags_changed: u32,
    /// Flags that are what it made them, whatever they were.
    pub(crate) flags_settled: u32,
    /// Its operation, if it is a simple one.
    pub(crate) simple: Option<Simple>,
}

/// An instruction whose operands are general registers, by number, and constants, if any. `width` is that of its operands in bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Simple {
    /// `to` becomes the sum.
    Add { to: u8, from: u8, plus: u64, width: u32 },
    /// Flags of the register and the mask.
    Test { register: u8, mask: u64, width: u32 },
    /// Flags of the register minus the constant.
    Compare { register: u8, with: u64, width: u32 },
    /// Flags of one register minus another.
    CompareBoth { first: u8, second: u8, width: u32 },
    /// `to` becomes `from` if flags say so: a condition as instructions encode it.
    Select { to: u8, from: u8, condition: u8, width: u32 },
    /// Something that does not depend on the register, and may be no constant, is added to it or subtracted.
    Count { register: u8, width: u32 },
}
