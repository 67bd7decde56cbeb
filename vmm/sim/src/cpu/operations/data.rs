//! Moves, the stack, exchanges, conversions; string instructions.

use super::{Source, Target, steps};
use crate::cpu::bus::Bus;
use crate::cpu::flags::{self, signed};
use crate::cpu::op::{Flow, Left, Op, Outcome};
use crate::cpu::state::{Cpu, RAX, RBP, RCX, RDI, RDX, RSI, RSP, Since};

steps! {
    /// A register gets a value.
    fn move_to_register[S: Source, const W: u32](cpu, bus, op) {
        let value = S::read::<B, W>(cpu, bus, op)?;
        cpu.put::<W>(op.first, value);
    }

    /// Memory gets a value.
    fn move_to_memory[S: Source, const W: u32](cpu, bus, op) {
        let value = S::read::<B, W>(cpu, bus, op)?;
        let address = cpu.effective(&op.address);
        cpu.store::<B, W>(bus, op, address, value)?;
    }

    /// MOVZX: a register of `W` bits gets one of `FROM`.
    fn extend_zero[S: Source, const W: u32, const FROM: u32](cpu, bus, op) {
        let value = S::read::<B, FROM>(cpu, bus, op)?;
        cpu.put::<W>(op.first, value);
    }

    /// MOVSX, MOVSXD.
    fn extend_sign[S: Source, const W: u32, const FROM: u32](cpu, bus, op) {
        let value = signed(S::read::<B, FROM>(cpu, bus, op)?, FROM);
        cpu.put::<W>(op.first, value as u64);
    }

    /// LEA.
    fn address[const W: u32](cpu, _, op) {
        let address = cpu.offset_of(&op.address);
        cpu.put::<W>(op.first, address);
    }

    /// CMOVcc. Memory is read in either case, and 32 bits clear those above.
    fn move_if[S: Source, const W: u32, const CODE: u8](cpu, bus, op) {
        let value = S::read::<B, W>(cpu, bus, op)?;
        let old = cpu.get::<W>(op.first);
        let value = if cpu.flags.holds(CODE) { value } else { old };
        cpu.put::<W>(op.first, value);
    }

    /// SETcc of a register.
    fn set_register[const CODE: u8](cpu, _, op) {
        let value = cpu.flags.holds(CODE).into();
        cpu.put::<8>(op.first, value);
    }

    /// SETcc of memory.
    fn set_memory[const CODE: u8](cpu, bus, op) {
        let value = cpu.flags.holds(CODE).into();
        let address = cpu.effective(&op.address);
        cpu.store::<B, 8>(bus, op, address, value)?;
    }

    /// XCHG.
    fn exchange[T: Target, const W: u32](cpu, bus, op) {
        let new = cpu.get::<W>(op.second);
        let old = T::change::<B, W, u64>(cpu, bus, op, |_, old| (new, old))?;
        cpu.put::<W>(op.second, old);
    }
}

/// Puts a value on the stack.
#[inline(always)]
pub(crate) fn push_value<B: Bus, const W: u32>(
    cpu: &mut Cpu,
    bus: &mut B,
    op: &Op<B>,
    value: u64,
) -> Result<(), Left> {
    let top = cpu.get::<64>(RSP).wrapping_sub(u64::from(W / 8));
    cpu.store::<B, W>(bus, op, top, value)?;
    cpu.put::<64>(RSP, top);
    Ok(())
}

