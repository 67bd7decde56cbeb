//! Laws 12 to 13: when a spin loop exits, and to which vCPU its pCPU goes.

use crate::hosts::policy::{Pause, PauseCounter};

/// The window of one vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    window: u64,
}

impl Window {
    /// The window of a vCPU that has not run.
    #[must_use]
    pub fn new(pause: &Pause) -> Self {
        Self { window: pause.window }
    }

    /// How long after the first PAUSE of a loop the vCPU exits, where a PAUSE comes every `round_ps`, and the time stamp counter
    /// runs at `tsc_khz`; `None`: never, as the PAUSEs lie too far apart to be a loop.
    #[must_use]
    pub fn exits_after_ps(&self, pause: &Pause, round_ps: u64, tsc_khz: u64) -> Option<u64> {
        let ticks = |ps: u64| u128::from(ps) * u128::from(tsc_khz) / 1_000_000_000;
        if ticks(round_ps) > u128::from(pause.gap) {
            return None;
        }
        match pause.counter {
            PauseCounter::Ticks => {
                Some((u128::from(self.window) * 1_000_000_000 / u128::from(tsc_khz)) as u64)
            }
            PauseCounter::Pauses => Some(self.window * round_ps),
        }
    }

    /// A loop has exited.
    pub fn exited(&mut self, pause: &Pause) {
        let most = match pause.counter {
            PauseCounter::Ticks => u64::from(u32::MAX),
            PauseCounter::Pauses => u64::from(u16::MAX),
        };
        self.window = (self.window * 2).min(most);
    }

    /// The vCPU is loaded after it was scheduled out.
    pub fn loaded(&mut self, pause: &Pause) {
        self.window = pause.window;
    }
}

/// A vCPU, as one that exits from a spin loop finds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Candidate {
    /// It was switched out while runnable.
    pub preempted: bool,
    /// It was woken, and has not run since.
    pub woken: bool,
    /// It is blocked, without a wake-up pending.
    pub blocked: bool,
    /// It exited from a spin loop itself, and has not run since.
    pub in_spin: bool,
    /// It was last seen in ring 0.
    pub in_kernel: bool,
}

/// Law 13: whether the vCPU is worth a directed yield. `looks` counts those at which it was in a spin loop: every second one
/// lets it pass.
#[must_use]
pub fn is_candidate(seen: &Candidate, spinner_in_kernel: bool, looks: &mut u32) -> bool {
    let is_ready = seen.preempted || seen.woken;
    if !is_ready || seen.blocked {
        return false;
    }
    if seen.preempted && spinner_in_kernel && !seen.in_kernel {
        return false;
    }
    if seen.in_spin {
        *looks += 1;
        return looks.is_multiple_of(2);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTEL: Pause = Pause { counter: PauseCounter::Ticks, gap: 128, window: 4096, scan_ns: 35 };

    #[test]
    fn a_pause_is_part_of_a_loop_by_the_time_stamp_counter() {
        let window = Window::new(&INTEL);
        // 46 ns are 115 ticks at 2.5 GHz, and 147 at the 3.2 GHz of the core.
        assert_eq!(window.exits_after_ps(&INTEL, 46_000, 2_500_000), Some(1_638_400));
        assert_eq!(window.exits_after_ps(&INTEL, 46_000, 3_200_000), None);
    }

    #[test]
    fn windows_double_until_the_vcpu_was_scheduled_out() {
        let mut window = Window::new(&INTEL);
        let us = |window: &mut Window| {
            let ps = window.exits_after_ps(&INTEL, 46_000, 2_500_000).unwrap();
            window.exited(&INTEL);
            (ps + 50_000) / 100_000
        };
        // Tenths of a microsecond.
        assert_eq!([us(&mut window), us(&mut window), us(&mut window)], [16, 33, 66]);
        window.loaded(&INTEL);
        assert_eq!(us(&mut window), 16);
        (0..64).for_each(|_| window.exited(&INTEL));
        assert_eq!(window.window, u64::from(u32::MAX));
    }

    #[test]
    fn amd_counts_pauses() {
        let amd = Pause { counter: PauseCounter::Pauses, gap: 128, window: 3000, scan_ns: 35 };
        // A PAUSE every 25 ns: 75 us.
        assert_eq!(Window::new(&amd).exits_after_ps(&amd, 25_000, 2_450_000), Some(75_000_000));
    }

    #[test]
    fn candidates_are_ready_vcpus_that_do_not_just_spin() {
        let preempted = Candidate { preempted: true, in_kernel: true, ..Candidate::default() };
        let woken = Candidate { woken: true, ..Candidate::default() };
        for (seen, in_kernel, expected) in [
            (preempted, true, true),
            (Candidate { in_kernel: false, ..preempted }, true, false),
            (Candidate { in_kernel: false, ..preempted }, false, true),
            (woken, true, true),
            (Candidate { blocked: true, ..woken }, true, false),
            (Candidate::default(), false, false),
        ] {
            assert_eq!(is_candidate(&seen, in_kernel, &mut 0), expected, "{seen:?}");
        }
        let (spins, mut looks) = (Candidate { in_spin: true, ..preempted }, 0);
        let picks = [(); 4].map(|()| is_candidate(&spins, true, &mut looks));
        assert_eq!(picks, [false, true, false, true]);
    }
}
