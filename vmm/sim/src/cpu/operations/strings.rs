//! String instructions. A repeated one goes on until its count is zero; each element is complete before the next, so that
//! a fault or a stop leaves registers from which it resumes.

use crate::cpu::bus::Bus;
use crate::cpu::flags::BACKWARD;
use crate::cpu::op::{Flow, Left, Op, Outcome};
use crate::cpu::state::{Cpu, RAX, RCX, RDI, RSI, Since};

/// One element.
pub(crate) trait Element {
    /// Whether REPE and REPNE look at ZF.
    const COMPARES: bool;
    fn step<B: Bus, const W: u32>(cpu: &mut Cpu, bus: &mut B, op: &Op<B>) -> Result<(), Left>;
}

/// How an instruction is repeated.
pub(crate) const ONCE: u8 = 0;
/// REP, REPE.
pub(crate) const WHILE_EQUAL: u8 = 1;
/// REPNE.
pub(crate) const WHILE_UNEQUAL: u8 = 2;

/// The register moves on by one element.
pub(super) fn advance<const W: u32>(cpu: &mut Cpu, register: u8) {
    let bytes = u64::from(W / 8);
    let step = if cpu.flags.system & BACKWARD == 0 { bytes } else { bytes.wrapping_neg() };
    let place = &mut cpu.file[usize::from(register & 31)];
    *place = place.wrapping_add(step);
}

/// Declares elements of `W` bits; whether the instruction compares stands behind the name.
macro_rules! elements {
    ($($name:ident<$width:ident> $compares:literal ($cpu:ident, $bus:ident, $op:ident) $body:block)*) => {$(
        pub(crate) struct $name;

        impl Element for $name {
            const COMPARES: bool = $compares;
            #[inline(always)]
            fn step<B: Bus, const $width: u32>($cpu: &mut Cpu, $bus: &mut B, $op: &Op<B>) -> Result<(), Left> {
                $body
                Ok(())
            }
        }
    )*};
}

elements! {
    Move<W> false (cpu, bus, op) {
        let value = cpu.load::<B, W>(bus, op, cpu.get::<64>(RSI))?;
        cpu.store::<B, W>(bus, op, cpu.get::<64>(RDI), value)?;
        advance::<W>(cpu, RSI);
        advance::<W>(cpu, RDI);
    }
    Store<W> false (cpu, bus, op) {
        cpu.store::<B, W>(bus, op, cpu.get::<64>(RDI), cpu.get::<W>(RAX))?;
        advance::<W>(cpu, RDI);
    }
    Load<W> false (cpu, bus, op) {
        let value = cpu.load::<B, W>(bus, op, cpu.get::<64>(RSI))?;
        cpu.put::<W>(RAX, value);
        advance::<W>(cpu, RSI);
    }
    Scan<W> true (cpu, bus, op) {
        let value = cpu.load::<B, W>(bus, op, cpu.get::<64>(RDI))?;
        let accumulator = cpu.get::<W>(RAX);
        cpu.flags.subtract::<W>(accumulator, value, 0);
        advance::<W>(cpu, RDI);
    }
    Compare<W> true (cpu, bus, op) {
        let a = cpu.load::<B, W>(bus, op, cpu.get::<64>(RSI))?;
        let b = cpu.load::<B, W>(bus, op, cpu.get::<64>(RDI))?;
        cpu.flags.subtract::<W>(a, b, 0);
        advance::<W>(cpu, RSI);
        advance::<W>(cpu, RDI);
    }
}

/// Elements of a repeated instruction that are done at once, and elements that count as an instruction, in time and against the
/// limit. Those at once take a fraction of a millisecond of the host.
const MOST_ELEMENTS: u64 = 1 << 16;
const ELEMENTS_OF_INSTRUCTION: u64 = 64;

/// The instruction.
pub(crate) fn string<B: Bus, E: Element, const W: u32, const REPEAT: u8>(
    cpu: &mut Cpu,
    bus: &mut B,
    op: &Op<B>,
) -> Outcome {
    if REPEAT == ONCE {
        E::step::<B, W>(cpu, bus, op)?;
        return Ok(Flow::Next);
    }
    // It begins anew at each page, which the count must survive.
    if cpu.elements.instructions != cpu.instructions {
        cpu.elements = Since { instructions: cpu.instructions, count: 0 };
    }
    while cpu.file[usize::from(RCX)] != 0 {
        // Interrupted, as on hardware, it stands before itself with what is left to do: it has no other end than its count.
        if cpu.elements.count >= MOST_ELEMENTS {
            cpu.instructions += MOST_ELEMENTS / ELEMENTS_OF_INSTRUCTION;
            return Err(Left);
        }
        cpu.elements.count += 1;
        E::step::<B, W>(cpu, bus, op)?;
        cpu.file[usize::from(RCX)] -= 1;
        bus.element_done();
        if E::COMPARES && cpu.flags.zero() != (REPEAT == WHILE_EQUAL) {
            break;
        }
    }
    Ok(Flow::Next)
}
