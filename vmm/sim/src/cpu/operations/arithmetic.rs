//! Addition, subtraction, comparison, bitwise operations.

use super::{Source, Target, change_at};
use crate::cpu::bus::Bus;
use crate::cpu::event::Fault;
use crate::cpu::flags::{Flags, mask};
use crate::cpu::op::{Flow, Op, Outcome};
use crate::cpu::state::{Cpu, Out, RAX, RBX, RCX, RDX};

/// An operation on two operands.
pub(crate) trait Binary {
    /// Result and flags.
    fn apply<const W: u32>(flags: &mut Flags, a: u64, b: u64) -> u64;
}

/// Declares operations on two operands.
macro_rules! binary {
    ($($name:ident($flags:ident, $a:ident, $b:ident) $body:expr;)*) => {$(
        pub(crate) struct $name;

        impl Binary for $name {
            #[inline(always)]
            fn apply<const W: u32>($flags: &mut Flags, $a: u64, $b: u64) -> u64 {
                $body
            }
        }
    )*};
}

fn logic<const W: u32>(flags: &mut Flags, result: u64) -> u64 {
    flags.logic::<W>(result);
    result
}

binary! {
    Add(flags, a, b) flags.add::<W>(a, b, 0);
    AddCarry(flags, a, b) { let carry = flags.carry().into(); flags.add::<W>(a, b, carry) };
    Subtract(flags, a, b) flags.subtract::<W>(a, b, 0);
    SubtractBorrow(flags, a, b) { let borrow = flags.carry().into(); flags.subtract::<W>(a, b, borrow) };
    And(flags, a, b) logic::<W>(flags, a & b);
    Or(flags, a, b) logic::<W>(flags, a | b);
    Xor(flags, a, b) logic::<W>(flags, a ^ b);
}

/// An operation on one operand.
pub(crate) trait Unary {
    /// Result and flags.
    fn apply<const W: u32>(flags: &mut Flags, a: u64) -> u64;
}

pub(crate) struct Increment;
pub(crate) struct Decrement;
pub(crate) struct Negate;
pub(crate) struct Invert;

impl Unary for Increment {
    #[inline(always)]
    fn apply<const W: u32>(flags: &mut Flags, a: u64) -> u64 {
        flags.increment::<W>(a)
    }
}

impl Unary for Decrement {
    #[inline(always)]
    fn apply<const W: u32>(flags: &mut Flags, a: u64) -> u64 {
        flags.decrement::<W>(a)
    }
}

impl Unary for Negate {
    #[inline(always)]
    fn apply<const W: u32>(flags: &mut Flags, a: u64) -> u64 {
        flags.subtract::<W>(0, a, 0)
    }
}

impl Unary for Invert {
    #[inline(always)]
    fn apply<const W: u32>(_: &mut Flags, a: u64) -> u64 {
        !a
    }
}

/// `first = first OP second`.
pub(crate) fn binary<B: Bus, K: Binary, T: Target, S: Source, const W: u32>(
    cpu: &mut Cpu,
    bus: &mut B,
    op: &Op<B>,
) -> Outcome {
    let b = S::read::<B, W>(cpu, bus, op)?;
    T::change::<B, W, ()>(cpu, bus, op, |cpu, a| (K::apply::<W>(&mut cpu.flags, a, b), ()))?;
    Ok(Flow::Next)
}

/// The flags of `first OP second`: CMP, TEST.
pub(crate) fn compare<B: Bus, K: Binary, A: Source, S: Source, const W: u32>(
    cpu: &mut Cpu,
    bus: &mut B,
    op: &Op<B>,
) -> Outcome {
    let a = A::read::<B, W>(cpu, bus, op)?;
    let b = S::read::<B, W>(cpu, bus, op)?;
    K::apply::<W>(&mut cpu.flags, a, b);
    Ok(Flow::Next)
}

