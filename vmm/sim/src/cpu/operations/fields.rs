//! Fields of bits (BMI1 and BMI2), shifts that leave the flags alone, and CRC32.

use super::Source;
use super::arithmetic::{Binary, Unary};
use crate::cpu::bus::Bus;
use crate::cpu::flags::{Flags, mask, signed};
use crate::cpu::op::{Flow, Op, Outcome};
use crate::cpu::state::{Cpu, RDX};

/// Declares operations on two operands.
macro_rules! fields {
    ($($name:ident<$width:ident>($flags:ident, $a:ident, $b:ident) $body:expr;)*) => {$(
        pub(crate) struct $name;

        impl Binary for $name {
            #[inline(always)]
            fn apply<const $width: u32>($flags: &mut Flags, $a: u64, $b: u64) -> u64 {
                $body
            }
        }
    )*};
}

fields! {
    AndNot<W>(flags, a, b) logic::<W>(flags, !a & b);
    Extract<W>(flags, a, control) logic::<W>(flags, low_bits(a.unbounded_shr(control as u32 & 0xff), control >> 8));
    ZeroHigh<W>(flags, a, index) {
        let index = index & 0xff;
        with_carry::<W>(flags, low_bits(a, index), index >= u64::from(W))
    };
    Deposit<W>(_flags, a, places) deposit(a, places);
    Gather<W>(_flags, a, places) gather(a, places);
    ShiftLeft<W>(_flags, a, count) a << (count as u32 & (W - 1));
    ShiftRight<W>(_flags, a, count) a >> (count as u32 & (W - 1));
    ShiftArithmetic<W>(_flags, a, count) (signed(a, W) >> (count as u32 & (W - 1))) as u64;
    RotateRight<W>(_flags, a, count) {
        let count = count as u32 & (W - 1);
        a >> count | a.unbounded_shl(W - count)
    };
}

/// BLSI.
pub(crate) struct LowestSet;
/// BLSMSK.
pub(crate) struct MaskToLowest;
/// BLSR.
pub(crate) struct ResetLowest;

impl Unary for LowestSet {
    fn apply<const W: u32>(flags: &mut Flags, a: u64) -> u64 {
        with_carry::<W>(flags, a & a.wrapping_neg(), a != 0)
    }
}

impl Unary for MaskToLowest {
    fn apply<const W: u32>(flags: &mut Flags, a: u64) -> u64 {
        with_carry::<W>(flags, (a ^ a.wrapping_sub(1)) & mask(W), a == 0)
    }
}

impl Unary for ResetLowest {
    fn apply<const W: u32>(flags: &mut Flags, a: u64) -> u64 {
        with_carry::<W>(flags, a & a.wrapping_sub(1), a == 0)
    }
}

fn logic<const W: u32>(flags: &mut Flags, result: u64) -> u64 {
    flags.logic::<W>(result);
    result
}

fn with_carry<const W: u32>(flags: &mut Flags, result: u64, carry: bool) -> u64 {
    flags.set_result::<W>(result);
    flags.set_carry_overflow(carry, false);
    result
}

/// The lowest bits of `value`, as many as the lowest byte of `count` says.
fn low_bits(value: u64, count: u64) -> u64 {
    value & !u64::MAX.unbounded_shl(count as u32 & 0xff)
}

/// The lowest bits of `value`, one at each place that `places` has, from its lowest on.
fn deposit(mut value: u64, mut places: u64) -> u64 {
    let mut result = 0;
    while places != 0 {
        if value & 1 != 0 {
            result |= places & places.wrapping_neg();
        }
        (value, places) = (value >> 1, places & (places - 1));
    }
    result
}

/// The bits of `value` at the places that `places` has, next to each other.
fn gather(value: u64, mut places: u64) -> u64 {
    let (mut result, mut bit) = (0, 0);
    while places != 0 {
        result |= (value >> places.trailing_zeros() & 1) << bit;
        (bit, places) = (bit + 1, places & (places - 1));
    }
    result
}

/// `first = A OP S`.
pub(crate) fn combine<B: Bus, K: Binary, A: Source, S: Source, const W: u32>(
    cpu: &mut Cpu,
    bus: &mut B,
    op: &Op<B>,
) -> Outcome {
    let a = A::read::<B, W>(cpu, bus, op)?;
    let b = S::read::<B, W>(cpu, bus, op)?;
    let result = K::apply::<W>(&mut cpu.flags, a, b);
    cpu.put::<W>(op.first, result);
    Ok(Flow::Next)
}

/// `first = OP S`.
pub(crate) fn of_one<B: Bus, K: Unary, S: Source, const W: u32>(
    cpu: &mut Cpu,
    bus: &mut B,
    op: &Op<B>,
) -> Outcome {
    let a = S::read::<B, W>(cpu, bus, op)?;
    let result = K::apply::<W>(&mut cpu.flags, a);
    cpu.put::<W>(op.first, result);
    Ok(Flow::Next)
}

/// MULX: the product of RDX, whose upper half stays if one register is to have both.
pub(crate) fn multiply<B: Bus, S: Source, const W: u32>(cpu: &mut Cpu, bus: &mut B, op: &Op<B>) -> Outcome {
    let b = S::read::<B, W>(cpu, bus, op)?;
    let product = u128::from(cpu.get::<W>(RDX)) * u128::from(b);
    cpu.put::<W>(op.second, product as u64);
    cpu.put::<W>(op.first, (product >> W) as u64);
    Ok(Flow::Next)
}

/// CRC32 of `W` bits more, by the polynomial of Castagnoli. The result has 32 bits, and clears those above.
pub(crate) fn checksum<B: Bus, S: Source, const W: u32>(cpu: &mut Cpu, bus: &mut B, op: &Op<B>) -> Outcome {
    const REVERSED: u64 = 0x82f6_3b78;
    let mut rest = cpu.get::<32>(op.first) ^ S::read::<B, W>(cpu, bus, op)?;
    for _ in 0..W {
        rest = rest >> 1 ^ if rest & 1 != 0 { REVERSED } else { 0 };
    }
    cpu.put::<32>(op.first, rest);
    Ok(Flow::Next)
}
