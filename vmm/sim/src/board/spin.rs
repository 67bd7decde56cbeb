//! Spin loops whose lines no CPU writes: a CPU in one is parked, and costs nothing.
//!
//! A *quiet* round, from one PAUSE to the next, has only read lines that the core has. If the registers after it are those
//! before it, all further rounds are like it, until one of those lines is lost or written.
//!
//! Rounds that differ in registers which do nothing but count are alike too (`alike`): those are set when the CPU goes on.
//!
//! Rounds that read the clock leave other registers each time. Two trials from here, one with the registers of the PAUSE
//! before, that end alike show that the difference dies within a round: rounds depend on the clock alone. Then the first
//! round that leaves the loop is found by bisection, as a loop that waits for a time leaves it for good.
//!
//! Rounds that are not alike at all are tried ahead of their time, a number of them at once (`ahead`).

use std::sync::Arc;

use crate::cpu::op::Effect;
use crate::cpu::state::{Cpu, Stand};
use crate::lines::Need;

use super::ahead::{Ahead, Point};
use super::alike::{Alike, Counters};
use super::fabric::{From, Why};
use super::{Board, Memory, SlotState};

/// Instructions that a round may take, if it is tried.
const MOST_INSTRUCTIONS: u64 = 128;
/// How often in a row it is looked into what registers that differ are for.
const MOST_TRIES: u32 = 4;

/// A CPU at its last PAUSE.
#[derive(Debug)]
pub(super) struct Last {
    point: Point,
    /// Failed looks at the purpose of registers.
    tries: u32,
}

/// A CPU in a spin loop.
#[derive(Debug)]
pub(super) struct Parked {
    since_ps: u64,
    round: RoundEnd,
    /// When the PAUSE at the end of a round leaves the guest, if one does.
    pub(super) exits_ps: Option<u64>,
    /// When the round begins that leaves the loop by itself, or it is to be looked at again.
    leaves_ps: Option<u64>,
    /// Rounds depend on the clock: where the CPU stood when it was parked, and how it executes.
    clock: Option<(Stand, From)>,
    /// Registers that count the rounds.
    counters: Arc<Counters>,
    /// Rounds that are not alike.
    ahead: Option<Ahead>,
}

impl Parked {
    /// In rounds like `round` from `since_ps` on.
    fn in_rounds(since_ps: u64, round: RoundEnd) -> Self {
        let counters = Arc::default();
        Self { since_ps, round, exits_ps: None, leaves_ps: None, clock: None, counters, ahead: None }
    }

    /// The rounds before the first one that reads `line` after `at_ps`.
    fn rounds_before(&self, line: u64, at_ps: u64) -> u64 {
        match &self.ahead {
            Some(ahead) => ahead.rounds_before(line, at_ps),
            None => {
                let after_ps = self.round.reads.iter().find(|read| read.0 == line).map_or(0, |read| read.1);
                at_ps.saturating_sub(self.since_ps + after_ps).div_ceil(self.round.round_ps)
            }
        }
    }

    /// The rounds that end until `at_ps`.
    fn rounds_until(&self, at_ps: u64) -> u64 {
        match &self.ahead {
            Some(ahead) => ahead.rounds_until(at_ps),
            None => at_ps.saturating_sub(self.since_ps) / self.round.round_ps,
        }
    }
}

/// How a trial of one round ended, if it came to the PAUSE again.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RoundEnd {
    stand: Stand,
    round_ps: u64,
    instructions: u64,
    /// Lines that the round reads, and how long after its beginning.
    reads: Vec<(u64, u64)>,
}

