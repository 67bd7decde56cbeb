//! Multiplication and division.

use super::Source;
use crate::cpu::bus::Bus;
use crate::cpu::event::Fault;
use crate::cpu::flags::{mask, signed};
use crate::cpu::op::{Flow, Op, Outcome};
use crate::cpu::state::{Cpu, Out, RAX, RDX, slot};

/// Register of the upper half: AH for 8 bits, else DX, EDX or RDX.
#[inline(always)]
fn upper<const W: u32>() -> u8 {
    if W == 8 { RAX | slot::HIGH_BYTE } else { RDX }
}

/// MUL: the product of the accumulator, all of it.
pub(crate) fn multiply<B: Bus, S: Source, const W: u32>(cpu: &mut Cpu, bus: &mut B, op: &Op<B>) -> Outcome {
    let b = S::read::<B, W>(cpu, bus, op)?;
    let product = u128::from(cpu.get::<W>(RAX)) * u128::from(b);
    let high = (product >> W) as u64;
    cpu.put::<W>(RAX, product as u64);
    cpu.put::<W>(upper::<W>(), high);
    cpu.flags.set_carry_overflow(high != 0, high != 0);
    Ok(Flow::Next)
}

/// IMUL with one operand: the same, signed.
pub(crate) fn multiply_signed<B: Bus, S: Source, const W: u32>(
    cpu: &mut Cpu,
    bus: &mut B,
    op: &Op<B>,
) -> Outcome {
    let b = signed(S::read::<B, W>(cpu, bus, op)?, W);
    let product = i128::from(signed(cpu.get::<W>(RAX), W)) * i128::from(b);
    cpu.put::<W>(RAX, product as u64);
    cpu.put::<W>(upper::<W>(), (product >> W) as u64);
    let overflow = product != i128::from(signed(product as u64, W));
    cpu.flags.set_carry_overflow(overflow, overflow);
    Ok(Flow::Next)
}

/// IMUL with two or three operands: the product of `A` and `S`, as far as it fits.
pub(crate) fn multiply_to<B: Bus, A: Source, S: Source, const W: u32>(
    cpu: &mut Cpu,
    bus: &mut B,
    op: &Op<B>,
) -> Outcome {
    let a = signed(A::read::<B, W>(cpu, bus, op)?, W);
    let b = signed(S::read::<B, W>(cpu, bus, op)?, W);
    let (product, mut overflow) = a.overflowing_mul(b);
    if W < 64 {
        overflow = product != signed(product as u64, W);
    }
    cpu.put::<W>(op.first, product as u64);
    cpu.flags.set_carry_overflow(overflow, overflow);
    Ok(Flow::Next)
}

/// DIV. Flags are undefined.
pub(crate) fn divide<B: Bus, S: Source, const W: u32>(cpu: &mut Cpu, bus: &mut B, op: &Op<B>) -> Outcome {
    let divisor = S::read::<B, W>(cpu, bus, op)?;
    let (low, high) = (cpu.get::<W>(RAX), cpu.get::<W>(upper::<W>()));
    // Also true of a divisor of zero.
    if high >= divisor {
        return Err(cpu.leave(Out::Fault(Fault::DIVIDE)));
    }
    let (quotient, remainder) = if high == 0 {
        (low / divisor, low % divisor)
    } else {
        let dividend = u128::from(high) << W | u128::from(low);
        ((dividend / u128::from(divisor)) as u64, (dividend % u128::from(divisor)) as u64)
    };
    cpu.put::<W>(RAX, quotient);
    cpu.put::<W>(upper::<W>(), remainder);
    Ok(Flow::Next)
}

/// IDIV. Flags are undefined.
pub(crate) fn divide_signed<B: Bus, S: Source, const W: u32>(
    cpu: &mut Cpu,
    bus: &mut B,
    op: &Op<B>,
) -> Outcome {
    let divisor = i128::from(signed(S::read::<B, W>(cpu, bus, op)?, W));
    let (low, high) = (cpu.get::<W>(RAX), signed(cpu.get::<W>(upper::<W>()), W));
    let dividend = i128::from(high) << W | i128::from(low & mask(W));
    let quotient =
        dividend.checked_div(divisor).filter(|quotient| *quotient == i128::from(signed(*quotient as u64, W)));
    let Some(quotient) = quotient else { return Err(cpu.leave(Out::Fault(Fault::DIVIDE))) };
    cpu.put::<W>(RAX, quotient as u64);
    cpu.put::<W>(upper::<W>(), (dividend % divisor) as u64);
    Ok(Flow::Next)
}