steps! {
    /// PUSH.
    fn push[S: Source, const W: u32](cpu, bus, op) {
        let value = S::read::<B, W>(cpu, bus, op)?;
        push_value::<B, W>(cpu, bus, op, value)?;
    }

    /// POP of a register. POP RSP keeps what it has read.
    fn pop_register[const W: u32](cpu, bus, op) {
        let top = cpu.get::<64>(RSP);
        let value = cpu.load::<B, W>(bus, op, top)?;
        cpu.put::<64>(RSP, top.wrapping_add(u64::from(W / 8)));
        cpu.put::<W>(op.first, value);
    }

    /// POP of memory: an address with RSP in it is that after the increment.
    fn pop_memory[const W: u32](cpu, bus, op) {
        let top = cpu.get::<64>(RSP);
        let value = cpu.load::<B, W>(bus, op, top)?;
        cpu.put::<64>(RSP, top.wrapping_add(u64::from(W / 8)));
        let address = cpu.effective(&op.address);
        let stored = cpu.store::<B, W>(bus, op, address, value);
        if stored.is_err() {
            cpu.put::<64>(RSP, top);
        }
        stored?;
    }

    /// LEAVE.
    fn leave[](cpu, bus, op) {
        let frame = cpu.get::<64>(RBP);
        let value = cpu.load::<B, 64>(bus, op, frame)?;
        cpu.put::<64>(RSP, frame.wrapping_add(8));
        cpu.put::<64>(RBP, value);
    }

    /// PUSHFQ. RF reads as zero.
    fn push_flags[](cpu, bus, op) {
        let value = cpu.flags.get() & !flags::RESUME;
        push_value::<B, 64>(cpu, bus, op, value)?;
    }

    /// POPFQ.
    fn pop_flags[](cpu, bus, op) {
        let top = cpu.get::<64>(RSP);
        let value = cpu.load::<B, 64>(bus, op, top)?;
        cpu.put::<64>(RSP, top.wrapping_add(8));
        cpu.set_flags_from_code(value & !flags::RESUME);
    }
}

impl Cpu {
    /// Sets RFLAGS for POPF and IRET: only ring 0 changes IOPL, only code that may do I/O changes IF.
    pub(crate) fn set_flags_from_code(&mut self, value: u64) {
        use flags::{ALIGNMENT, ARITHMETIC, BACKWARD, IDENTIFICATION, INTERRUPTS, IO_LEVEL, NESTED, TRAP};
        let mut open = ARITHMETIC | TRAP | BACKWARD | NESTED | ALIGNMENT | IDENTIFICATION | flags::RESUME;
        if self.ring == 0 {
            open |= IO_LEVEL;
        }
        if self.may_do_io() {
            open |= INTERRUPTS;
        }
        self.flags.set(self.flags.get() & !open | value & open);
    }

    /// CPL is at most IOPL.
    pub(crate) fn may_do_io(&self) -> bool {
        u64::from(self.ring) <= (self.flags.system & flags::IO_LEVEL) >> 12
    }
}

steps! {
    /// CBW, CWDE, CDQE: the accumulator from half its width.
    fn extend_accumulator[const W: u32](cpu, _, _) {
        let value = signed(cpu.get::<64>(RAX), W / 2);
        cpu.put::<W>(RAX, value as u64);
    }

    /// CWD, CDQ, CQO: its sign to all of DX.
    fn spread_sign[const W: u32](cpu, _, _) {
        let sign = signed(cpu.get::<64>(RAX), W) >> 63;
        cpu.put::<W>(RDX, sign as u64);
    }

    /// A flag of the arithmetic ones, or DF.
    fn change_flags[](cpu, _, op) {
        // `immediate`: what to keep in the lower half, what to invert in the upper one.
        let (keep, invert) = (op.immediate as u64 & 0xffff_ffff, op.immediate as u64 >> 32);
        let value = cpu.flags.get();
        cpu.flags.set((value & (keep | !0xffff_ffff)) ^ invert);
    }

    /// SAHF.
    fn flags_from_ah[](cpu, _, _) {
        const BITS: u64 = 0b1101_0101;
        let value = cpu.flags.arithmetic() & !BITS | cpu.file[usize::from(RAX)] >> 8 & BITS;
        cpu.flags.set_arithmetic(value);
    }

    /// LAHF.
    fn flags_to_ah[](cpu, _, _) {
        let value = cpu.flags.get() & 0xff;
        cpu.put::<8>(RAX | crate::cpu::state::slot::HIGH_BYTE, value);
    }
}

/// Has no effect: NOP, ENDBR64, prefetches.
pub(crate) fn nothing<B: Bus>(_: &mut Cpu, _: &mut B, _: &Op<B>) -> Outcome {
    Ok(Flow::Next)
}

/// One element of a string instruction.
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
    let step = if cpu.flags.system & flags::BACKWARD == 0 { bytes } else { bytes.wrapping_neg() };
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

/// A string instruction. A repeated one goes on until its count is zero; each element is complete before the next, so that a fault or a
/// stop leaves registers from which it resumes.
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
