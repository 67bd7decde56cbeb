//! Rounds that are not alike: a waiter that counts them, or looks at the clock in some of them, is taken through several at once.
//!
//! As long as all that it reads stays as it is, what it does depends on its registers and the clock alone. So its rounds are tried
//! ahead of their time, one after the other, until one does more than read. The state after each is kept: when a line that it has
//! read is lost or written, the waiter goes on from the first round that reads it after that. Rounds that are like the one before
//! but for counters (`alike`) are not tried, but computed.

use std::sync::Arc;

use crate::cpu::op::Effect;
use crate::cpu::state::{Cpu, Stand};

use super::alike::{Alike, Counters};
use super::fabric::From;
use super::{Board, Memory, Slot};

/// Rounds that are tried at once: at first, and at most.
const TRIED: (usize, usize) = (4, 64);
/// Fewer are not worth it.
const FEWEST: u64 = 2;
/// Lines that they may read.
const MOST_LINES: usize = 8;

/// Most bytes that a CPU's rounds take.
pub(super) const MOST_BYTES: usize =
    TRIED.1 * (size_of::<Tried>() + Counters::MOST_BYTES + MOST_LINES * size_of::<(u64, u64)>());

/// Rounds in a row that are looked into, whether others are like them; of those that follow, one in how many.
const LOOKS: (u32, u32) = (16, 64);

/// A CPU's place behind a PAUSE, the time there, and the instructions completed by then.
#[derive(Clone, Debug)]
pub(super) struct Point {
    pub(super) stand: Stand,
    pub(super) at_ps: u64,
    pub(super) instructions: u64,
}

/// Rounds that a CPU has been taken through.
#[derive(Debug)]
pub(super) struct Ahead {
    /// The CPU before the first round.
    pub(super) begin: Point,
    /// Rounds that were tried, with those like each.
    pub(super) tried: Vec<Tried>,
    /// Lines that the tried rounds read, and when each did so first.
    pub(super) reads: Vec<(u64, u64)>,
    /// These lines, each once.
    pub(super) lines: Vec<u64>,
}

/// A round that was tried, and those after it that are like it.
#[derive(Debug)]
pub(super) struct Tried {
    /// The CPU after it.
    pub(super) end: Point,
    /// Time and instructions of the round.
    pub(super) round_ps: u64,
    pub(super) round_instructions: u64,
    /// Number of reads before the round's end.
    pub(super) reads: usize,
    /// Number of rounds like it.
    pub(super) repeats: u64,
    /// Registers that count these.
    pub(super) counters: Arc<Counters>,
}

impl Tried {
    /// The CPU after `repeats` rounds that are like it.
    pub(super) fn after(&self, repeats: u64) -> Point {
        Point {
            stand: self.counters.after(&self.end.stand, repeats),
            at_ps: self.end.at_ps + repeats * self.round_ps,
            instructions: self.end.instructions + repeats * self.round_instructions,
        }
    }

    /// The round and those like it that end until `at_ps`.
    fn rounds_until(&self, at_ps: u64) -> u64 {
        match at_ps.checked_sub(self.end.at_ps) {
            Some(later_ps) => 1 + (later_ps / self.round_ps).min(self.repeats),
            None => 0,
        }
    }

    /// The round and those like it that read a line before `at_ps`, `after_ps` behind their beginnings.
    fn rounds_before(&self, after_ps: u64, at_ps: u64) -> u64 {
        let first_ps = self.end.at_ps - self.round_ps + after_ps;
        at_ps.saturating_sub(first_ps).div_ceil(self.round_ps).min(1 + self.repeats)
    }
}

impl Ahead {
    pub(super) fn rounds(&self) -> u64 {
        self.tried.iter().map(|tried| 1 + tried.repeats).sum()
    }

    pub(super) fn ends_ps(&self) -> u64 {
        self.tried.last().map_or(self.begin.at_ps, |last| last.end.at_ps + last.repeats * last.round_ps)
    }

    /// The rounds that end until `at_ps`.
    pub(super) fn rounds_until(&self, at_ps: u64) -> u64 {
        self.rounds_while(|_, tried| tried.rounds_until(at_ps))
    }

    /// The rounds before the first one that reads `line` after `at_ps`, or begins after it.
    pub(super) fn rounds_before(&self, line: u64, at_ps: u64) -> u64 {
        self.rounds_while(|reads, tried| {
            let begin_ps = tried.end.at_ps - tried.round_ps;
            let read = self.reads[reads..tried.reads].iter().find(|read| read.0 == line);
            tried.rounds_before(read.map_or(0, |read| read.1 - begin_ps), at_ps)
        })
    }

    /// Sum of what `of_it` says of each tried round and those like it, given the number of reads before it, up to the first of which it
    /// does not say all.
    fn rounds_while(&self, of_it: impl Fn(usize, &Tried) -> u64) -> u64 {
        let (mut rounds, mut reads) = (0, 0);
        for tried in &self.tried {
            let some = of_it(reads, tried);
            rounds += some;
            if some <= tried.repeats {
                break;
            }
            reads = tried.reads;
        }
        rounds
    }

