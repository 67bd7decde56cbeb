//! Single bits, searches for bits, changes of order.

use super::{Source, change_at};
use crate::cpu::bus::Bus;
use crate::cpu::flags::{mask, signed};
use crate::cpu::op::{Flow, Op, Outcome};
use crate::cpu::state::Cpu;

/// BT, BTS, BTR, BTC.
pub(crate) trait BitChange {
    const WRITES: bool = true;
    fn change(value: u64, bit: u64) -> u64;
}

pub(crate) struct Look;
pub(crate) struct Set;
pub(crate) struct Reset;
pub(crate) struct Complement;

impl BitChange for Look {
    const WRITES: bool = false;
    fn change(value: u64, _: u64) -> u64 {
        value
    }
}

impl BitChange for Set {
    fn change(value: u64, bit: u64) -> u64 {
        value | bit
    }
}

impl BitChange for Reset {
    fn change(value: u64, bit: u64) -> u64 {
        value & !bit
    }
}

impl BitChange for Complement {
    fn change(value: u64, bit: u64) -> u64 {
        value ^ bit
    }
}

/// Tests, and perhaps changes, a bit of a register.
pub(crate) fn bit_of_register<B: Bus, K: BitChange, S: Source, const W: u32>(
    cpu: &mut Cpu,
    bus: &mut B,
    op: &Op<B>,
) -> Outcome {
    let bit = 1 << (S::read::<B, W>(cpu, bus, op)? % u64::from(W));
    let value = cpu.get::<W>(op.first);
    cpu.flags.set_carry(value & bit != 0);
    if K::WRITES {
        cpu.put::<W>(op.first, K::change(value, bit));
    }
    Ok(Flow::Next)
}

/// Tests, and perhaps changes, a bit of memory. A register counts bits from the operand's first byte in both directions, an immediate
/// one within it.
pub(crate) fn bit_of_memory<B: Bus, K: BitChange, S: Source, const W: u32, const LOCK: bool>(
    cpu: &mut Cpu,
    bus: &mut B,
    op: &Op<B>,
) -> Outcome {
    let number = signed(S::read::<B, W>(cpu, bus, op)?, W);
    let words = if op.second < 16 { number.div_euclid(i64::from(W)) } else { 0 };
    let address = cpu.effective(&op.address).wrapping_add((words * i64::from(W / 8)) as u64);
    let bit = 1 << number.rem_euclid(i64::from(W));
    let value = if K::WRITES {
        change_at::<B, W, LOCK, u64>(cpu, bus, op, address, |_, value| (K::change(value, bit), value))?
    } else {
        cpu.load::<B, W>(bus, op, address)?
    };
    cpu.flags.set_carry(value & bit != 0);
    Ok(Flow::Next)
}

/// BSF, or BSR if `LAST`. Without any bit the register stays.
pub(crate) fn scan<B: Bus, S: Source, const W: u32, const LAST: bool>(
    cpu: &mut Cpu,
    bus: &mut B,
    op: &Op<B>,
) -> Outcome {
    let value = S::read::<B, W>(cpu, bus, op)?;
    cpu.flags.set_zero(value == 0);
    if value != 0 {
        let number = if LAST { 63 - value.leading_zeros() } else { value.trailing_zeros() };
        cpu.put::<W>(op.first, u64::from(number));
    }
    Ok(Flow::Next)
}

/// TZCNT, or LZCNT if `LEADING`.
pub(crate) fn count_zeros<B: Bus, S: Source, const W: u32, const LEADING: bool>(
    cpu: &mut Cpu,
    bus: &mut B,
    op: &Op<B>,
) -> Outcome {
    let value = S::read::<B, W>(cpu, bus, op)?;
    let count = if LEADING { value.leading_zeros() - (64 - W) } else { value.trailing_zeros().min(W) };
    cpu.flags.set_result::<W>(u64::from(count));
    cpu.flags.set_carry_overflow(value == 0, false);
    cpu.put::<W>(op.first, u64::from(count));
    Ok(Flow::Next)
}

/// POPCNT.
pub(crate) fn count_ones<B: Bus, S: Source, const W: u32>(cpu: &mut Cpu, bus: &mut B, op: &Op<B>) -> Outcome {
    let value = S::read::<B, W>(cpu, bus, op)?;
    let zero = if value == 0 { 1 << 6 } else { 0 };
    cpu.flags.set_arithmetic(zero);
    cpu.put::<W>(op.first, u64::from(value.count_ones()));
    Ok(Flow::Next)
}

/// BSWAP. Of 16 bits it is undefined; processors make zero of them.
pub(crate) fn swap_bytes<B: Bus, const W: u32>(cpu: &mut Cpu, _: &mut B, op: &Op<B>) -> Outcome {
    let value = cpu.get::<W>(op.first);
    let swapped = if W == 16 { 0 } else { value.swap_bytes() >> (64 - W) };
    cpu.put::<W>(op.first, swapped & mask(W));
    Ok(Flow::Next)
}

/// MOVBE, in either direction.
pub(crate) fn load_swapped<B: Bus, const W: u32>(cpu: &mut Cpu, bus: &mut B, op: &Op<B>) -> Outcome {
    let address = cpu.effective(&op.address);
    let value = cpu.load::<B, W>(bus, op, address)?;
    cpu.put::<W>(op.first, value.swap_bytes() >> (64 - W));
    Ok(Flow::Next)
}

pub(crate) fn store_swapped<B: Bus, const W: u32>(cpu: &mut Cpu, bus: &mut B, op: &Op<B>) -> Outcome {
    let address = cpu.effective(&op.address);
    let value = cpu.get::<W>(op.second).swap_bytes() >> (64 - W);
    cpu.store::<B, W>(bus, op, address, value)?;
    Ok(Flow::Next)
}
