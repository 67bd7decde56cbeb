//! Looks at CPUs while they execute, which change nothing of what they do.
//!
//! A [`Witness`] is told of each instruction, or is asked before those that it has chosen by their number in a CPU's life. It may have
//! the CPU stand still there, which is a [`What::Stopped`](super::What) to the driver. Unless it does, everything goes on in the same
//! order and at the same times as without it.
//!
//! Likewise for a count of all time of CPUs, by the instruction at which each CPU was. Each slot has a time up to which its CPU's time
//! has been counted. Whenever the CPU comes from one instruction to the next, or out of what it waited for, the time since then counts
//! for the instruction that it comes from: so no time is lost, or counted twice.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use crate::cpu::bus::{Access, Event};
use crate::cpu::state::{Cpu, General};

use super::{Board, Memory, SlotState};

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
    fn wants_steps(&self, _at_ps: u64) -> bool {
        false
    }

    /// A CPU has completed an instruction.
    fn step(&mut self, _step: &Step) {}

    /// `cpu` stands before the instruction that it was to be asked at ([`Cpu::asked_at`]), or before a later one where a loop was done in
    /// one go; a new CPU is before its first one. `Some`: it is to stand still, and the driver is told this.
    fn stands(&mut self, cpu: &mut Cpu, at_ps: u64) -> Option<u64>;

    /// Whether it has seen enough: CPUs execute faster unwatched.
    fn is_done(&self) -> bool {
        false
    }
}

/// A witness that its owner still reads after the board has it.
pub type Watching = Rc<RefCell<dyn Witness>>;

const PAGE: u64 = 4096;

impl Step {
    /// Notes an access to a line that more than one core has used. Lines of the stack's page do not count.
    pub(super) fn note(&mut self, address: u64, access: Access) {
        if address / PAGE != self.rsp / PAGE {
            self.shared = self.shared.max(Some(access));
        }
    }
}

/// Most things that time is counted for by themselves. A guest decides where its code is and what its marks are: what comes later
/// counts as spent at address 0, with mark 0.
const MOST_SPENT_ON: usize = 1 << 17;

/// Purpose of a CPU's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpentOn {
    /// The instruction: of a parked spin loop the one behind its PAUSE, of work the first one of its loop.
    pub rip: u64,
    /// Mark that the function given to [`Board::count_time`] makes of the word at the address given to [`Board::count_time_of`], after
    /// the instruction.
    pub mark: u32,
    /// The CPU stood still: the driver of the board took the time.
    pub still: bool,
}

/// The time that slots spent, and on what.
#[derive(Debug)]
pub(super) struct Spent {
    slots: Vec<Counted>,
    by: HashMap<SpentOn, u64>,
    /// Makes a mark of what lies there.
    marked: fn(u32) -> u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    /// Its CPU's time until then is counted, or was not to be.
    until_ps: u64,
    /// Address of the mark, while the CPU's time is to be counted.
    mark_at: Option<u64>,
}

impl<M: Memory> Board<M> {
    /// Executes instructions until the CPU has completed `limit` of them in its life, or something stops it, with all that looks at
    /// it: a count of where time goes, a witness.
    pub(super) fn run_watched(&mut self, slot: u32, cpu: &mut Cpu, limit: u64) -> Event {
        loop {
            let (rip, rsp, before) = (cpu.rip, cpu.general(General::Rsp), cpu.instructions);
            let at_ps = self.fabric.time_ps(before);
            let mut next = limit;
            let mut told = false;
            self.witness.take_if(|witness| witness.borrow().is_done());
            if let Some(witness) = &self.witness {
                if before >= cpu.asked_at {
                    self.stopped = witness.borrow_mut().stands(cpu, at_ps);
                    if self.stopped.is_some() {
                        return Event::Limit;
                    }
                }
                told = witness.borrow().wants_steps(at_ps);
                if cpu.asked_at > before {
                    next = next.min(cpu.asked_at);
                }
            }
            if told || self.spent.is_some() {
                next = next.min(before + 1);
            }
            self.fabric.step = told.then(|| Step {
                number: cpu.number,
                rip,
                rsp,
                instructions: before,
                at_ps,
                ended_ps: at_ps,
                entered_ps: self.slots[slot as usize].entered_ps,
                shared: None,
                clock: false,
                exits: false,
            });
            let event = cpu.run(&mut self.code, &mut self.fabric, next);
            let ended_ps = self.fabric.time_ps(cpu.instructions);
            self.spend(slot, rip, false, ended_ps);
            if let (Some(step), Some(witness)) = (self.fabric.step.take(), &self.witness)
                && cpu.instructions > before
            {
                let exits = matches!(event, Event::Out { .. } | Event::Halt);
                witness.borrow_mut().step(&Step { ended_ps, exits, ..step });
            }
            // An NMI ends it early.
            if event != Event::Limit || cpu.instructions >= limit || cpu.instructions < next {
                return event;
            }
        }
    }

