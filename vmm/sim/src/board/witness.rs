//! Looks at CPUs while they execute, which change nothing of what they do.
//!
//! A [`Witness`] is told of each instruction, or is asked before those that it has chosen by their number in a CPU's life. It may have
//! the CPU stand still there, which is a [`What::Stopped`](super::What) to the driver. Unless it does, everything goes on in the same
//! order and at the same times as without it.

use crate::cpu::bus::Access;
use crate::cpu::event::Event;
use crate::cpu::state::{Cpu, General};

use super::{Board, Memory};

/// One instruction that a CPU has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// [`Cpu::number`] of the CPU.
    pub number: u32,
    /// Address of the instruction.
    pub rip: u64,
    /// The stack pointer before it.
    pub rsp: u64,
    /// Instructions that the CPU had completed in its life before it.
    pub instructions: u64,
    /// When it began, the time left out in which it waited for lines before it could begin.
    pub at_ps: u64,
    /// When it was complete.
    pub ended_ps: u64,
    /// When the CPU last entered its guest.
    pub entered_ps: u64,
    /// The strongest access to a line that more than one core has used, outside of the page that the stack pointer points to.
    pub shared: Option<Access>,
    /// It read the clock.
    pub clock: bool,
    /// It left the guest.
    pub exits: bool,
}

/// An observer of the CPUs of a board.
pub trait Witness {
    /// Whether it is to be told of each instruction at this time.
    fn wants_steps(&self, at_ps: u64) -> bool;

    /// A CPU has completed an instruction.
    fn step(&mut self, step: &Step);

    /// `cpu` stands before the instruction that it was to be asked at ([`Cpu::ask_at`]), or before a later one where a loop was done in
    /// one go; a new CPU is before its first one. `Some`: it is to stand still, and the driver is told this.
    fn stands(&mut self, cpu: &mut Cpu, at_ps: u64) -> Option<u64>;

    /// Whether it has seen enough: CPUs execute faster unwatched.
    fn is_done(&self) -> bool {
        false
    }
}

/// Effects of the current instruction, as far as others may notice.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Noted {
    pub(super) shared: Option<Access>,
    pub(super) clock: bool,
    /// Address of the page of the stack, whose lines do not count.
    pub(super) stack: u64,
}

/// Bytes of a page.
const PAGE: u64 = 4096;

impl Noted {
    /// An access to a line that more than one core has used.
    pub(super) fn note(&mut self, address: u64, access: Access) {
        if address & !(PAGE - 1) != self.stack {
            self.shared = self.shared.max(Some(access));
        }
    }
}

impl<M: Memory> Board<M> {
    /// Has `witness` look at all CPUs.
    pub fn set_witness(&mut self, witness: Box<dyn Witness>) {
        self.witness = Some(witness);
    }

    /// Work that all CPUs have done in loops that stand for it, as the time that it takes a core with one busy thread.
    #[must_use]
    pub fn worked_ps(&self) -> u64 {
        self.worked_ps
    }

    /// Executes instructions until the CPU has completed `limit` of them in its life, or something stops it, with all that looks at
    /// it: a count of where time goes, a witness.
    pub(super) fn run_watched(&mut self, slot: u32, cpu: &mut Cpu, limit: u64) -> Event {
        loop {
            let (rip, rsp, before) = (cpu.rip(), cpu.general(General::Rsp), cpu.instructions());
            let at_ps = self.fabric.time_ps(before);
            let mut next = limit;
            let mut told = false;
            self.witness.take_if(|witness| witness.is_done());
            if let Some(witness) = &mut self.witness {
                if before >= cpu.asked_at() {
                    self.stopped = witness.stands(cpu, at_ps);
                    if self.stopped.is_some() {
                        return Event::Limit;
                    }
                }
                told = witness.wants_steps(at_ps);
                if cpu.asked_at() > before {
                    next = next.min(cpu.asked_at());
                }
            }
            if told || self.spent.is_some() {
                next = next.min(before + 1);
            }
            self.fabric.noted = told.then_some(Noted { stack: rsp & !(PAGE - 1), ..Noted::default() });
            let event = cpu.run(&mut self.code, &mut self.fabric, next);
            let ended_ps = self.fabric.time_ps(cpu.instructions());
            self.spend(slot, rip, false, ended_ps);
            if let (Some(noted), Some(witness)) = (self.fabric.noted.take(), &mut self.witness)
                && cpu.instructions() > before
            {
                let exits = matches!(event, Event::Out { .. } | Event::Halt);
                let Noted { shared, clock, .. } = noted;
                let (number, entered_ps) = (cpu.number(), self.slots[slot as usize].entered_ps);
                let instructions = before;
                witness.step(&Step {
                    number,
                    rip,
                    rsp,
                    instructions,
                    at_ps,
                    ended_ps,
                    entered_ps,
                    shared,
                    clock,
                    exits,
                });
            }
            // An NMI ends it early.
            if event != Event::Limit || cpu.instructions() >= limit || cpu.instructions() < next {
                return event;
            }
        }
    }
}
