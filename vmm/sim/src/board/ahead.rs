//! Rounds that are not alike: a waiter that counts them, or looks at the clock in some of them, is taken through several at once.
//!
//! As long as all that it reads stays as it is, what it does depends on its registers and the clock alone. So its rounds are tried
//! ahead of their time, one after the other, until one does more than read. The state after each is kept: when a line that it has
//! read is lost or written, the waiter goes on from the first round that reads it after that. Rounds that are like the one before
//! but for counters (`alike`) are not tried, but computed.

use std::sync::Arc;

use crate::cpu::state::Stand;

use super::counters::Counters;

/// Instructions that a round may take, if it is tried.
pub(super) const MOST_INSTRUCTIONS: u64 = 128;
/// Rounds that are tried at once: at first, and at most.
pub(super) const TRIED: (usize, usize) = (4, 64);
/// Fewer are not worth it.
pub(super) const FEWEST: u64 = 2;
/// Lines that they may read.
pub(super) const MOST_LINES: usize = 8;

/// Rounds that a CPU has been taken through.
#[derive(Debug)]
pub(super) struct Ahead {
    /// State of the CPU before the first round.
    pub(super) begin: Stand,
    /// Rounds that were tried, with those like each.
    pub(super) tried: Vec<Tried>,
    /// Lines that the tried rounds read, and when each did so first.
    pub(super) reads: Vec<(u64, u64)>,
    /// These lines, each once.
    pub(super) lines: Vec<u64>,
    /// When the CPU began, and instructions completed by then.
    pub(super) began: (u64, u64),
}

/// A round that was tried, and those after it that are like it.
#[derive(Debug)]
pub(super) struct Tried {
    /// State of the CPU after it, when that was, and instructions completed by then.
    pub(super) stand: Stand,
    pub(super) at_ps: u64,
    pub(super) instructions: u64,
    /// Time and instructions of the round.
    pub(super) takes: (u64, u64),
    /// Number of reads before the round's end.
    pub(super) reads: usize,
    /// Number of rounds like it.
    pub(super) repeats: u64,
    /// Registers that count these.
    pub(super) counters: Arc<Counters>,
}

impl Tried {
    /// State after so many rounds that are like it: where the CPU stands, when, and with how many instructions completed.
    pub(super) fn after(&self, repeats: u64) -> (Stand, u64, u64) {
        let (takes_ps, instructions) = self.takes;
        let stand = self.counters.after(&self.stand, repeats);
        (stand, self.at_ps + repeats * takes_ps, self.instructions + repeats * instructions)
    }

    /// The round and those like it that end until `at_ps`.
    fn rounds_until(&self, at_ps: u64) -> u64 {
        match at_ps.checked_sub(self.at_ps) {
            Some(later_ps) => 1 + (later_ps / self.takes.0).min(self.repeats),
            None => 0,
        }
    }

    /// The round and those like it that read a line before `at_ps`, `after_ps` behind their beginnings.
    fn rounds_before(&self, after_ps: u64, at_ps: u64) -> u64 {
        let first_ps = self.at_ps - self.takes.0 + after_ps;
        at_ps.saturating_sub(first_ps).div_ceil(self.takes.0).min(1 + self.repeats)
    }
}

impl Ahead {
    /// Lines that the rounds read, each once.
    pub(super) fn lines(&self) -> &[u64] {
        &self.lines
    }

    /// Number of rounds.
    pub(super) fn rounds(&self) -> u64 {
        self.tried.iter().map(|tried| 1 + tried.repeats).sum()
    }

    /// When the last round ends.
    pub(super) fn ends_ps(&self) -> u64 {
        self.tried.last().map_or(self.began.0, |last| last.at_ps + last.repeats * last.takes.0)
    }

    /// The rounds that end until `at_ps`.
    pub(super) fn rounds_until(&self, at_ps: u64) -> u64 {
        self.rounds_while(|_, tried| tried.rounds_until(at_ps))
    }

    /// The rounds before the first one that reads `line` after `at_ps`, or begins after it.
    pub(super) fn rounds_before(&self, line: u64, at_ps: u64) -> u64 {
        self.rounds_while(|reads, tried| {
            let begin_ps = tried.at_ps - tried.takes.0;
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

    /// State after this number of rounds, and the number of those that were tried.
    pub(super) fn after(&self, rounds: u64) -> ((Stand, u64, u64), usize) {
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
        ((self.begin.clone(), self.began.0, self.began.1), 0)
    }
}

/// Most bytes that a CPU's rounds take.
pub(super) const MOST_BYTES: usize =
    TRIED.1 * (size_of::<Tried>() + Counters::MOST_BYTES + MOST_LINES * size_of::<(u64, u64)>());
