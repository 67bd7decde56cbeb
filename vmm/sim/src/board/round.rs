//! Rounds of spin loops: from one PAUSE to the next.

/// Lines that a round may read, to be taken for a spin loop's.
const MOST_LINES: usize = 6;

/// A CPU's way from one PAUSE to the next. While it is quiet, no other CPU can have noticed it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Round {
    /// It is not quiet.
    pub(super) loud: bool,
    /// Instructions completed when it began, and when that was.
    pub(super) instructions: u64,
    pub(super) began_ps: u64,
    /// Lines that it read, and how long after its beginning it did so first.
    pub(super) reads: Vec<(u64, u64)>,
    /// Whether it read the clock.
    pub(super) clock: bool,
}

impl Round {
    /// Whether it began when the CPU had completed `instructions`.
    pub(super) fn began_with(&self, instructions: u64) -> bool {
        self.instructions == instructions
    }

    /// It begins anew, at a time, when the CPU has completed `instructions`.
    pub(super) fn begin(&mut self, instructions: u64, began_ps: u64) {
        (self.loud, self.clock, self.instructions, self.began_ps) = (false, false, instructions, began_ps);
        self.reads.clear();
    }

    /// A line is read at a time.
    pub(super) fn reads(&mut self, line: u64, at_ps: u64) {
        if !self.loud && self.reads.iter().all(|read| read.0 != line) {
            self.reads.push((line, at_ps - self.began_ps));
            self.loud = self.reads.len() > MOST_LINES;
        }
    }
}