impl<M: Memory> Board<M> {
    /// The CPU stands behind a PAUSE at the end of a quiet round. Whether it is parked.
    pub(super) fn park(&mut self, slot: u32, cpu: &mut Cpu, from: &From, end_ps: u64) -> bool {
        let at_ps = self.slots[slot as usize].at_ps;
        let here = Point { stand: cpu.stand(), at_ps, instructions: cpu.instructions };
        let mut tries = 0;
        let round = self.fabric.round();
        // Only the PAUSE at which this round began: rounds that were not quiet may follow an earlier one.
        let last = self.slots[slot as usize].last.take();
        let last = last.filter(|last| round.instructions == last.point.instructions);
        let clock = round.clock;
        let parked = match &last {
            Some(Last { point, .. }) if point.stand.rip != here.stand.rip => None,
            Some(Last { point, .. }) if clock => self.clocked(slot, cpu, from, (point, &here), end_ps),
            Some(Last { point, .. }) if point.stand == here.stand => {
                let round = RoundEnd {
                    stand: here.stand.clone(),
                    round_ps: at_ps - point.at_ps,
                    instructions: here.instructions - point.instructions,
                    reads: round.reads.clone(),
                };
                Some(Parked::in_rounds(at_ps, round))
            }
            Some(last) if last.tries < MOST_TRIES => {
                tries = last.tries + 1;
                self.counted(slot, cpu, from, (&last.point, &here))
            }
            Some(last) => {
                tries = last.tries;
                None
            }
            None => None,
        };
        let parked = parked.or_else(|| {
            last.as_ref()?;
            self.unlike(slot, cpu, &From { at_ps, ..*from })
        });
        self.slots[slot as usize].last = Some(Last { point: here, tries });
        let Some(mut parked) = parked else { return false };
        // A line that was lost after the round had read it is not announced again.
        if !parked.round.reads.iter().all(|read| self.fabric.lines.is_as_read(slot, read.0)) {
            return false;
        }
        for (line, _) in &parked.round.reads {
            self.fabric.lines.hit(at_ps, slot, *line, Need::Read);
            self.fabric.lines.watch(slot, *line);
        }
        let exits_after = self.fabric.filters[slot as usize].exits_after(parked.round.round_ps);
        parked.exits_ps = exits_after.map(|rounds| parked.since_ps + rounds * parked.round.round_ps);
        let due_ps = parked.leaves_ps.into_iter().chain(parked.exits_ps).min();
        self.slots[slot as usize].parked = Some(Box::new(parked));
        match due_ps {
            Some(due_ps) => self.schedule(slot, due_ps),
            None => self.slots[slot as usize].token += 1,
        }
        // Also where it is due.
        self.slots[slot as usize].state = SlotState::Parked;
        true
    }

    /// Rounds that are not alike, up to the end of the last of those that were tried.
    fn unlike(&mut self, slot: u32, cpu: &mut Cpu, from: &From) -> Option<Parked> {
        let ahead = self.ahead(slot, cpu, from)?;
        let reads = ahead.lines.iter().map(|line| (*line, 0)).collect();
        let round = RoundEnd { stand: cpu.stand(), round_ps: 0, instructions: 0, reads };
        let leaves_ps = Some(ahead.ends_ps());
        Some(Parked { ahead: Some(ahead), leaves_ps, ..Parked::in_rounds(from.at_ps, round) })
    }

    /// Rounds that differ in registers which count them.
    fn counted(
        &mut self,
        slot: u32,
        cpu: &mut Cpu,
        from: &From,
        (last, here): (&Point, &Point),
    ) -> Option<Parked> {
        // Whether more differs is seen before the round is tried.
        last.stand.differs_in(&here.stand).filter(|differ| *differ != 0)?;
        let from = From { at_ps: here.at_ps, instructions: here.instructions, ..*from };
        let mut round = Vec::new();
        let next = self.trial(slot, cpu, (&from, &here.stand), false, &mut |effect| round.push(*effect))?;
        let alike = Alike::after(&here.stand, &next.stand, &round)?;
        alike
            .decides_nothing()
            .then(|| Parked { counters: alike.counters, ..Parked::in_rounds(here.at_ps, next) })
    }

    /// Rounds that depend on the clock: what they are like, and when the first one begins that leaves the loop; or, if that is
    /// not before `end_ps`, when to look again.
    fn clocked(
        &mut self,
        slot: u32,
        cpu: &mut Cpu,
        from: &From,
        (last, here): (&Point, &Point),
        end_ps: u64,
    ) -> Option<Parked> {
        let from = From { at_ps: here.at_ps, instructions: here.instructions, ..*from };
        let mut trial = |board: &mut Self, from: &From, stand: &Stand| {
            board.trial(slot, cpu, (from, stand), false, &mut |_| ())
        };
        let next = trial(self, &from, &here.stand)?;
        let is_dead = trial(self, &from, &last.stand).is_some_and(|other| other == next);
        if !is_dead || next.stand.rip != here.stand.rip {
            return None;
        }
        let clock = Some((here.stand.clone(), from));
        let mut parked = Parked { clock, ..Parked::in_rounds(here.at_ps, next.clone()) };
        let begins = |round: u64| here.at_ps + round * next.round_ps;
        let mut leaves = |board: &mut Self, round: u64| {
            let later = From { at_ps: begins(round), ..from };
            trial(board, &later, &here.stand).is_none_or(|ended| {
                (ended.stand.rip, ended.round_ps, ended.instructions)
                    != (next.stand.rip, next.round_ps, next.instructions)
            })
        };
        // Stays at `stays`, and leaves at `gone`.
        let (mut stays, mut step) = (0, 1);
        let mut gone = loop {
            let round = stays + step;
            if begins(round) >= end_ps {
                let most = end_ps.saturating_sub(here.at_ps) / next.round_ps;
                if most <= stays || !leaves(self, most) {
                    parked.leaves_ps = Some(begins(most.max(1)));
                    return Some(parked);
                }
                break most;
            }
            if leaves(self, round) {
                break round;
            }
            (stays, step) = (round, step * 2);
        };
        while gone - stays > 1 {
            let middle = stays.midpoint(gone);
            if leaves(self, middle) { gone = middle } else { stays = middle }
        }
        parked.leaves_ps = Some(begins(gone));
        Some(parked)
    }

