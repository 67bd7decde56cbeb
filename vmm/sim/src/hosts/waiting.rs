//! Laws 12, 13 and 15: how vCPUs give up their pCPUs that wait. When a pause loop exits, and to which vCPU its pCPU goes; how long a
//! vCPU that halts polls for its wake-up before its thread sleeps.

use crate::hosts::policy::{Pause, PauseCounter, Poll};
use crate::hosts::scheduler::Yielded;
use crate::machine::{LongestLoop, PauseLimits};

/// Law 12 (pause-loop exits). A vCPU that has not run, or is loaded after it was scheduled out, has [`Pause::window`].
impl Pause {
    /// The limits with which a vCPU is entered whose window is this long, where the time stamp counter runs at `tsc_khz`.
    #[must_use]
    pub fn limits(&self, window: u64, tsc_khz: u64) -> PauseLimits {
        let ps = |ticks: u64| (u128::from(ticks) * 1_000_000_000 / u128::from(tsc_khz)) as u64;
        let longest = match self.counter {
            PauseCounter::Ticks => LongestLoop::Ps(ps(window)),
            PauseCounter::Pauses => LongestLoop::Pauses(window),
        };
        PauseLimits { gap_ps: ps(self.gap), longest }
    }

    /// The window of a vCPU after a loop that was longer than this one.
    #[must_use]
    pub fn wider(&self, window: u64) -> u64 {
        let most = match self.counter {
            PauseCounter::Ticks => u64::from(u32::MAX),
            PauseCounter::Pauses => u64::from(u16::MAX),
        };
        (window * 2).min(most)
    }
}

/// A vCPU, as one that exits from a pause loop finds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Candidate {
    /// It was switched out while runnable.
    pub preempted: bool,
    /// It was woken, and has not run since.
    pub woken: bool,
    /// It is blocked, without a wake-up pending.
    pub blocked: bool,
    /// It exited from a pause loop itself, and has not run since.
    pub in_spin: bool,
    /// It was last seen in ring 0.
    pub in_kernel: bool,
}

/// Directed yields that fail before a spinner looks no further.
const MOST_TRIES: u32 = 3;

/// The outcome of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spun {
    /// The CPU of the vCPU that was yielded to, which is to be interrupted.
    pub to: Option<usize>,
    /// vCPUs that were looked at.
    pub looks: u32,
}

/// Law 13 (spinners' choice): the vCPUs of one guest, among which a spinner looks for one to yield to.
#[derive(Clone, Debug)]
pub struct Boosts {
    /// The vCPU that was yielded to last.
    last: usize,
    /// How often each vCPU was looked at while it was in a pause loop: every second look lets it pass.
    looks: Vec<u32>,
}

impl Boosts {
    /// A guest with this number of vCPUs, of which none was yielded to.
    #[must_use]
    pub fn new(vcpus: u32) -> Self {
        Self { last: 0, looks: vec![0; vcpus as usize] }
    }

    /// A spinner yields to the vCPU that it knows of, if that waits for a pCPU.
    pub fn yields_to_known(known: u32, seen: &[Candidate], yields_to: impl FnOnce(u32) -> Yielded) -> Spun {
        let Candidate { preempted, woken, blocked, .. } = seen[known as usize];
        let waits = (preempted || woken) && !blocked;
        let to = match waits.then(|| yields_to(known)) {
            Some(Yielded::To(cpu)) => Some(cpu),
            _ => None,
        };
        Spun { to, looks: 1 }
    }

    /// vCPU `spinner` looks at the others, as they are in `seen`, and yields to the first candidate behind the last one that was
    /// yielded to, unless that fails.
    pub fn spins(
        &mut self,
        spinner: u32,
        seen: &[Candidate],
        mut yields_to: impl FnMut(u32) -> Yielded,
    ) -> Spun {
        let (spinner, last, count) = (spinner as usize, self.last, seen.len());
        let (mut looks, mut tries) = (0, 0);
        for at in (1..=count).map(|step| (last + step) % count).filter(|at| *at != spinner) {
            looks += 1;
            if !self.is_candidate(at, &seen[at], seen[spinner].in_kernel) {
                continue;
            }
            match yields_to(at as u32) {
                Yielded::To(cpu) => {
                    self.last = at;
                    return Spun { to: Some(cpu), looks };
                }
                Yielded::NotWaiting => {}
                Yielded::BothAlone => tries += 1,
            }
            if tries == MOST_TRIES {
                break;
            }
        }
        Spun { to: None, looks }
    }

    fn is_candidate(&mut self, at: usize, seen: &Candidate, spinner_in_kernel: bool) -> bool {
        let is_ready = seen.preempted || seen.woken;
        if !is_ready || seen.blocked {
            return false;
        }
        if seen.preempted && spinner_in_kernel && !seen.in_kernel {
            return false;
        }
        self.looks[at] += u32::from(seen.in_spin);
        !seen.in_spin || self.looks[at].is_multiple_of(2)
    }
}

