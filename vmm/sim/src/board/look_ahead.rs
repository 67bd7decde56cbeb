//! Takes a waiter through several rounds at once (`ahead`).

use std::sync::Arc;

use crate::cpu::effect::Effect;
use crate::cpu::state::{Cpu, Stand};

use super::ahead::{Ahead, FEWEST, MOST_INSTRUCTIONS, MOST_LINES, TRIED, Tried};
use super::alike::Alike;
use super::fabric::Why;
use super::running::From;
use super::slot::Slot;
use super::{Board, Memory};

/// Rounds in a row that are looked into, whether others are like them; of those that follow, one in how many.
const LOOKS: (u32, u32) = (16, 64);

impl Slot {
    /// Notes how many of the tried rounds were of use: about as many are tried next time, or more.
    pub(super) fn learn(&mut self, ahead: &Ahead, rounds: u64, tried: usize) {
        let all = rounds == ahead.rounds();
        let next = if all { self.tries_ahead * 2 } else { tried + 1 };
        self.tries_ahead = next.clamp(TRIED.0, TRIED.1);
    }
}

impl<M: Memory> Board<M> {
    /// Instructions that have been executed one by one: not the rounds of parked spin loops, nor those of work.
    #[must_use]
    pub fn executed(&self) -> u64 {
        self.executed
    }

    /// Instructions of spin loops' rounds that have been tried ahead of their time.
    #[must_use]
    pub fn tried(&self) -> u64 {
        self.tried
    }

    /// Takes the CPU, which stands behind a PAUSE at the end of a quiet round, through the rounds that follow. Nothing is changed.
    pub(super) fn ahead(&mut self, slot: u32, cpu: &mut Cpu, from: &From) -> Option<Ahead> {
        // A witness is asked at instructions that it chooses; one of these PAUSEs might leave the guest.
        if self.witness.is_some() || self.fabric.filters[slot as usize].is_on() {
            return None;
        }
        let round = self.fabric.round().clone();
        let (begin, instructions) = (cpu.stand(), cpu.instructions());
        let most = self.slots[slot as usize].tries_ahead.max(TRIED.0);
        let mut ahead = Ahead {
            begin,
            tried: Vec::with_capacity(most),
            reads: Vec::with_capacity(4 * most),
            lines: Vec::new(),
            began: (from.at_ps, instructions),
        };
        let (mut last, mut effects) = (ahead.begin.clone(), Vec::new());
        while ahead.tried.len() < most
            && self.try_next((slot, from), cpu, &mut last, &mut ahead, &mut effects)
        {}
        cpu.go_back(&ahead.begin, instructions);
        self.fabric.set_round(slot, round);
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
        let (at_ps, instructions) = (ahead.ends_ps(), cpu.instructions());
        let never = From { horizon_ps: u64::MAX, reach_ps: u64::MAX, end_ps: u64::MAX, ..*from };
        self.fabric.begin(slot, &From { at_ps, instructions, ..never });
        self.fabric.begin_trial(false);
        effects.clear();
        let limit = instructions + MOST_INSTRUCTIONS;
        cpu.run_telling(&mut self.code, &mut self.fabric, limit, &mut |effect| effects.push(*effect));
        self.tried += cpu.instructions() - instructions;
        if self.fabric.why != Why::Pause || !self.fabric.round().began_with(instructions) {
            return false;
        }
        if cpu.is_at(last) {
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
        let ends_ps = self.fabric.time_ps(cpu.instructions());
        let mut tried = Tried {
            stand: cpu.stand(),
            at_ps: ends_ps,
            instructions: cpu.instructions(),
            takes: (ends_ps - at_ps, cpu.instructions() - instructions),
            reads: ahead.reads.len(),
            repeats: 0,
            counters: Arc::default(),
        };
        if !round.clock {
            self.slots[slot as usize].repeat(&mut tried, last, effects);
        }
        last.clone_from(&tried.stand);
        if tried.repeats > 0 {
            tried.counters.count(last, tried.repeats);
            cpu.go_back(last, tried.instructions + tried.repeats * tried.takes.1);
        }
        ahead.tried.push(tried);
        true
    }
}

impl Slot {
    /// Adds the rounds that are like `tried`, one of `effects` that began at `last` and does not depend on the clock.
    fn repeat(&mut self, tried: &mut Tried, last: &Stand, effects: &[Effect]) {
        if !self.alike.as_ref().is_some_and(|alike| alike.is_again(last, &tried.stand, effects)) {
            // A look takes longer than the round. Where it was in vain a few times, it mostly is.
            self.unlike += 1;
            let looks = self.unlike <= LOOKS.0 || self.unlike.is_multiple_of(LOOKS.1);
            let found = looks.then(|| Alike::after(last, &tried.stand, effects)).flatten();
            let Some(alike) = found else { return };
            (self.alike, self.unlike) = (Some(Box::new(alike)), 0);
        }
        if let Some(alike) = &self.alike {
            (tried.repeats, tried.counters) = (alike.rounds_after(last), Arc::clone(&alike.counters));
        }
    }
}
