//! Jumps, calls, returns; and operations on the machine: time, fences, ports, and privileged ones.

use super::data::{advance, push_value};
use super::{Source, steps};
use crate::cpu::bus::{Bus, Event, Fault, Refused};
use crate::cpu::flags::{CARRY, INTERRUPTS};
use crate::cpu::op::{Flow, Left, Op, Outcome};
use crate::cpu::state::{Cpu, NMI_HANDLED, Out, RAX, RBX, RCX, RDX, RSI, RSP, Table, slot};

/// A branch to [`Op::immediate`] that is taken.
#[inline(always)]
fn taken<B: Bus>(cpu: &mut Cpu, op: &Op<B>) -> Outcome {
    cpu.rip = op.immediate as u64;
    Ok(Flow::Jump)
}

/// Jcc. The next operation, if there is one, begins another block.
pub(crate) fn jump_if<B: Bus, const CODE: u8>(cpu: &mut Cpu, _: &mut B, op: &Op<B>) -> Outcome {
    if cpu.flags.holds(CODE) { taken(cpu, op) } else { Ok(Flow::Next) }
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

/// JMP to where an operand says, which may be a known place.
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

const TIME_STAMP_DISABLE: u64 = 1 << 2;

const MSR_EFER: u32 = 0xc000_0080;
const MSR_FS_BASE: u32 = 0xc000_0100;
const MSR_GS_BASE: u32 = 0xc000_0101;
const MSR_KERNEL_GS_BASE: u32 = 0xc000_0102;

impl Cpu {
    /// Raises #GP(0) outside of ring 0.
    fn privileged(&mut self) -> Result<(), Left> {
        if self.ring == 0 { Ok(()) } else { Err(self.leave(Out::Fault(Fault::protection(0)))) }
    }

    fn done(&mut self, event: Event) -> Outcome {
        Err(self.leave(Out::Done(event)))
    }

    /// A model-specific register, if it is kept here.
    fn kept_msr(&mut self, register: u32) -> Option<&mut u64> {
        match register {
            MSR_EFER => Some(&mut self.system.efer),
            MSR_FS_BASE => Some(&mut self.file[usize::from(slot::FS_BASE)]),
            MSR_GS_BASE => Some(&mut self.file[usize::from(slot::GS_BASE)]),
            MSR_KERNEL_GS_BASE => Some(&mut self.system.kernel_gs_base),
            _ => None,
        }
    }

    fn control(&mut self, number: u8) -> &mut u64 {
        match number {
            0 => &mut self.system.cr0,
            2 => &mut self.system.cr2,
            3 => &mut self.system.cr3,
            _ => &mut self.system.cr4,
        }
    }
}

steps! {
    /// PAUSE.
    fn pause[](cpu, bus, op) {
        if bus.pause(cpu.before(op)).is_err() {
            return cpu.done(Event::Stopped);
        }
    }

    /// LFENCE; SFENCE and MFENCE, if it `DRAINS`.
    fn fence[const DRAINS: bool](cpu, bus, op) {
        bus.fence(cpu.before(op), DRAINS).map_err(|Refused| cpu.leave(Out::Stopped))?;
    }

    /// RDTSC, and RDTSCP if `PROCESSOR`: whose TSC_AUX is the CPU's number.
    fn clock[const PROCESSOR: bool](cpu, bus, op) {
        if cpu.system.cr4 & TIME_STAMP_DISABLE != 0 {
            cpu.privileged()?;
        }
        let clock = bus.clock(cpu.before(op));
        cpu.put::<32>(RAX, clock);
        cpu.put::<32>(RDX, clock >> 32);
        if PROCESSOR {
            cpu.put::<32>(RCX, cpu.id.into());
        }
    }

    /// RDRAND and RDSEED: there is always a number, which CF says.
    fn random[const W: u32](cpu, bus, op) {
        let number = bus.random(cpu.before(op)).map_err(|Refused| cpu.leave(Out::Stopped))?;
        cpu.put::<W>(op.first, number);
        cpu.flags.set_arithmetic(CARRY);
    }

    /// CLFLUSH, CLFLUSHOPT, CLWB: a load, as it is checked. The line stays where it is, which changes no value.
    fn flush_line[](cpu, bus, op) {
        let address = cpu.effective(&op.address);
        cpu.load::<B, 8>(bus, op, address)?;
    }

    /// CPUID: zeros, whatever it is asked.
    fn cpuid[](cpu, _, _) {
        [RAX, RBX, RCX, RDX].into_iter().for_each(|register| cpu.put::<32>(register, 0));
    }
}

/// Whether the task's bitmap opens `bytes` ports from `port` on (Intel SDM vol. 1, 19.5.2).
fn bitmap_opens<B: Bus>(cpu: &mut Cpu, bus: &mut B, port: u16, bytes: u8) -> Result<bool, Left> {
    const BASE_FIELD: u64 = 100;
    let task = cpu.system.task;
    let base = cpu.system_word(bus, task.base.wrapping_add(BASE_FIELD)).map_err(|out| cpu.leave(out))? >> 16;
    let first = u64::from(base) + u64::from(port) / 8;
    if first + 1 > u64::from(task.limit) {
        return Ok(false);
    }
    let (word, shift) = (first & !3, (first & 3) * 8);
    let bits = cpu.system_long(bus, task.base.wrapping_add(word)).map_err(|out| cpu.leave(out))?;
    let closed = bits >> (shift + u64::from(port) % 8) & ((1 << bytes) - 1);
    Ok(closed == 0)
}

fn check_port<B: Bus>(cpu: &mut Cpu, bus: &mut B, port: u16, bytes: u8) -> Result<(), Left> {
    if cpu.may_do_io() || bitmap_opens(cpu, bus, port, bytes)? {
        return Ok(());
    }
    Err(cpu.leave(Out::Fault(Fault::protection(0))))
}

/// OUT to the port in `S`.
pub(crate) fn out<B: Bus, S: Source, const W: u32>(cpu: &mut Cpu, bus: &mut B, op: &Op<B>) -> Outcome {
    let (port, bytes) = (S::read::<B, 16>(cpu, bus, op)? as u16, (W / 8) as u8);
    check_port(cpu, bus, port, bytes)?;
    let value = cpu.get::<W>(RAX) as u32;
    cpu.done(Event::Out { port, bytes, value })
}

/// IN from the port in `S`.
pub(crate) fn input<B: Bus, S: Source, const W: u32>(cpu: &mut Cpu, bus: &mut B, op: &Op<B>) -> Outcome {
    let (port, bytes) = (S::read::<B, 16>(cpu, bus, op)? as u16, (W / 8) as u8);
    check_port(cpu, bus, port, bytes)?;
    cpu.awaits = bytes;
    cpu.done(Event::In { port, bytes })
}

/// OUTS, and REP OUTS if `REPEAT`: an event for each element.
pub(crate) fn out_string<B: Bus, const W: u32, const REPEAT: bool>(
    cpu: &mut Cpu,
    bus: &mut B,
    op: &Op<B>,
) -> Outcome {
    if REPEAT && cpu.get::<64>(RCX) == 0 {
        return Ok(Flow::Next);
    }
    let (port, bytes) = (cpu.get::<16>(RDX) as u16, (W / 8) as u8);
    check_port(cpu, bus, port, bytes)?;
    let value = cpu.load::<B, W>(bus, op, cpu.get::<64>(RSI))? as u32;
    advance::<W>(cpu, RSI);
    let event = Event::Out { port, bytes, value };
    if REPEAT {
        let left = cpu.get::<64>(RCX) - 1;
        cpu.put::<64>(RCX, left);
        if left != 0 {
            return Err(cpu.leave(Out::Before(event)));
        }
    }
    cpu.done(event)
}

/// HLT.
pub(crate) fn halt<B: Bus>(cpu: &mut Cpu, _: &mut B, _: &Op<B>) -> Outcome {
    cpu.privileged()?;
    cpu.done(Event::Halt)
}

steps! {
    /// CLI, and STI if `ON`. No maskable interrupt ever comes: after STI it would have to leave the next instruction alone.
    fn change_interrupts[const ON: bool](cpu, _, _) {
        // RFLAGS.IOPL may close interrupts to this ring.
        if !cpu.may_do_io() {
            return Err(cpu.leave(Out::Fault(Fault::protection(0))));
        }
        cpu.flags.system = cpu.flags.system & !INTERRUPTS | if ON { INTERRUPTS } else { 0 };
    }
}

/// VMCALL, VMMCALL: arguments and answer are in registers.
pub(crate) fn hypercall<B: Bus>(cpu: &mut Cpu, _: &mut B, _: &Op<B>) -> Outcome {
    cpu.done(Event::Hypercall)
}

steps! {
    /// RDMSR.
    fn read_msr[](cpu, _, _) {
        cpu.privileged()?;
        let register = cpu.get::<32>(RCX) as u32;
        let Some(value) = cpu.kept_msr(register).copied() else {
            cpu.awaits = 8;
            return cpu.done(Event::ReadMsr { register });
        };
        cpu.put::<32>(RAX, value);
        cpu.put::<32>(RDX, value >> 32);
    }

    /// WRMSR.
    fn write_msr[](cpu, _, _) {
        cpu.privileged()?;
        let register = cpu.get::<32>(RCX) as u32;
        let value = cpu.get::<32>(RDX) << 32 | cpu.get::<32>(RAX);
        let Some(kept) = cpu.kept_msr(register) else {
            return cpu.done(Event::WriteMsr { register, value });
        };
        *kept = value;
    }

    /// MOV from a control register, whose number is [`Op::second`].
    fn read_control[](cpu, _, op) {
        cpu.privileged()?;
        let value = *cpu.control(op.second);
        cpu.put::<64>(op.first, value);
    }

    /// MOV to a control register, whose number is [`Op::first`]. Translations go: it ends its block.
    fn write_control[](cpu, _, op) {
        cpu.privileged()?;
        let value = cpu.get::<64>(op.second);
        *cpu.control(op.first) = value;
        if op.first != 2 {
            cpu.invalidate_all();
        }
    }

    /// INVLPG, which ends its block, too.
    fn invalidate_page[](cpu, _, op) {
        cpu.privileged()?;
        let address = cpu.effective(&op.address);
        cpu.invalidate_page(address);
    }

    /// LGDT, and LIDT if `INTERRUPTS_TABLE`.
    fn load_table[const INTERRUPTS_TABLE: bool](cpu, bus, op) {
        cpu.privileged()?;
        let address = cpu.effective(&op.address);
        let limit = cpu.load::<B, 16>(bus, op, address)? as u32;
        let base = cpu.load::<B, 64>(bus, op, address.wrapping_add(2))?;
        let table = Table { base, limit };
        if INTERRUPTS_TABLE {
            cpu.system.idt = table;
        } else {
            cpu.system.gdt = table;
        }
    }

    /// LTR of a register.
    fn load_task[](cpu, bus, op) {
        cpu.privileged()?;
        let selector = cpu.get::<16>(op.first) as u16;
        let at = cpu.system.gdt.base.wrapping_add(u64::from(selector & !7));
        let low = cpu.system_long(bus, at).map_err(|out| cpu.leave(out))?;
        let top = cpu.system_word(bus, at.wrapping_add(8)).map_err(|out| cpu.leave(out))?;
        let base = low >> 16 & 0xff_ffff | low >> 32 & 0xff00_0000 | u64::from(top) << 32;
        let limit = (low & 0xffff | low >> 32 & 0xf_0000) as u32;
        cpu.system.task = Table { base, limit };
        cpu.system.task_selector = selector;
    }

    /// SWAPGS.
    fn swap_gs[](cpu, _, _) {
        cpu.privileged()?;
        std::mem::swap(&mut cpu.file[usize::from(slot::GS_BASE)], &mut cpu.system.kernel_gs_base);
    }

    /// MOV from a segment register, whose number is [`Op::second`].
    fn read_segment[const W: u32](cpu, _, op) {
        let selector = cpu.system.selectors[usize::from(op.second) % 6];
        cpu.put::<W>(op.first, selector.into());
    }

    /// MOV to a segment register, whose number is [`Op::first`]: all segments are flat, so that FS and GS get a base of zero.
    fn write_segment[](cpu, _, op) {
        const FS: u8 = 4;
        const GS: u8 = 5;
        cpu.system.selectors[usize::from(op.first) % 6] = cpu.get::<16>(op.second) as u16;
        match op.first {
            FS => cpu.file[usize::from(slot::FS_BASE)] = 0,
            GS => cpu.file[usize::from(slot::GS_BASE)] = 0,
            _ => {}
        }
    }
}

/// INT3, and INT n.
pub(crate) fn interrupt<B: Bus>(cpu: &mut Cpu, _: &mut B, op: &Op<B>) -> Outcome {
    Err(cpu.leave(Out::Trap { vector: op.immediate as u8, length: op.length }))
}

/// UD2, and what the instruction set leaves undefined.
pub(crate) fn undefined<B: Bus>(cpu: &mut Cpu, _: &mut B, _: &Op<B>) -> Outcome {
    Err(cpu.leave(Out::Fault(Fault::UNDEFINED)))
}

/// An instruction that this interpreter lacks.
pub(crate) fn not_covered<B: Bus>(cpu: &mut Cpu, _: &mut B, _: &Op<B>) -> Outcome {
    Err(cpu.leave(Out::Before(Event::NotCovered)))
}

/// IRETQ, to the same ring or from ring 0 to ring 3.
pub(crate) fn interrupt_return<B: Bus>(cpu: &mut Cpu, bus: &mut B, op: &Op<B>) -> Outcome {
    let top = cpu.get::<64>(RSP);
    let mut frame = [0; 5];
    for (value, at) in frame.iter_mut().zip((0..).step_by(8)) {
        *value = cpu.load::<B, 64>(bus, op, top.wrapping_add(at))?;
    }
    let [rip, code, rflags, rsp, stack] = frame;
    let ring = (code & 3) as u8;
    if ring < cpu.ring || ring & 3 == 1 || ring & 3 == 2 || code & !3 == 0 {
        return Err(cpu.leave(Out::Fault(Fault::protection(code as u32 & !3 & 0xffff))));
    }
    cpu.set_flags_from_code(rflags);
    cpu.system.selectors[crate::cpu::state::CS] = code as u16;
    cpu.system.selectors[crate::cpu::state::SS] = stack as u16;
    cpu.ring = ring;
    cpu.rip = rip;
    cpu.put::<64>(RSP, rsp);
    cpu.nmi &= !NMI_HANDLED;
    Ok(Flow::Jump)
}
