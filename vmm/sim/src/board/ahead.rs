//! Rounds that are not alike: a waiter that counts them, or looks at the clock in some of them, is taken through several at once.
//!
//! As long as all that it reads stays as it is, what it does depends on its registers and the clock alone. So its rounds are tried
//! ahead of their time, one after the other, until one does more than read. The state after each is kept: when a line that it has
//! read is lost or written, the waiter goes on from the first round that reads it after that.

use crate::cpu::state::{Cpu, Stand};

/// Instructions that a round may take, if it is tried.
pub(super) const MOST_INSTRUCTIONS: u64 = 128;
/// Rounds that are tried at once: at first, and at most.
pub(super) const TRIED: (usize, usize) = (4, 64);
/// Fewer are not worth it.
pub(super) const FEWEST: usize = 2;
/// Lines that they may read.
pub(super) const MOST_LINES: usize = 8;

/// Rounds that a CPU has been taken through.
#[derive(Debug)]
pub(super) struct Ahead {
    /// State of the CPU before the first round, and after each.
    pub(super) stands: Vec<RoundStart>,
    /// Lines that the rounds read, and when each did so first.
    pub(super) reads: Vec<(u64, u64)>,
    /// These lines, each once.
    pub(super) lines: Vec<u64>,
}

#[derive(Debug)]
pub(super) struct RoundStart {
    pub(super) stand: Stand,
    pub(super) at_ps: u64,
    pub(super) instructions: u64,
    /// Number of reads before it.
    pub(super) reads: usize,
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
