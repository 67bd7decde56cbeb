//! Rounds that are not alike: a waiter that counts them, or looks at the clock in some of them, is taken through several at once.
//!
//! As long as all that it reads stays as it is, what it does depends on its registers and the clock alone. So its rounds are tried
//! ahead of their time, one after the other, until one does more than read. The state after each is kept: when a line that it has
//! read is lost or written, the waiter goes on from the first round that reads it after that.

use crate::cpu::state::{Cpu, Stand};

use super::fabric::{From, Why};
use super::slot::Slot;
use super::spin::MOST_INSTRUCTIONS;
use super::{Board, Memory};

/// Rounds that are tried at once: at first, and at most.
const TRIED: (usize, usize) = (4, 64);
/// Fewer are not worth it.
const FEWEST: usize = 2;
/// Lines that they may read.
const MOST_LINES: usize = 8;

/// Rounds that a CPU has been taken through.
#[derive(Debug)]
pub(super) struct Ahead {
    /// State of the CPU before the first round, and after each.
    stands: Vec<RoundStart>,
    /// Lines that the rounds read, and when each did so first.
    reads: Vec<(u64, u64)>,
    /// These lines, each once.
    lines: Vec<u64>,
}

#[derive(Debug)]
struct RoundStart {
    stand: Stand,
    at_ps: u64,
    instructions: u64,
    /// Number of reads before it.
    reads: usize,
}

impl Ahead {
    /// Lines that the rounds read, each once.
    pub(super) fn lines(&self) -> &[u64] {
        &self.lines
    }

    /// When the last round ends.
    pub(super) fn ends_ps(&self) -> u64 {
        self.stands.last().map_or(0, |last| last.at_ps)
    }

    /// The rounds that end until `at_ps`.
    pub(super) fn rounds_until(&self, at_ps: u64) -> u64 {
        if at_ps >= self.ends_ps() {
            return self.stands.len() as u64 - 1;
        }
        self.rounds(|_, end| end.at_ps <= at_ps)
    }

    /// The rounds before the first one that reads `line` after `at_ps`, or begins after it.
    pub(super) fn rounds_before(&self, line: u64, at_ps: u64) -> u64 {
        self.rounds(|start, end| {
            let mut reads = self.reads[start.reads..end.reads].iter();
            reads.find(|read| read.0 == line).map_or(start.at_ps, |read| read.1) < at_ps
        })
    }

    fn rounds(&self, goes_on: impl Fn(&RoundStart, &RoundStart) -> bool) -> u64 {
        self.stands.windows(2).take_while(|round| goes_on(&round[0], &round[1])).count() as u64
    }

    /// Puts the CPU behind this number of rounds, and returns the time of that.
    pub(super) fn go_on(&self, cpu: &mut Cpu, rounds: u64) -> u64 {
        let start = &self.stands[rounds as usize];
        cpu.go_back(&start.stand, start.instructions);
        start.at_ps
    }
}

/// Most bytes that a CPU's rounds take.
pub(super) const MOST_BYTES: usize =
    (TRIED.1 + 1) * (size_of::<RoundStart>() + MOST_LINES * size_of::<(u64, u64)>());

impl Slot {
    /// Notes how many of the rounds were of use: about as many are tried next time, or more.
    pub(super) fn learn(&mut self, ahead: &Ahead, rounds: u64) {
        let all = rounds as usize + 1 == ahead.stands.len();
        let next = if all { self.tries_ahead * 2 } else { rounds as usize + 1 };
        self.tries_ahead = next.clamp(TRIED.0, TRIED.1);
    }
}

impl<M: Memory> Board<M> {
    /// Takes the CPU, which stands behind a PAUSE at the end of a quiet round, through the rounds that follow. Nothing is changed.
    pub(super) fn ahead(&mut self, slot: u32, cpu: &mut Cpu, from: &From) -> Option<Ahead> {
        // A witness is asked at instructions that it chooses; one of these PAUSEs might leave the guest.
        if self.witness.is_some() || self.fabric.filters[slot as usize].is_on() {
            return None;
        }
        let round = self.fabric.round().clone();
        let (here, instructions) = (cpu.stand(), cpu.instructions());
        let start = RoundStart { stand: here.clone(), at_ps: from.at_ps, instructions, reads: 0 };
        let most = self.slots[slot as usize].tries_ahead.max(TRIED.0);
        let mut stands = Vec::with_capacity(most + 1);
        stands.push(start);
        let mut ahead = Ahead { stands, reads: Vec::with_capacity(4 * most), lines: Vec::new() };
        while ahead.stands.len() <= most && self.try_next(slot, cpu, from, &mut ahead) {}
        cpu.go_back(&here, instructions);
        self.fabric.set_round(slot, round);
        (ahead.stands.len() > FEWEST && ahead.lines.len() <= MOST_LINES).then_some(ahead)
    }

    /// Takes the CPU through one more round, and returns whether that does nothing but read.
    fn try_next(&mut self, slot: u32, cpu: &mut Cpu, from: &From, ahead: &mut Ahead) -> bool {
        let (at_ps, instructions) = (ahead.ends_ps(), cpu.instructions());
        let never = From { horizon_ps: u64::MAX, reach_ps: u64::MAX, end_ps: u64::MAX, ..*from };
        self.fabric.begin(slot, &From { at_ps, instructions, ..never });
        self.fabric.begin_trial(false);
        cpu.run_telling(&mut self.code, &mut self.fabric, instructions + MOST_INSTRUCTIONS, &mut |_| ());
        if self.fabric.why != Why::Pause || !self.fabric.round().began_with(instructions) {
            return false;
        }
        if ahead.stands.last().is_some_and(|last| cpu.is_at(&last.stand)) {
            // All further rounds are like this one.
            return false;
        }
        let round = self.fabric.round();
        for (line, after_ps) in &round.reads {
            ahead.reads.push((*line, at_ps + after_ps));
            if !ahead.lines.contains(line) {
                ahead.lines.push(*line);
            }
        }
        ahead.stands.push(RoundStart {
            stand: cpu.stand(),
            at_ps: self.fabric.time_ps(cpu.instructions()),
            instructions: cpu.instructions(),
            reads: ahead.reads.len(),
        });
        true
    }
}
