//! The operations, by kind. Functions of one kind differ by constants: the optimiser sees one instruction with one width and one
//! sort of operands.

pub(crate) mod arithmetic;
pub(crate) mod bits;
pub(crate) mod control;
pub(crate) mod data;

use crate::cpu::bus::Bus;
use crate::cpu::flags::mask;
use crate::cpu::op::{Left, Op};
use crate::cpu::state::{Cpu, RCX};

/// Declares operations that the next one follows, unless they leave early. `B` is the type of the bus; further generics stand in
/// brackets.
macro_rules! steps {
    ($($(#[$doc:meta])* fn $name:ident[$($generic:tt)*]($cpu:tt, $bus:tt, $op:tt) $body:block)*) => {$(
        $(#[$doc])*
        pub(crate) fn $name<B: Bus, $($generic)*>($cpu: &mut Cpu, $bus: &mut B, $op: &Op<B>) -> Outcome {
            $body
            Ok(Flow::Next)
        }
    )*};
}

use steps;

/// Source of an operand.
pub(crate) trait Source {
    fn read<B: Bus, const W: u32>(cpu: &mut Cpu, bus: &mut B, op: &Op<B>) -> Result<u64, Left>;
}

/// Declares sources of operands of `W` bits.
macro_rules! sources {
    ($($(#[$doc:meta])* $name:ident<$width:ident>($cpu:tt, $bus:tt, $op:tt) $value:expr;)*) => {$(
        $(#[$doc])*
        pub(crate) struct $name;

        impl Source for $name {
            #[inline(always)]
            fn read<B: Bus, const $width: u32>($cpu: &mut Cpu, $bus: &mut B, $op: &Op<B>) -> Result<u64, Left> {
                $value
            }
        }
    )*};
}

sources! {
    /// The register [`Op::first`].
    First<W>(cpu, _, op) Ok(cpu.get::<W>(op.first));
    /// The register [`Op::second`].
    Second<W>(cpu, _, op) Ok(cpu.get::<W>(op.second));
    /// The register whose number is [`Op::immediate`], of an instruction with three.
    Third<W>(cpu, _, op) Ok(cpu.get::<W>(op.immediate as u8));
    /// The memory at [`Op::address`].
    Memory<W>(cpu, bus, op) {
        let address = cpu.effective(&op.address);
        cpu.load::<B, W>(bus, op, address)
    };
    /// [`Op::immediate`].
    Immediate<W>(_, _, op) Ok(op.immediate as u64 & mask(W));
    /// CL: the count that is no operand.
    Cl<W>(cpu, _, _) Ok(cpu.get::<8>(RCX));
}

/// An operand that is read and written.
pub(crate) trait Target {
    /// Reads it, writes what `change` makes of it, and passes on what else that returns.
    fn change<B: Bus, const W: u32, T>(
        cpu: &mut Cpu,
        bus: &mut B,
        op: &Op<B>,
        change: impl FnOnce(&mut Cpu, u64) -> (u64, T),
    ) -> Result<T, Left>;
}

impl Target for First {
    #[inline(always)]
    fn change<B: Bus, const W: u32, T>(
        cpu: &mut Cpu,
        _: &mut B,
        op: &Op<B>,
        change: impl FnOnce(&mut Cpu, u64) -> (u64, T),
    ) -> Result<T, Left> {
        let value = cpu.get::<W>(op.first);
        let (value, rest) = change(cpu, value);
        cpu.put::<W>(op.first, value);
        Ok(rest)
    }
}

/// The memory at [`Op::address`], with LOCK or without.
pub(crate) struct AtAddress<const LOCK: bool>;

impl<const LOCK: bool> Target for AtAddress<LOCK> {
    #[inline(always)]
    fn change<B: Bus, const W: u32, T>(
        cpu: &mut Cpu,
        bus: &mut B,
        op: &Op<B>,
        change: impl FnOnce(&mut Cpu, u64) -> (u64, T),
    ) -> Result<T, Left> {
        let address = cpu.effective(&op.address);
        change_at::<B, W, LOCK, T>(cpu, bus, op, address, change)
    }
}

/// Changes the memory at `address`, with LOCK or without.
#[inline(always)]
pub(crate) fn change_at<B: Bus, const W: u32, const LOCK: bool, T>(
    cpu: &mut Cpu,
    bus: &mut B,
    op: &Op<B>,
    address: u64,
    change: impl FnOnce(&mut Cpu, u64) -> (u64, T),
) -> Result<T, Left> {
    let at = cpu.place_to_modify::<B, W, LOCK>(bus, op, address)?;
    let value = cpu.read_at::<B, W>(bus, at);
    let (value, rest) = change(cpu, value);
    cpu.write_at::<B, W>(bus, at, value);
    Ok(rest)
}