    /// From now on the board can say where time goes, of the CPUs that [`Self::count_time_of`] is called for. `marked` has few
    /// results for all that a guest may write.
    pub fn count_time(&mut self, marked: fn(u32) -> u32) {
        let slots = vec![Counted::default(); self.slots.len()];
        self.spent.get_or_insert_with(|| Box::new(Spent { slots, by: HashMap::new(), marked }));
    }

    /// From now on the time of the CPU in the slot counts, with the 32 bits at the physical address `mark_at` as its mark; `None`:
    /// it does not. Does nothing before [`Self::count_time`].
    pub fn count_time_of(&mut self, slot: u32, mark_at: Option<u64>) {
        let now_ps = self.now_ps;
        self.spend_here(slot, self.slots[slot as usize].state == SlotState::Still, now_ps);
        if let Some(spent) = &mut self.spent {
            let counted = &mut spent.slots[slot as usize];
            *counted = Counted { until_ps: counted.until_ps.max(now_ps), mark_at };
        }
    }

    /// [`Self::count_time_of`] for a CPU that was put into its slot just now, and was on its way there since `since_ps`.
    pub fn count_time_since(&mut self, slot: u32, mark_at: u64, since_ps: u64) {
        if let Some(spent) = &mut self.spent {
            spent.slots[slot as usize] = Counted { until_ps: since_ps, mark_at: Some(mark_at) };
            self.spend_here(slot, true, self.slots[slot as usize].at_ps);
        }
    }

    /// Counted time by purpose, in picoseconds. Empty without [`Self::count_time`].
    pub fn spent(&self) -> impl Iterator<Item = (SpentOn, u64)> + '_ {
        self.spent.iter().flat_map(|spent| spent.by.iter().map(|(on, ps)| (*on, *ps)))
    }

    /// The time of a slot's CPU, if there is one, up to `until_ps` went into the instruction at which it is.
    pub(super) fn spend_here(&mut self, slot: u32, still: bool, until_ps: u64) {
        if let Some(rip) = self.slots[slot as usize].cpu.as_ref().map(|cpu| cpu.rip) {
            self.spend(slot, rip, still, until_ps);
        }
    }

    /// The time of a slot's CPU up to `until_ps` went into the instruction at `rip`.
    pub(super) fn spend(&mut self, slot: u32, rip: u64, still: bool, until_ps: u64) {
        let Some(spent) = &mut self.spent else { return };
        let counted = &mut spent.slots[slot as usize];
        let time_ps = until_ps.saturating_sub(counted.until_ps);
        counted.until_ps = counted.until_ps.max(until_ps);
        if let (Some(mark_at), 1..) = (counted.mark_at, time_ps) {
            let mark = (spent.marked)(self.fabric.memory.load(mark_at, size_of::<u32>()) as u32);
            let mut on = SpentOn { rip, mark, still };
            if spent.by.len() >= MOST_SPENT_ON && !spent.by.contains_key(&on) {
                (on.rip, on.mark) = (0, 0);
            }
            *spent.by.entry(on).or_default() += time_ps;
        }
    }
}
