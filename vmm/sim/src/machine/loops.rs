//! Loops that a machine knows: the one that stands for work, and pause loops.
//!
//! A guest that works for a microsecond multiplies a register with itself, four times a round, and counts another one down:
//!
//! ```text
//! 2: imul p, p ; imul p, p ; imul p, p ; imul p, p ; dec n ; jnz 2b
//! ```
//!
//! A board recognises these instructions, and when a CPU comes to them it moves time on and sets both registers, instead of
//! executing round after round.
//!
//! A processor's filter of pause loops says when a PAUSE leaves the guest.

/// Multiplications in a round.
const MULTIPLICATIONS: usize = 4;
/// Instructions in a round.
pub(crate) const ROUND: u64 = MULTIPLICATIONS as u64 + 2;

/// A loop that stands for work, as it was found in code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkLoop {
    /// Address of its first instruction.
    pub head: u64,
    /// Address behind its last one.
    pub end: u64,
    /// Number of the register that is multiplied.
    pub product: u8,
    /// Number of the register that is counted down.
    pub left: u8,
}

impl WorkLoop {
    /// All of them in `code`, whose first byte is at `address`.
    #[must_use]
    pub fn find_all(code: &[u8], address: u64) -> Vec<Self> {
        let here = (0..code.len()).filter_map(|at| Self::at(&code[at..], address + at as u64));
        here.collect()
    }

    fn at(code: &[u8], head: u64) -> Option<Self> {
        /// `imul r64, r64` and `dec r64`, both with a REX prefix, and `jnz` with a distance of one byte.
        const BYTES: usize = MULTIPLICATIONS * 4 + 3 + 2;
        let code: &[u8; BYTES] = code.first_chunk()?;
        let (multiply, rest) = code.split_at(4);
        let [rex, 0x0f, 0xaf, operands] = *multiply else { return None };
        let (product, same) = (register(rex >> 2 & 1, operands >> 3), register(rex, operands));
        let repeats = code.chunks(4).take(MULTIPLICATIONS).all(|again| again == multiply);
        if rex & 0xfa != 0x48 || operands & 0xc0 != 0xc0 || product != same || !repeats {
            return None;
        }
        let [rex, 0xff, operands, 0x75, distance] = rest[(MULTIPLICATIONS - 1) * 4..] else { return None };
        if rex & 0xfe != 0x48 || operands & 0xf8 != 0xc8 || distance != (BYTES as u8).wrapping_neg() {
            return None;
        }
        Some(Self { head, end: head + BYTES as u64, product, left: register(rex, operands) })
    }

    pub(crate) fn after(mut product: u64, rounds: u64) -> u64 {
        // An odd number is 1 after its square has been squared 62 times; an even one is 0 after 6 times.
        const SETTLED: u64 = 64 / MULTIPLICATIONS as u64;
        for _ in 0..rounds.min(SETTLED) * MULTIPLICATIONS as u64 {
            product = product.wrapping_mul(product);
        }
        product
    }
}

fn register(high: u8, low: u8) -> u8 {
    (high & 1) << 3 | low & 7
}

/// Limits of pause loops, which a hypervisor sets when it enters a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PauseLimits {
    /// PAUSEs further apart belong to different loops.
    pub gap_ps: u64,
    /// The longest loop that stays in the guest.
    pub longest: LongestLoop,
}

/// Length of a pause loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LongestLoop {
    /// Intel: time between its first PAUSE and its last one.
    Ps(u64),
    /// AMD: number of its PAUSEs.
    Pauses(u64),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct PauseFilter {
    /// Limits for the next entries; without any, no PAUSE exits.
    pub(crate) limits: Option<PauseLimits>,
    /// The loop that the last PAUSE was in; `None` before the first one since the vCPU was entered.
    last: Option<PauseLoop>,
}

#[derive(Clone, Copy, Debug)]
struct PauseLoop {
    first_ps: u64,
    last_ps: u64,
    pauses: u64,
}

impl PauseFilter {
    /// A vCPU is entered: its first PAUSE begins a loop.
    pub(crate) fn enter(&mut self) {
        self.last = None;
    }