/// `first = OP first`.
pub(crate) fn unary<B: Bus, K: Unary, T: Target, const W: u32>(
    cpu: &mut Cpu,
    bus: &mut B,
    op: &Op<B>,
) -> Outcome {
    T::change::<B, W, ()>(cpu, bus, op, |cpu, a| (K::apply::<W>(&mut cpu.flags, a), ()))?;
    Ok(Flow::Next)
}

/// XADD: the sum goes to the first operand, what that was to the second, which is written first if both are one register.
pub(crate) fn exchange_add<B: Bus, T: Target, const W: u32>(
    cpu: &mut Cpu,
    bus: &mut B,
    op: &Op<B>,
) -> Outcome {
    let b = cpu.get::<W>(op.second);
    T::change::<B, W, ()>(cpu, bus, op, |cpu, a| {
        let sum = cpu.flags.add::<W>(a, b, 0);
        cpu.put::<W>(op.second, a);
        (sum, ())
    })?;
    Ok(Flow::Next)
}

/// CMPXCHG with memory, which is written in either case, as on a real CPU.
pub(crate) fn compare_exchange<B: Bus, T: Target, const W: u32>(
    cpu: &mut Cpu,
    bus: &mut B,
    op: &Op<B>,
) -> Outcome {
    let new = cpu.get::<W>(op.second);
    let expected = cpu.get::<W>(RAX);
    let was = T::change::<B, W, u64>(cpu, bus, op, |cpu, old| {
        let equal = cpu.flags.subtract::<W>(expected, old, 0) == 0;
        (if equal { new } else { old }, old)
    })?;
    if was != expected {
        cpu.put::<W>(RAX, was);
    }
    Ok(Flow::Next)
}

/// CMPXCHG8B and CMPXCHG16B, whose operand is two halves of `W` bits: it is written in either case, and of the flags only ZF. That of
/// 16 bytes must be aligned.
pub(crate) fn compare_exchange_pair<B: Bus, const W: u32, const LOCK: bool>(
    cpu: &mut Cpu,
    bus: &mut B,
    op: &Op<B>,
) -> Outcome {
    let address = cpu.effective(&op.address);
    if W == 64 && !address.is_multiple_of(16) {
        return Err(cpu.leave(Out::Fault(Fault::protection(0))));
    }
    let new = [cpu.get::<W>(RBX), cpu.get::<W>(RCX)];
    let expected = [cpu.get::<W>(RAX), cpu.get::<W>(RDX)];
    let old = if W == 64 {
        // Aligned, it lies in one line: to be granted its first half is to be granted all of it.
        let at = cpu.place_to_modify::<B, 64, LOCK>(bus, op, address)?;
        let old = [at, at + 8].map(|at| bus.load(at, 8));
        let [low, high] = if old == expected { new } else { old };
        bus.store(at, 8, low);
        bus.store(at + 8, 8, high);
        old
    } else {
        let whole = |[low, high]: [u64; 2]| low | high << 32;
        let old = change_at::<B, 64, LOCK, u64>(cpu, bus, op, address, |_, old| {
            (if old == whole(expected) { whole(new) } else { old }, old)
        })?;
        [old & mask(32), old >> 32]
    };
    cpu.flags.set_zero(old == expected);
    if old != expected {
        cpu.put::<W>(RAX, old[0]);
        cpu.put::<W>(RDX, old[1]);
    }
    Ok(Flow::Next)
}

/// CMPXCHG of a register: one of two is written. (Not even the upper half of the other changes, on AMD's processors.)
pub(crate) fn compare_exchange_register<B: Bus, const W: u32>(
    cpu: &mut Cpu,
    _: &mut B,
    op: &Op<B>,
) -> Outcome {
    let (old, expected) = (cpu.get::<W>(op.first), cpu.get::<W>(RAX));
    if cpu.flags.subtract::<W>(expected, old, 0) == 0 {
        let new = cpu.get::<W>(op.second);
        cpu.put::<W>(op.first, new);
    } else {
        cpu.put::<W>(RAX, old);
    }
    Ok(Flow::Next)
}