    /// End of a round that begins here, or has (`past`), if it comes to the PAUSE again. Tells the effects of its instructions. Changes
    /// nothing.
    fn trial(
        &mut self,
        slot: u32,
        cpu: &mut Cpu,
        (from, stand): (&From, &Stand),
        past: bool,
        tell: &mut impl FnMut(&Effect),
    ) -> Option<RoundEnd> {
        let (before, instructions) = (cpu.stand(), cpu.instructions);
        let round = self.fabric.round().clone();
        cpu.go_back(stand, from.instructions);
        let at_pause = self.goes_round(slot, cpu, from, past, tell);
        let ended = at_pause.then(|| RoundEnd {
            stand: cpu.stand(),
            round_ps: self.fabric.time_ps(cpu.instructions) - from.at_ps,
            instructions: cpu.instructions - from.instructions,
            reads: self.fabric.round().reads.clone(),
        });
        cpu.go_back(&before, instructions);
        self.fabric.rounds[slot as usize] = round;
        ended
    }

    /// Takes the CPU through one more round that begins at `from`, as if nothing happened elsewhere. Whether it comes to the PAUSE again.
    pub(super) fn goes_round(
        &mut self,
        slot: u32,
        cpu: &mut Cpu,
        from: &From,
        past: bool,
        tell: &mut impl FnMut(&Effect),
    ) -> bool {
        let alone = From { horizon_ps: u64::MAX, reach_ps: u64::MAX, end_ps: u64::MAX, ..*from };
        self.fabric.begin(slot, &alone);
        (self.fabric.running.dry, self.fabric.running.past) = (true, past);
        self.fabric.begin_round();
        let limit = from.instructions + MOST_INSTRUCTIONS;
        cpu.run_telling(&mut self.code, &mut self.fabric, limit, tell);
        self.fabric.why == Why::Pause
    }

    /// A line that a parked CPU reads is lost, or written, perhaps at a time that the board has not reached yet: the CPU goes on with
    /// the first round that reads it after that.
    pub(super) fn wake(&mut self, slot: u32, line: u64, at_ps: u64) {
        let Some(parked) = &self.slots[slot as usize].parked else { return };
        let rounds = parked.rounds_before(line, at_ps);
        let from_ps = parked.since_ps + rounds * parked.round.round_ps;
        if parked.exits_ps.into_iter().chain(parked.leaves_ps).any(|due_ps| due_ps <= from_ps) {
            // An earlier round ends with the PAUSE that exits, or leaves the loop, and is due.
            return;
        }
        self.unpark(slot, rounds);
        self.schedule(slot, at_ps.max(self.slots[slot as usize].at_ps));
    }

    /// The CPU of a slot goes on, if it is parked: with the last round that begins until `at_ps`.
    pub(super) fn unpark_before(&mut self, slot: u32, at_ps: u64) {
        if let Some(parked) = &self.slots[slot as usize].parked {
            let rounds = parked.rounds_until(at_ps);
            self.unpark(slot, rounds);
        }
    }

    fn unpark(&mut self, slot: u32, rounds: u64) {
        let place = &mut self.slots[slot as usize];
        let Some(parked) = place.parked.take() else { return };
        self.fabric.filters[slot as usize].skip(rounds, parked.round.round_ps);
        place.at_ps = parked.since_ps + rounds * parked.round.round_ps;
        place.last = None;
        let at_ps = place.at_ps;
        let mut cpu = place.cpu.take().expect("it is parked");
        for read in &parked.round.reads {
            self.fabric.lines.forget(slot, read.0);
        }
        if let Some((stand, from)) = parked.clock.filter(|_| rounds > 0) {
            // Its last reading of the clock.
            let last = From { at_ps: at_ps - parked.round.round_ps, ..from };
            if let Some(ended) = self.trial(slot, &mut cpu, (&last, &stand), true, &mut |_| ()) {
                cpu.go_back(&ended.stand, from.instructions);
            }
        }
        cpu.instructions += rounds * parked.round.instructions;
        if let Some(ahead) = &parked.ahead {
            let place = &mut self.slots[slot as usize];
            let (point, tried) = ahead.after(rounds);
            cpu.go_back(&point.stand, point.instructions);
            place.at_ps = point.at_ps;
            place.learn(ahead, rounds, tried);
            // These rounds were not alike: what the registers are for is not asked again.
            place.last = Some(Last { point, tries: MOST_TRIES });
        }
        let at_ps = self.slots[slot as usize].at_ps;
        if *parked.counters != Counters::default() {
            cpu.go_back(&parked.counters.after(&cpu.stand(), rounds), cpu.instructions);
        }
        // It stands behind a PAUSE.
        self.spend(slot, cpu.rip, false, at_ps);
        self.fabric.rounds[slot as usize].begin(cpu.instructions, at_ps);
        self.slots[slot as usize].cpu = Some(cpu);
    }
}
