//! Shifts and rotations. A count of zero, after its mask, changes no flag.

use super::arithmetic::{Binary, binaries};
use super::{Source, Target, steps};
use crate::cpu::bus::Bus;
use crate::cpu::flags::{Flags, mask, signed};
use crate::cpu::op::{Flow, Op, Outcome};
use crate::cpu::state::Cpu;

#[inline(always)]
fn bit(value: u64, number: u32) -> bool {
    number < 64 && value >> number & 1 != 0
}

// By `count`, which is not zero.
binaries! {
    Left<W>(flags, value, count) {
        let count = count as u32;
        let result = value << count & mask(W);
        let carry = count <= W && bit(value, W - count.min(W));
        flags.set_result::<W>(result);
        flags.set_carry_overflow(carry, bit(result, W - 1) ^ carry);
        result
    };
    Right<W>(flags, value, count) {
        let count = count as u32;
        let result = value >> count;
        flags.set_result::<W>(result);
        flags.set_carry_overflow(bit(value, count - 1), bit(value, W - 1));
        result
    };
    ArithmeticRight<W>(flags, value, count) {
        let count = count as u32;
        let value = signed(value, W);
        let result = (value >> count) as u64 & mask(W);
        flags.set_result::<W>(result);
        flags.set_carry_overflow(value >> (count - 1) & 1 != 0, false);
        result
    };
    RotateLeft<W>(flags, value, count) {
        let count = count as u32;
        let turn = count % W;
        let result = if turn == 0 { value } else { (value << turn | value >> (W - turn)) & mask(W) };
        let carry = bit(result, 0);
        flags.set_carry_overflow(carry, bit(result, W - 1) ^ carry);
        result
    };
    RotateRight<W>(flags, value, count) {
        let count = count as u32;
        let turn = count % W;
        let result = if turn == 0 { value } else { (value >> turn | value << (W - turn)) & mask(W) };
        let carry = bit(result, W - 1);
        flags.set_carry_overflow(carry, carry ^ bit(result, W - 2));
        result
    };
    RotateCarryLeft<W>(flags, value, count) {
        let count = count as u32;
        let mut wide = u128::from(value) | u128::from(flags.carry()) << W;
        let turn = count % (W + 1);
        let all = (1_u128 << (W + 1)) - 1;
        wide = (wide << turn | wide >> (W + 1 - turn)) & all;
        let (result, carry) = (wide as u64 & mask(W), wide >> W != 0);
        flags.set_carry_overflow(carry, bit(result, W - 1) ^ carry);
        result
    };
    RotateCarryRight<W>(flags, value, count) {
        let count = count as u32;
        let mut wide = u128::from(value) | u128::from(flags.carry()) << W;
        let turn = count % (W + 1);
        let all = (1_u128 << (W + 1)) - 1;
        wide = (wide >> turn | wide << (W + 1 - turn)) & all;
        let (result, carry) = (wide as u64 & mask(W), wide >> W != 0);
        flags.set_carry_overflow(carry, bit(result, W - 1) ^ bit(result, W - 2));
        result
    };
}

steps! {
    /// `first = first SHIFT count`.
    fn shift[K: Binary, T: Target, S: Source, const W: u32](cpu, bus, op) {
        let count = S::read::<B, 8>(cpu, bus, op)? & if W == 64 { 63 } else { 31 };
        T::change::<B, W, ()>(cpu, bus, op, |cpu, value| {
            (if count == 0 { value } else { K::apply::<W>(&mut cpu.flags, value, count) }, ())
        })?;
    }

    /// SHLD and, if `RIGHT`, SHRD: bits of the second operand move in. For 16 bits and a larger count it is undefined.
    fn shift_double[T: Target, S: Source, const W: u32, const RIGHT: bool](cpu, bus, op) {
        let count = S::read::<B, 8>(cpu, bus, op)? as u32 & if W == 64 { 63 } else { 31 };
        let other = cpu.get::<W>(op.second);
        T::change::<B, W, ()>(cpu, bus, op, |cpu, value| {
            if count == 0 {
                return (value, ());
            }
            // Operands of 16 bits follow each other, as in processors.
            let (value, other) = (u128::from(value), u128::from(other));
            let (result, carry) = if RIGHT {
                let wide = value | other << W | if W == 16 { value << 32 } else { 0 };
                ((wide >> count) as u64 & mask(W), wide >> (count - 1) & 1 != 0)
            } else {
                let wide = value << W | other;
                let wide = if W == 16 { wide << 16 | value } else { wide };
                let top = if W == 16 { 48 } else { 2 * W };
                ((wide >> (top - W - count.min(top - W))) as u64 & mask(W), wide >> (top - count) & 1 != 0)
            };
            let changed = bit(value as u64 ^ result, W - 1);
            cpu.flags.set_result::<W>(result);
            cpu.flags.set_carry_overflow(carry, changed);
            (result, ())
        })?;
    }
}