    /// The CPU after this number of rounds, and the number of those that were tried.
    pub(super) fn after(&self, rounds: u64) -> (Point, usize) {
        let mut left = rounds;
        for (index, tried) in self.tried.iter().enumerate() {
            if left == 0 {
                break;
            }
            if left <= 1 + tried.repeats {
                return (tried.after(left - 1), index + 1);
            }
            left -= 1 + tried.repeats;
        }
        (self.begin.clone(), 0)
    }
}

impl<M: Memory> Board<M> {
    /// Takes the CPU, which stands behind a PAUSE at the end of a quiet round, through the rounds that follow. Nothing is changed.
    pub(super) fn ahead(&mut self, slot: u32, cpu: &mut Cpu, from: &From) -> Option<Ahead> {
        // A witness is asked at instructions that it chooses; one of these PAUSEs might leave the guest.
        if self.witness.is_some() || self.fabric.filters[slot as usize].limits.is_some() {
            return None;
        }
        let round = self.fabric.round().clone();
        let begin = Point { stand: cpu.stand(), at_ps: from.at_ps, instructions: cpu.instructions };
        let most = self.slots[slot as usize].tries_ahead.max(TRIED.0);
        let mut ahead = Ahead {
            begin,
            tried: Vec::with_capacity(most),
            reads: Vec::with_capacity(4 * most),
            lines: Vec::new(),
        };
        let (mut last, mut effects) = (ahead.begin.stand.clone(), Vec::new());
        while ahead.tried.len() < most
            && self.try_next((slot, from), cpu, &mut last, &mut ahead, &mut effects)
        {}
        cpu.go_back(&ahead.begin.stand, ahead.begin.instructions);
        self.fabric.rounds[slot as usize] = round;
        (ahead.rounds() >= FEWEST && ahead.lines.len() <= MOST_LINES).then_some(ahead)
    }

    /// Takes the CPU, which stands at `last`, through one more round and those like it, and returns whether that does nothing but read.
    fn try_next(
        &mut self,
        (slot, from): (u32, &From),
        cpu: &mut Cpu,
        last: &mut Stand,
        ahead: &mut Ahead,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let (at_ps, instructions) = (ahead.ends_ps(), cpu.instructions);
        effects.clear();
        let from = From { at_ps, instructions, ..*from };
        let goes_round = self.goes_round(slot, cpu, &from, false, &mut |effect| effects.push(*effect));
        self.tried += cpu.instructions - instructions;
        let stand = cpu.stand();
        // At its last stand, all further rounds are like this one.
        if !goes_round || self.fabric.round().instructions != instructions || stand == *last {
            return false;
        }
        let round = self.fabric.round();
        for (line, after_ps) in &round.reads {
            ahead.reads.push((*line, at_ps + after_ps));
            if !ahead.lines.contains(line) {
                ahead.lines.push(*line);
            }
        }
        let ends_ps = self.fabric.time_ps(cpu.instructions);
        let mut tried = Tried {
            end: Point { stand, at_ps: ends_ps, instructions: cpu.instructions },
            round_ps: ends_ps - at_ps,
            round_instructions: cpu.instructions - instructions,
            reads: ahead.reads.len(),
            repeats: 0,
            counters: Arc::default(),
        };
        if !round.clock {
            self.slots[slot as usize].repeat(&mut tried, last, effects);
        }
        let Point { stand, instructions, .. } = tried.after(tried.repeats);
        cpu.go_back(&stand, instructions);
        *last = stand;
        ahead.tried.push(tried);
        true
    }
}

impl Slot {
    /// Notes how many of the tried rounds were of use: about as many are tried next time, or more.
    pub(super) fn learn(&mut self, ahead: &Ahead, rounds: u64, tried: usize) {
        let all = rounds == ahead.rounds();
        let next = if all { self.tries_ahead * 2 } else { tried + 1 };
        self.tries_ahead = next.clamp(TRIED.0, TRIED.1);
    }

    /// Adds the rounds that are like `tried`, one of `effects` that began at `last` and does not depend on the clock.
    fn repeat(&mut self, tried: &mut Tried, last: &Stand, effects: &[Effect]) {
        if !self.alike.as_ref().is_some_and(|alike| alike.is_again(last, &tried.end.stand, effects)) {
            // A look takes longer than the round. Where a few looks found nothing, the next mostly finds nothing.
            self.unlike += 1;
            let looks = self.unlike <= LOOKS.0 || self.unlike.is_multiple_of(LOOKS.1);
            let found = looks.then(|| Alike::after(last, &tried.end.stand, effects)).flatten();
            let Some(alike) = found else { return };
            (self.alike, self.unlike) = (Some(Box::new(alike)), 0);
        }
        if let Some(alike) = &self.alike {
            (tried.repeats, tried.counters) = (alike.rounds_after(last), Arc::clone(&alike.counters));
        }
    }
}
