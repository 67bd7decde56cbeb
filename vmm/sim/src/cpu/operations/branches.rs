//! Jumps, calls, returns.

use super::Source;
use super::data::push_value;
use crate::cpu::bus::Bus;
use crate::cpu::op::{Flow, Op, Outcome};
use crate::cpu::state::{Cpu, RCX, RSP};

/// A branch to [`Op::immediate`] that is taken.
#[inline(always)]
fn taken<B: Bus>(cpu: &mut Cpu, op: &Op<B>) -> Outcome {
    cpu.rip = op.immediate as u64;
    Ok(Flow::Jump)
}

/// JMP to a known place.
pub(crate) fn jump<B: Bus>(cpu: &mut Cpu, _: &mut B, op: &Op<B>) -> Outcome {
    taken(cpu, op)
}

/// Jcc. The next operation, if there is one, begins another block.
pub(crate) fn jump_if<B: Bus, const CODE: u8>(cpu: &mut Cpu, _: &mut B, op: &Op<B>) -> Outcome {
    if cpu.flags.holds::<CODE>() { taken(cpu, op) } else { Ok(Flow::Next) }
}

/// JRCXZ, JECXZ.
pub(crate) fn jump_if_no_count<B: Bus, const W: u32>(cpu: &mut Cpu, _: &mut B, op: &Op<B>) -> Outcome {
    if cpu.get::<W>(RCX) == 0 { taken(cpu, op) } else { Ok(Flow::Next) }
}

/// LOOP.
pub(crate) fn jump_counting<B: Bus>(cpu: &mut Cpu, _: &mut B, op: &Op<B>) -> Outcome {
    let left = cpu.get::<64>(RCX).wrapping_sub(1);
    cpu.put::<64>(RCX, left);
    if left != 0 { taken(cpu, op) } else { Ok(Flow::Next) }
}

/// JMP to where an operand says.
pub(crate) fn jump_indirect<B: Bus, S: Source>(cpu: &mut Cpu, bus: &mut B, op: &Op<B>) -> Outcome {
    cpu.rip = S::read::<B, 64>(cpu, bus, op)?;
    Ok(Flow::Jump)
}

/// CALL of a known place. The displacement, which is no address here, is where it returns to.
pub(crate) fn call<B: Bus>(cpu: &mut Cpu, bus: &mut B, op: &Op<B>) -> Outcome {
    push_value::<B, 64>(cpu, bus, op, op.address.displacement as u64)?;
    cpu.rip = op.immediate as u64;
    Ok(Flow::Jump)
}

/// CALL of where an operand says. The immediate operand is where it returns to.
pub(crate) fn call_indirect<B: Bus, S: Source>(cpu: &mut Cpu, bus: &mut B, op: &Op<B>) -> Outcome {
    let target = S::read::<B, 64>(cpu, bus, op)?;
    push_value::<B, 64>(cpu, bus, op, op.immediate as u64)?;
    cpu.rip = target;
    Ok(Flow::Jump)
}

/// RET, with a number of bytes of arguments to drop.
pub(crate) fn ret<B: Bus>(cpu: &mut Cpu, bus: &mut B, op: &Op<B>) -> Outcome {
    let top = cpu.get::<64>(RSP);
    cpu.rip = cpu.load::<B, 64>(bus, op, top)?;
    cpu.put::<64>(RSP, top.wrapping_add(8).wrapping_add(op.immediate as u64));
    Ok(Flow::Jump)
}
