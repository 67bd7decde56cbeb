//! Addition, subtraction, comparison, bitwise operations, multiplication and division; shifts and rotations.

use super::{Source, Target, steps};
use crate::cpu::bus::{Bus, Fault};
use crate::cpu::flags::{Flags, mask, signed};
use crate::cpu::op::{Flow, Op, Outcome};
use crate::cpu::state::{Cpu, Out, RAX, RBX, RCX, RDX, slot};

/// An operation on two operands.
pub(crate) trait Binary {
    /// Result and flags.
    fn apply<const W: u32>(flags: &mut Flags, a: u64, b: u64) -> u64;
}

/// Declares operations on two operands, of `W` bits.
macro_rules! binaries {
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

pub(super) use binaries;

pub(super) fn logic<const W: u32>(flags: &mut Flags, result: u64) -> u64 {
    flags.logic::<W>(result);
    result
}

binaries! {
    Add<W>(flags, a, b) flags.add::<W>(a, b, 0);
    AddCarry<W>(flags, a, b) { let carry = flags.carry().into(); flags.add::<W>(a, b, carry) };
    Subtract<W>(flags, a, b) flags.subtract::<W>(a, b, 0);
    SubtractBorrow<W>(flags, a, b) { let borrow = flags.carry().into(); flags.subtract::<W>(a, b, borrow) };
    And<W>(flags, a, b) logic::<W>(flags, a & b);
    Or<W>(flags, a, b) logic::<W>(flags, a | b);
    Xor<W>(flags, a, b) logic::<W>(flags, a ^ b);
}

// Operations on one operand.
binaries! {
    Increment<W>(flags, a, _b) flags.increment::<W>(a);
    Decrement<W>(flags, a, _b) flags.decrement::<W>(a);
    Negate<W>(flags, a, _b) flags.subtract::<W>(0, a, 0);
    Invert<W>(_flags, a, _b) !a;
}

steps! {
    /// `first = first OP second`.
    fn binary[K: Binary, T: Target, S: Source, const W: u32](cpu, bus, op) {
        let b = S::read::<B, W>(cpu, bus, op)?;
        T::change::<B, W, ()>(cpu, bus, op, |cpu, a| (K::apply::<W>(&mut cpu.flags, a, b), ()))?;
    }

    /// The flags of `first OP second`: CMP, TEST.
    fn compare[K: Binary, A: Source, S: Source, const W: u32](cpu, bus, op) {
        let a = A::read::<B, W>(cpu, bus, op)?;
        let b = S::read::<B, W>(cpu, bus, op)?;
        K::apply::<W>(&mut cpu.flags, a, b);
    }

    /// XADD: the sum goes to the first operand, what that was to the second, which is written first if both are one register.
    fn exchange_add[T: Target, const W: u32](cpu, bus, op) {
        let b = cpu.get::<W>(op.second);
        T::change::<B, W, ()>(cpu, bus, op, |cpu, a| {
            let sum = cpu.flags.add::<W>(a, b, 0);
            cpu.put::<W>(op.second, a);
            (sum, ())
        })?;
    }

    /// CMPXCHG with memory, which is written in either case, as on a real CPU.
    fn compare_exchange[T: Target, const W: u32](cpu, bus, op) {
        let new = cpu.get::<W>(op.second);
        let expected = cpu.get::<W>(RAX);
        let was = T::change::<B, W, u64>(cpu, bus, op, |cpu, old| {
            let equal = cpu.flags.subtract::<W>(expected, old, 0) == 0;
            (if equal { new } else { old }, old)
        })?;
        if was != expected {
            cpu.put::<W>(RAX, was);
        }
    }

    /// CMPXCHG8B and CMPXCHG16B, whose operand is two halves of `W` bits: it is written in either case, and of the flags only ZF. That of
    /// 16 bytes must be aligned.
    fn compare_exchange_pair[const W: u32, const LOCK: bool](cpu, bus, op) {
        let address = cpu.effective(&op.address);
        if W == 64 && !address.is_multiple_of(16) {
            return Err(cpu.leave(Out::Fault(Fault::protection(0))));
        }
        let new = [cpu.get::<W>(RBX), cpu.get::<W>(RCX)];
        let expected = [cpu.get::<W>(RAX), cpu.get::<W>(RDX)];
        // One of 16 bytes lies in one line: to be granted its first half is to be granted all of it.
        let at = cpu.place_to_modify::<B, 64, LOCK>(bus, op, address)?;
        let old = if W == 64 {
            [at, at + 8].map(|at| bus.load(at, 8))
        } else {
            let whole = cpu.read_at::<B, 64>(bus, at);
            [whole & mask(32), whole >> 32]
        };
        let [low, high] = if old == expected { new } else { old };
        if W == 64 {
            bus.store(at, 8, low);
            bus.store(at + 8, 8, high);
        } else {
            cpu.write_at::<B, 64>(bus, at, low | high << 32);
        }
        cpu.flags.set_zero(old == expected);
        if old != expected {
            cpu.put::<W>(RAX, old[0]);
            cpu.put::<W>(RDX, old[1]);
        }
    }

    /// CMPXCHG of a register: one of two is written. (Not even the upper half of the other changes, on AMD's processors.)
    fn compare_exchange_register[const W: u32](cpu, _, op) {
        let (old, expected) = (cpu.get::<W>(op.first), cpu.get::<W>(RAX));
        if cpu.flags.subtract::<W>(expected, old, 0) == 0 {
            let new = cpu.get::<W>(op.second);
            cpu.put::<W>(op.first, new);
        } else {
            cpu.put::<W>(RAX, old);
        }
    }
}

// IMUL with two or three operands: the product as far as it fits.
binaries! {
    Multiply<W>(flags, a, b) {
        let (product, mut overflow) = signed(a, W).overflowing_mul(signed(b, W));
        if W < 64 {
            overflow = product != signed(product as u64, W);
        }
        flags.set_carry_overflow(overflow, overflow);
        product as u64
    };
}

/// Register of the upper half: AH for 8 bits, else DX, EDX or RDX.
#[inline(always)]
fn upper<const W: u32>() -> u8 {
    if W == 8 { RAX | slot::HIGH_BYTE } else { RDX }
}

steps! {
    /// MUL and, if `SIGNED`, IMUL with one operand: the product of the accumulator, all of it.
    fn multiply[S: Source, const W: u32, const SIGNED: bool](cpu, bus, op) {
        let (a, b) = (cpu.get::<W>(RAX), S::read::<B, W>(cpu, bus, op)?);
        let product = if SIGNED {
            (i128::from(signed(a, W)) * i128::from(signed(b, W))) as u128
        } else {
            u128::from(a) * u128::from(b)
        };
        let (low, high) = (product as u64, (product >> W) as u64);
        cpu.put::<W>(RAX, low);
        cpu.put::<W>(upper::<W>(), high);
        let rest = if SIGNED { signed(low, W) >> 63 } else { 0 };
        let overflow = (high ^ rest as u64) & mask(W) != 0;
        cpu.flags.set_carry_overflow(overflow, overflow);
    }

    /// DIV. Flags are undefined.
    fn divide[S: Source, const W: u32](cpu, bus, op) {
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
    }

    /// IDIV. Flags are undefined.
    fn divide_signed[S: Source, const W: u32](cpu, bus, op) {
        let divisor = i128::from(signed(S::read::<B, W>(cpu, bus, op)?, W));
        let (low, high) = (cpu.get::<W>(RAX), signed(cpu.get::<W>(upper::<W>()), W));
        let dividend = i128::from(high) << W | i128::from(low & mask(W));
        let fits = |quotient: &i128| *quotient == i128::from(signed(*quotient as u64, W));
        let Some(quotient) = dividend.checked_div(divisor).filter(fits) else {
            return Err(cpu.leave(Out::Fault(Fault::DIVIDE)));
        };
        cpu.put::<W>(RAX, quotient as u64);
        cpu.put::<W>(upper::<W>(), (dividend % divisor) as u64);
    }
}

#[inline(always)]
fn bit(value: u64, number: u32) -> bool {
    number < 64 && value >> number & 1 != 0
}

// Shifts and rotations by `count`, which is not zero. A count of zero, after its mask, changes no flag.
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
