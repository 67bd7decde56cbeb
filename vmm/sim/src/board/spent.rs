//! All time of CPUs, by the instruction at which each CPU was.
//!
//! Each slot has a time up to which its CPU's time has been counted. Whenever the CPU comes from one instruction to the next, or out of
//! what it waited for, the time since then counts for the instruction that it comes from: so no time is lost, or counted twice.
//! Counting changes nothing of what is counted.

use std::collections::HashMap;

use super::slot_state::SlotState;
use super::{Board, Memory};

/// Most things that time is counted for by themselves. A guest decides where its code is and what its marks are: what comes later
/// counts as spent at address 0, with mark 0.
const MOST: usize = 1 << 17;

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

impl Spent {
    fn new(slots: usize, marked: fn(u32) -> u32) -> Self {
        Self { slots: vec![Counted::default(); slots], by: HashMap::new(), marked }
    }
}

impl<M: Memory> Board<M> {
    /// From now on the board can say where time goes, of the CPUs that [`Self::count_time_of`] is called for. `marked` has few
    /// results for all that a guest may write.
    pub fn count_time(&mut self, marked: fn(u32) -> u32) {
        self.spent.get_or_insert_with(|| Box::new(Spent::new(self.slots.len(), marked)));
    }

    /// From now on the time of the CPU in the slot counts, with the 32 bits at the physical address `mark_at` as its mark; `None`:
    /// it does not. Does nothing before [`Self::count_time`].
    pub fn count_time_of(&mut self, slot: u32, mark_at: Option<u64>) {
        let place = &self.slots[slot as usize];
        if let Some(rip) = place.cpu.as_ref().map(|cpu| cpu.rip()) {
            self.spend(slot, rip, place.state == SlotState::Still, self.now_ps);
        }
        let now_ps = self.now_ps;
        if let Some(spent) = &mut self.spent {
            let counted = &mut spent.slots[slot as usize];
            *counted = Counted { until_ps: counted.until_ps.max(now_ps), mark_at };
        }
    }

    /// [`Self::count_time_of`] for a CPU that was put into its slot just now, and was on its way there since `since_ps`.
    pub fn count_time_since(&mut self, slot: u32, mark_at: u64, since_ps: u64) {
        let place = &self.slots[slot as usize];
        let (at_ps, rip) = (place.at_ps, place.cpu.as_ref().map(|cpu| cpu.rip()));
        if let (Some(spent), Some(rip)) = (&mut self.spent, rip) {
            spent.slots[slot as usize] = Counted { until_ps: since_ps, mark_at: Some(mark_at) };
            self.spend(slot, rip, true, at_ps);
        }
    }

    /// Counted time by purpose, in picoseconds. Empty without [`Self::count_time`].
    pub fn spent(&self) -> impl Iterator<Item = (SpentOn, u64)> + '_ {
        self.spent.iter().flat_map(|spent| spent.by.iter().map(|(on, ps)| (*on, *ps)))
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
            if spent.by.len() >= MOST && !spent.by.contains_key(&on) {
                (on.rip, on.mark) = (0, 0);
            }
            *spent.by.entry(on).or_default() += time_ps;
        }
    }
}
