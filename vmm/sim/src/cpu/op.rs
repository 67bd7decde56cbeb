//! One decoded instruction: a function and what it works on.

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

/// One operation.
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

impl<B> Clone for Op<B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B> Copy for Op<B> {}

impl Cpu {
    /// Address of a memory operand, without its segment (LEA).
    #[inline(always)]
    pub(crate) fn offset_of(&self, address: &Address) -> u64 {
        let part = |register: u8| self.file[usize::from(register & 31)];
        part(address.base)
            .wrapping_add(part(address.index) << (address.scale & 3))
            .wrapping_add(address.displacement as u64)
    }

    /// Address of a memory operand.
    #[inline(always)]
    pub(crate) fn effective(&self, address: &Address) -> u64 {
        self.offset_of(address).wrapping_add(self.file[usize::from(address.segment & 31)])
    }
}