    /// Counts a PAUSE that begins at `at_ps`. Returns whether it exits.
    pub(crate) fn pause(&mut self, at_ps: u64) -> bool {
        let Some(limits) = &self.limits else { return false };
        let goes_on = self.last.filter(|last| at_ps - last.last_ps <= limits.gap_ps);
        let now = match goes_on {
            Some(last) => PauseLoop { last_ps: at_ps, pauses: last.pauses + 1, ..last },
            None => PauseLoop { first_ps: at_ps, last_ps: at_ps, pauses: 1 },
        };
        self.last = Some(now);
        match limits.longest {
            LongestLoop::Ps(longest_ps) => now.last_ps - now.first_ps > longest_ps,
            LongestLoop::Pauses(most) => now.pauses > most,
        }
    }

    /// The number of further PAUSEs, one every `round_ps`, until one exits; `None`: none ever does.
    pub(crate) fn exits_after(&self, round_ps: u64) -> Option<u64> {
        let (limits, last) = (self.limits?, self.last?);
        if round_ps > limits.gap_ps {
            return None;
        }
        Some(match limits.longest {
            LongestLoop::Ps(longest_ps) => (longest_ps - (last.last_ps - last.first_ps)) / round_ps + 1,
            LongestLoop::Pauses(most) => most - last.pauses + 1,
        })
    }

    /// Counts PAUSEs that came one every `round_ps` after the last one, and did not exit.
    pub(crate) fn skip(&mut self, rounds: u64, round_ps: u64) {
        let Some(last) = &mut self.last else { return };
        last.last_ps += rounds * round_ps;
        last.pauses += rounds;
        if rounds > 0 && self.limits.is_some_and(|limits| round_ps > limits.gap_ps) {
            (last.first_ps, last.pauses) = (last.last_ps, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `imul r9, r9` four times, `dec rax`, `jnz` to the first.
    fn code() -> Vec<u8> {
        let mut code = [0x4d, 0x0f, 0xaf, 0xc9].repeat(4);
        code.extend([0x48, 0xff, 0xc8, 0x75, 0xeb]);
        code
    }

    #[test]
    fn a_loop_that_differs_in_one_byte_is_not_taken_for_it() {
        for at in 0..code().len() {
            let mut other = code();
            other[at] ^= 0x40;
            assert_eq!(WorkLoop::find_all(&other, 0), [], "byte {at}");
        }
    }

    const BY_TIME: PauseLimits = PauseLimits { gap_ps: 50_000, longest: LongestLoop::Ps(1_600_000) };
    const BY_NUMBER: PauseLimits = PauseLimits { gap_ps: 50_000, longest: LongestLoop::Pauses(40) };

    fn entered(limits: PauseLimits) -> PauseFilter {
        PauseFilter { limits: Some(limits), last: None }
    }

    /// The number of the first PAUSE that exits, of up to 100 that begin one every `round_ps`.
    fn first_exit(filter: &mut PauseFilter, round_ps: u64) -> Option<u64> {
        (0..100).find(|round| filter.pause(round * round_ps))
    }

    #[test]
    fn a_loop_exits_that_lasts_longer_than_its_limit() {
        // PAUSE number 0 begins the loop: 1.6 us are not exceeded before number 41.
        assert_eq!(first_exit(&mut entered(BY_TIME), 40_000), Some(41));
        assert_eq!(first_exit(&mut entered(BY_TIME), 20_000), Some(81));
        assert_eq!(first_exit(&mut entered(BY_NUMBER), 40_000), Some(40));
        assert_eq!(first_exit(&mut entered(BY_NUMBER), 20_000), Some(40));
        assert_eq!(first_exit(&mut PauseFilter::default(), 40_000), None);
    }

    #[test]
    fn pauses_that_are_far_apart_are_no_loop() {
        for limits in [BY_TIME, BY_NUMBER] {
            assert_eq!(first_exit(&mut entered(limits), 50_001), None);
            assert!(first_exit(&mut entered(limits), 50_000).is_some());
            // Rounds that a parked CPU skips are none either: the last one begins a loop.
            let mut filter = entered(limits);
            assert!(!filter.pause(0));
            assert_eq!(filter.exits_after(60_000), None);
            filter.skip(9, 60_000);
            let closer = (1..100_u64).find(|round| filter.pause(540_000_u64 + round * 40_000));
            assert_eq!(closer, first_exit(&mut entered(limits), 40_000));
        }
        let mut filter = entered(BY_TIME);
        assert!((0..30).all(|round| !filter.pause(round * 40_000)));
        let begins_ps = 30 * 40_000 + 60_000;
        assert_eq!((0..100).find(|round| filter.pause(begins_ps + round * 40_000)), Some(41), "a new loop");
    }
}