impl Poll {
    /// Law 15 (halt polling): how long a vCPU polls at its next halt, which was to poll for `polls_ns`, and woke up `blocked_ns` after it
    /// halted.
    #[must_use]
    pub fn next_ns(&self, polls_ns: u64, blocked_ns: u64) -> u64 {
        if self.most_ns == 0 || blocked_ns <= polls_ns {
            return polls_ns;
        }
        if blocked_ns <= self.most_ns {
            return (polls_ns * 2).max(self.start_ns).min(self.most_ns);
        }
        let shrunk_ns = polls_ns.checked_div(self.shrink).unwrap_or(0);
        if shrunk_ns < self.start_ns { 0 } else { shrunk_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::presets;

    const PREEMPTED: Candidate =
        Candidate { preempted: true, in_kernel: true, woken: false, blocked: false, in_spin: false };

    #[test]
    fn windows_double_up_to_the_largest_of_their_kind() {
        let intel = presets()[0].host().pause.expect("it has Intel's exits");
        // A PAUSE is part of a loop by the time stamp counter: 46 ns are 115 ticks at 2.5 GHz, and 147 at the 3.2 GHz of the core.
        let gap_ps = |tsc_khz| intel.limits(intel.window, tsc_khz).gap_ps;
        assert!(gap_ps(2_500_000) > 46_000 && gap_ps(3_200_000) < 46_000);
        let amd = Pause { counter: PauseCounter::Pauses, window: 3000, ..intel };
        for (pause, longest, most) in [
            (intel, [1_638_400, 3_276_800, 6_553_600].map(LongestLoop::Ps), u64::from(u32::MAX)),
            (amd, [3000, 6000, 12_000].map(LongestLoop::Pauses), u64::from(u16::MAX)),
        ] {
            let mut window = pause.window;
            for longest in longest {
                assert_eq!(pause.limits(window, 2_500_000).longest, longest);
                window = pause.wider(window);
            }
            assert_eq!((0..64).fold(window, |window, _| pause.wider(window)), most);
        }
    }

    /// The vCPU that vCPU 0 of two yields to, if that is vCPU 1 as `seen`.
    fn is_chosen(seen: Candidate, in_kernel: bool, boosts: &mut Boosts) -> bool {
        let spinner = Candidate { in_kernel, ..Candidate::default() };
        boosts.spins(0, &[spinner, seen], |_| Yielded::To(0)).to.is_some()
    }

    #[test]
    fn candidates_are_ready_vcpus_that_do_not_just_spin() {
        let woken = Candidate { woken: true, ..Candidate::default() };
        for (seen, in_kernel, expected) in [
            (PREEMPTED, true, true),
            (Candidate { in_kernel: false, ..PREEMPTED }, true, false),
            (Candidate { in_kernel: false, ..PREEMPTED }, false, true),
            (woken, true, true),
            (Candidate { blocked: true, ..woken }, true, false),
            (Candidate::default(), false, false),
        ] {
            assert_eq!(is_chosen(seen, in_kernel, &mut Boosts::new(2)), expected, "{seen:?}");
        }
        let (spins, mut boosts) = (Candidate { in_spin: true, ..PREEMPTED }, Boosts::new(2));
        let picks = [(); 4].map(|()| is_chosen(spins, true, &mut boosts));
        assert_eq!(picks, [false, true, false, true]);
    }

    #[test]
    fn spinners_go_round_and_leave_themselves_out() {
        let mut boosts = Boosts::new(4);
        let mut targets = Vec::new();
        for _ in 0..6 {
            boosts.spins(2, &[PREEMPTED; 4], |id| {
                targets.push(id);
                Yielded::To(0)
            });
        }
        assert_eq!(targets, [1, 3, 0, 1, 3, 0]);
    }

    #[test]
    fn the_search_ends_after_three_yields_between_vcpus_that_are_alone() {
        let mut boosts = Boosts::new(8);
        let search = |boosts: &mut Boosts, outcome| {
            let mut tried = 0;
            let spun = boosts.spins(0, &[PREEMPTED; 8], |_| {
                tried += 1;
                outcome
            });
            (tried, spun)
        };
        assert_eq!(search(&mut boosts, Yielded::NotWaiting), (7, Spun { to: None, looks: 7 }));
        assert_eq!(search(&mut boosts, Yielded::BothAlone), (3, Spun { to: None, looks: 3 }));
        assert_eq!(search(&mut boosts, Yielded::To(5)), (1, Spun { to: Some(5), looks: 1 }));
    }

    fn intervals(shrink: u64, blocked_us: &[u64]) -> Vec<u64> {
        let poll = Poll { most_ns: 200_000, start_ns: 10_000, shrink };
        let mut polls_ns = 0;
        let after = |us: &u64| {
            polls_ns = poll.next_ns(polls_ns, us * 1000);
            polls_ns / 1000
        };
        blocked_us.iter().map(after).collect()
    }

    #[test]
    fn polls_double_while_blocks_outlast_them_and_long_ones_shrink_them() {
        assert_eq!(intervals(2, &[150; 7]), [10, 20, 40, 80, 160, 160, 160]);
        assert_eq!(intervals(2, &[190; 7]), [10, 20, 40, 80, 160, 200, 200]);
        assert_eq!(intervals(2, &[150, 150, 150, 9000, 9000, 9000]), [10, 20, 40, 20, 10, 0]);
        assert_eq!(intervals(0, &[150, 150, 150, 9000]), [10, 20, 40, 0]);
    }
}
