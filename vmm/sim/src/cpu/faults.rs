//! Exceptions and interrupts, on their way through the IDT (Intel SDM vol. 3, 6.14).

use crate::cpu::bus::{Access, Bus, Event, Fault, LINE, Refused};
use crate::cpu::flags::{INTERRUPTS, NESTED, RESUME, TRAP};
use crate::cpu::state::{CS, Cpu, Out, RSP, SS};
use crate::cpu::tlb::PAGE;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// INT3 or INT n: the gate must be open to its ring.
    Software,
    Hardware,
}

/// A 64-bit interrupt or trap gate.
struct Gate {
    handler: u64,
    selector: u16,
    stack: u32,
    level: u8,
    /// Interrupts stay on.
    is_trap: bool,
}

impl Out {
    /// The event that follows if `first` could not be delivered for this reason.
    pub(crate) fn of_delivery(self, first: Fault) -> Event {
        if let Self::Fault(second) = self { Event::ShutDown { first, second } } else { Event::Stopped }
    }
}

impl Cpu {
    /// Place of 4 or 8 bytes that cross no line, read by the CPU itself with the rights of ring 0.
    fn system_place<B: Bus>(&mut self, bus: &mut B, address: u64, access: Access) -> Result<u64, Out> {
        let writes = access.writes();
        let cached =
            if writes { self.tlb.find::<true>(0, address) } else { self.tlb.find::<false>(0, address) };
        let physical = match cached {
            Some(physical) => physical,
            None => {
                let found = self.walk(bus, address, Some(access), 0)?;
                if !writes {
                    self.tlb.insert(0, address, found.frame, false, found.inside);
                }
                found.frame | address & (PAGE - 1)
            }
        };
        let granted = bus.touch(self.instructions, physical & !(LINE - 1), access);
        granted.map(|()| physical).map_err(|Refused| Out::Stopped)
    }

    /// Four bytes of a table, read with the rights of ring 0.
    pub(crate) fn system_word<B: Bus>(&mut self, bus: &mut B, address: u64) -> Result<u32, Out> {
        let at = self.system_place(bus, address, Access::Read)?;
        Ok(bus.load(at, 4) as u32)
    }

    pub(crate) fn system_long<B: Bus>(&mut self, bus: &mut B, address: u64) -> Result<u64, Out> {
        let low = self.system_word(bus, address)?;
        let high = self.system_word(bus, address.wrapping_add(4))?;
        Ok(u64::from(high) << 32 | u64::from(low))
    }

    fn gate<B: Bus>(&mut self, bus: &mut B, vector: u8, cause: Cause) -> Result<Gate, Out> {
        const PRESENT: u64 = 1 << 47;
        let offset = u64::from(vector) * 16;
        // The error code of a bad gate is its place in the IDT.
        let bad = Out::Fault(Fault::protection(u32::from(vector) * 8 + 2));
        if offset + 15 > u64::from(self.system.idt.limit) {
            return Err(bad);
        }
        let low = self.system_long(bus, self.system.idt.base.wrapping_add(offset))?;
        let high = self.system_long(bus, self.system.idt.base.wrapping_add(offset + 8))?;
        let kind = low >> 40 & 0x1f;
        let level = (low >> 45 & 3) as u8;
        if !matches!(kind, 0xe | 0xf) || cause == Cause::Software && level < self.ring || low & PRESENT == 0 {
            return Err(bad);
        }
        let handler = low & 0xffff | low >> 32 & 0xffff_0000 | high << 32;
        let selector = (low >> 16) as u16;
        let descriptor =
            self.system_long(bus, self.system.gdt.base.wrapping_add(u64::from(selector & !7)))?;
        let level = (descriptor >> 45 & 3) as u8;
        Ok(Gate { handler, selector, stack: (low >> 32 & 7) as u32, level, is_trap: kind == 0xf })
    }

    /// The stack that the handler begins with.
    fn handler_stack<B: Bus>(&mut self, bus: &mut B, gate: &Gate) -> Result<u64, Out> {
        const RSP0: u64 = 4;
        const IST1: u64 = 36;
        let task = self.system.task.base;
        let top = if gate.stack != 0 {
            self.system_long(bus, task.wrapping_add(IST1 + u64::from(gate.stack - 1) * 8))?
        } else if gate.level != self.ring {
            self.system_long(bus, task.wrapping_add(RSP0 + u64::from(gate.level) * 8))?
        } else {
            self.get::<64>(RSP)
        };
        Ok(top & !15)
    }

    /// Delivers `fault` to its handler; the interrupted code goes on at `resume`. All that is read and written is asked for
    /// before anything changes. RF of the pushed flags, which only debuggers look at, stays zero.
    pub(crate) fn deliver<B: Bus>(
        &mut self,
        bus: &mut B,
        fault: Fault,
        cause: Cause,
        resume: u64,
    ) -> Result<(), Out> {
        let gate = self.gate(bus, fault.vector, cause)?;
        let mut top = self.handler_stack(bus, &gate)?;
        let rflags = self.flags.get() & !RESUME;
        let selectors = self.system.selectors;
        let frame = [u64::from(selectors[SS]), self.get::<64>(RSP), rflags, selectors[CS].into(), resume];
        let pushed = frame.into_iter().chain(fault.error.map(u64::from));
        let mut places = [(0, 0); 6];
        let mut count = 0;
        for (place, value) in places.iter_mut().zip(pushed) {
            top = top.wrapping_sub(8);
            // As a locked operation: five stores at once do not fit into what a bus is asked for one.
            *place = (self.system_place(bus, top, Access::Atomic)?, value);
            count += 1;
        }
        for (physical, value) in &places[..count] {
            bus.store(*physical, 8, *value);
        }
        if gate.level != self.ring {
            self.system.selectors[SS] = u16::from(gate.level);
        }
        self.system.selectors[CS] = gate.selector & !3 | u16::from(gate.level);
        self.ring = gate.level;
        self.put::<64>(RSP, top);
        self.rip = gate.handler;
        self.flags.system &= !(TRAP | NESTED | RESUME | if gate.is_trap { 0 } else { INTERRUPTS });
        Ok(())
    }
}
