//! Takes a waiter through several rounds at once (`ahead`).

use crate::cpu::state::Cpu;

use super::ahead::{Ahead, FEWEST, MOST_INSTRUCTIONS, MOST_LINES, RoundStart, TRIED};
use super::fabric::{From, Why};
use super::slot::Slot;
use super::{Board, Memory};

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
