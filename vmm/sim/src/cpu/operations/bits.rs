//! Single bits, searches for bits, changes of order; fields of bits (BMI1 and BMI2), shifts that leave the flags alone, and CRC32.

use super::arithmetic::{Binary, binaries, logic};
use super::{Source, change_at, steps};
use crate::cpu::bus::Bus;
use crate::cpu::flags::{Flags, mask, signed};
use crate::cpu::op::{Flow, Op, Outcome};
use crate::cpu::state::{Cpu, RDX};

// BT, BTS, BTR, BTC: what is written for a value and one of its bits.
binaries! {
    Look<W>(_flags, value, _bit) value;
    Set<W>(_flags, value, bit) value | bit;
    Reset<W>(_flags, value, bit) value & !bit;
    Complement<W>(_flags, value, bit) value ^ bit;
}

/// One of these four.
pub(crate) trait BitChange: Binary {
    const WRITES: bool = true;
}

impl BitChange for Look {
    const WRITES: bool = false;
}

impl BitChange for Set {}
impl BitChange for Reset {}
impl BitChange for Complement {}

steps! {
    /// Tests, and perhaps changes, a bit of a register.
    fn bit_of_register[K: BitChange, S: Source, const W: u32](cpu, bus, op) {
        let bit = 1 << (S::read::<B, W>(cpu, bus, op)? % u64::from(W));
        let value = cpu.get::<W>(op.first);
        cpu.flags.set_carry(value & bit != 0);
        if K::WRITES {
            let changed = K::apply::<W>(&mut cpu.flags, value, bit);
            cpu.put::<W>(op.first, changed);
        }
    }

    /// Tests, and perhaps changes, a bit of memory. A register counts bits from the operand's first byte in both directions, an immediate
    /// one within it.
    fn bit_of_memory[K: BitChange, S: Source, const W: u32, const LOCK: bool](cpu, bus, op) {
        let number = signed(S::read::<B, W>(cpu, bus, op)?, W);
        let words = if op.second < 16 { number.div_euclid(i64::from(W)) } else { 0 };
        let address = cpu.effective(&op.address).wrapping_add((words * i64::from(W / 8)) as u64);
        let bit = 1 << number.rem_euclid(i64::from(W));
        let value = if K::WRITES {
            change_at::<B, W, LOCK, u64>(cpu, bus, op, address, |cpu, value| {
                (K::apply::<W>(&mut cpu.flags, value, bit), value)
            })?
        } else {
            cpu.load::<B, W>(bus, op, address)?
        };
        cpu.flags.set_carry(value & bit != 0);
    }

    /// BSF, or BSR if `LAST`. Without any bit the register stays.
    fn scan[S: Source, const W: u32, const LAST: bool](cpu, bus, op) {
        let value = S::read::<B, W>(cpu, bus, op)?;
        cpu.flags.set_zero(value == 0);
        if value != 0 {
            let number = if LAST { 63 - value.leading_zeros() } else { value.trailing_zeros() };
            cpu.put::<W>(op.first, u64::from(number));
        }
    }

    /// BSWAP. Of 16 bits it is undefined; processors make zero of them.
    fn swap_bytes[const W: u32](cpu, _, op) {
        let value = cpu.get::<W>(op.first);
        let swapped = if W == 16 { 0 } else { value.swap_bytes() >> (64 - W) };
        cpu.put::<W>(op.first, swapped & mask(W));
    }

    /// MOVBE to memory.
    fn store_swapped[const W: u32](cpu, bus, op) {
        let address = cpu.effective(&op.address);
        let value = cpu.get::<W>(op.second).swap_bytes() >> (64 - W);
        cpu.store::<B, W>(bus, op, address, value)?;
    }
}

binaries! {
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

// BLSI, BLSMSK, BLSR: of one operand.
binaries! {
    LowestSet<W>(flags, a, _b) with_carry::<W>(flags, a & a.wrapping_neg(), a != 0);
    MaskToLowest<W>(flags, a, _b) with_carry::<W>(flags, (a ^ a.wrapping_sub(1)) & mask(W), a == 0);
    ResetLowest<W>(flags, a, _b) with_carry::<W>(flags, a & a.wrapping_sub(1), a == 0);
}

// TZCNT, LZCNT, POPCNT, and MOVBE from memory: of one operand, too.
binaries! {
    TrailingZeros<W>(flags, a, _b) with_carry::<W>(flags, a.trailing_zeros().min(W).into(), a == 0);
    LeadingZeros<W>(flags, a, _b) with_carry::<W>(flags, (a.leading_zeros() - (64 - W)).into(), a == 0);
    CountOnes<W>(flags, a, _b) {
        flags.set_arithmetic(if a == 0 { 1 << 6 } else { 0 });
        a.count_ones().into()
    };
    SwapBytes<W>(_flags, a, _b) a.swap_bytes() >> (64 - W);
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

steps! {
    /// `first = A OP S`.
    fn combine[K: Binary, A: Source, S: Source, const W: u32](cpu, bus, op) {
        let a = A::read::<B, W>(cpu, bus, op)?;
        let b = S::read::<B, W>(cpu, bus, op)?;
        let result = K::apply::<W>(&mut cpu.flags, a, b);
        cpu.put::<W>(op.first, result);
    }

    /// MULX: the product of RDX, whose upper half stays if one register is to have both.
    fn multiply[S: Source, const W: u32](cpu, bus, op) {
        let b = S::read::<B, W>(cpu, bus, op)?;
        let product = u128::from(cpu.get::<W>(RDX)) * u128::from(b);
        cpu.put::<W>(op.second, product as u64);
        cpu.put::<W>(op.first, (product >> W) as u64);
    }

    /// CRC32 of `W` bits more, by the polynomial of Castagnoli. The result has 32 bits, and clears those above.
    fn checksum[S: Source, const W: u32](cpu, bus, op) {
        const REVERSED: u64 = 0x82f6_3b78;
        let mut rest = cpu.get::<32>(op.first) ^ S::read::<B, W>(cpu, bus, op)?;
        for _ in 0..W {
            rest = rest >> 1 ^ if rest & 1 != 0 { REVERSED } else { 0 };
        }
        cpu.put::<32>(op.first, rest);
    }
}
