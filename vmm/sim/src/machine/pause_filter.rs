//! A processor's filter of pause loops: when a PAUSE leaves the guest.

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
        }
        let mut filter = entered(BY_TIME);
        assert!((0..30).all(|round| !filter.pause(round * 40_000)));
        let begins_ps = 30 * 40_000 + 60_000;
        assert_eq!((0..100).find(|round| filter.pause(begins_ps + round * 40_000)), Some(41), "a new loop");
    }
}
