//! A CPU runs: block after block, until the driver has something to do.

use crate::cpu::bus::{Access, Bus, Event, Fault};
use crate::cpu::code::{Block, Code};
use crate::cpu::faults::Cause;
use crate::cpu::op::{Effect, Flow, Left};
use crate::cpu::state::{Cpu, NMI_HANDLED, NMI_WAITS, Out, Since};
use crate::cpu::tlb::PAGE;

/// Exceptions in a row, with no instruction between them, after which they count as instructions: of a guest that means well there
/// are a few at most, and one whose handler causes the next exception would never come to its limit.
const MOST_IN_A_ROW: u64 = 16;

/// A non-maskable interrupt, on its way as exceptions are.
const NMI: Fault = Fault { vector: 2, error: None };

impl Cpu {
    /// Executes instructions until it has completed `limit` of them in its life, or the driver has something to do.
    ///
    /// A stop for the limit or for the bus loses nothing: the CPU goes on as if it had not stopped, with the same effect as in one
    /// go.
    pub fn run<B: Bus>(&mut self, code: &mut Code<B>, bus: &mut B, limit: u64) -> Event {
        self.learn(code);
        if self.nmi == NMI_WAITS {
            if let Err(out) = self.deliver(bus, NMI, Cause::Hardware, self.rip) {
                return out.of_delivery(NMI);
            }
            self.nmi = NMI_HANDLED;
        }
        // The block that it comes from, by translations that it still has.
        let mut from = None;
        while self.instructions < limit && self.nmi != NMI_WAITS {
            let block = match from {
                Some(last) => code.find_next(last, self),
                None => code.find(self),
            };
            let translations = (self.ring, self.tlb.changes);
            let ran = match block {
                Some(block) => {
                    let ran = self.run_block(block, bus, limit);
                    from = Some(block).filter(|_| translations == (self.ring, self.tlb.changes));
                    ran
                }
                None => {
                    from = None;
                    self.prepare(code, bus)
                }
            };
            if ran.is_err() {
                from = None;
                if let Some(event) = self.resolve(code, bus) {
                    return event;
                }
            }
        }
        Event::Limit
    }

    /// Executes instructions as [`Self::run`] does, without a look for interrupts, and tells of each that it completes.
    pub(crate) fn run_telling<B: Bus>(
        &mut self,
        code: &mut Code<B>,
        bus: &mut B,
        limit: u64,
        tell: &mut impl FnMut(&Effect),
    ) -> Event {
        self.learn(code);
        while self.instructions < limit {
            let before = self.instructions;
            let ran = match code.find(self) {
                Some(block) => {
                    let ran = self.run_block(block, bus, limit);
                    // A block is entered at its first operation only, and left for good.
                    // A long string instruction counts as several.
                    let completed = (self.instructions - before) as usize;
                    block.effects.iter().take(completed).for_each(&mut *tell);
                    ran
                }
                None => self.prepare(code, bus),
            };
            if ran.is_err()
                && let Some(event) = self.resolve(code, bus)
            {
                return event;
            }
        }
        Event::Limit
    }

    /// Pages that have become code since it ran may be written only by asking, and those that have been forgotten are found anew.
    pub(crate) fn learn<B: Bus>(&mut self, code: &Code<B>) {
        if self.knows_code != code.generation {
            if self.knows_code < code.first_generation {
                self.tlb.drop_code();
            }
            self.tlb.drop_writes();
            self.knows_code = code.generation;
        }
    }

    /// Executes a block, or as much of it as the limit allows.
    #[inline(always)]
    fn run_block<B: Bus>(&mut self, block: &Block<B>, bus: &mut B, limit: u64) -> Result<(), Left> {
        let most = limit - self.instructions;
        if block.watched {
            return Err(self.leave(Out::Before(Event::Reached)));
        }
        let ops = match block.ops.get(..most as usize) {
            Some(first) => first,
            None => &block.ops[..],
        };
        for op in ops {
            match (op.run)(self, bus, op) {
                Ok(Flow::Next) => {}
                Ok(Flow::Jump) => {
                    self.instructions += u64::from(op.position) + 1;
                    return Ok(());
                }
                Err(Left) => {
                    self.rip = block.start + u64::from(op.offset);
                    self.instructions += u64::from(op.position);
                    if let Out::Done(_) = self.out {
                        self.rip = self.rip.wrapping_add(u64::from(op.length));
                        self.instructions += 1;
                    }
                    return Err(Left);
                }
            }
        }
        self.instructions += ops.len() as u64;
        self.rip = match block.ops.get(ops.len()) {
            Some(next) => block.start + u64::from(next.offset),
            None => block.end,
        };
        Ok(())
    }

    /// Deals with what an operation has left: `None` if the CPU goes on.
    #[cold]
    fn resolve<B: Bus>(&mut self, code: &mut Code<B>, bus: &mut B) -> Option<Event> {
        match std::mem::take(&mut self.out) {
            Out::Nothing => None,
            Out::Stopped => Some(Event::Stopped),
            Out::Done(event) | Out::Before(event) => Some(event),
            Out::Fault(fault) => {
                self.delivered(fault, |cpu| cpu.deliver(bus, fault, Cause::Hardware, cpu.rip))
            }
            Out::Trap { vector, length } => self.trap(bus, vector, length),
            Out::Fill { address, access } => self.fill(code, bus, address, access),
        }
    }

    /// INT3 or INT n, which it stands before.
    fn trap<B: Bus>(&mut self, bus: &mut B, vector: u8, length: u8) -> Option<Event> {
        let resume = self.rip.wrapping_add(u64::from(length));
        let fault = Fault { vector, error: None };
        self.delivered(fault, |cpu| match cpu.deliver(bus, fault, Cause::Software, resume) {
            // A closed gate is an exception of its own, of the same instruction.
            Err(Out::Fault(closed)) if closed.vector == 13 => {
                cpu.deliver(bus, closed, Cause::Hardware, cpu.rip)
            }
            other => other.inspect(|()| cpu.instructions += 1),
        })
    }

    /// An exception of the instruction that it stands before is delivered, and counted.
    fn delivered(
        &mut self,
        first: Fault,
        deliver: impl FnOnce(&mut Self) -> Result<(), Out>,
    ) -> Option<Event> {
        if let Err(out) = deliver(self) {
            return Some(out.of_delivery(first));
        }
        let Since { instructions, count } = self.excepted;
        let count = if instructions == self.instructions { count + 1 } else { 1 };
        if count > MOST_IN_A_ROW {
            self.instructions += 1;
        }
        self.excepted = Since { instructions: self.instructions, count: count.min(MOST_IN_A_ROW) };
        None
    }

    /// Finds a translation that was not cached.
    fn fill<B: Bus>(
        &mut self,
        code: &mut Code<B>,
        bus: &mut B,
        address: u64,
        access: Access,
    ) -> Option<Event> {
        match self.walk(bus, address, Some(access), self.ring) {
            Err(out) => {
                self.out = out;
                self.resolve(code, bus)
            }
            Ok(found) => {
                let physical = found.frame | address & (PAGE - 1);
                let is_code = access.writes() && code.store_to(physical);
                let writable = found.writable && (is_code || !code.holds(found.frame));
                self.tlb.insert(self.ring, address, found.frame, writable, found.inside);
                if !is_code {
                    return None;
                }
                // One instruction may store to a page that holds decoded instructions.
                let event = self.run_telling(code, bus, self.instructions + 1, &mut |_| ());
                self.tlb.drop_writes();
                Some(event).filter(|event| *event != Event::Limit)
            }
        }
    }
}
