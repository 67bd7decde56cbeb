//! Pause-loop exits under the model of a host: windows, and yields of spinners to other vCPUs of their guest.

use haltkick_sim::hosts::{Boosts, Candidate, Host, Pause, PauseCounter, Spun, Target, Yielded};
use haltkick_sim::machine::PauseLimits;

use crate::guest::Activity;

use super::PS;

/// The places at which the spinners of a guest look.
struct Spinners {
    /// Number of the guest's first vCPU.
    first: u32,
    boosts: Boosts,
    /// The vCPU that was kicked last, counted from the first.
    kicked: Option<u32>,
}

pub(super) struct PauseExits {
    pause: Pause,
    tsc_khz: u64,
    /// The present window of each vCPU, in the unit of [`Pause::window`].
    windows: Vec<u64>,
    seen: Vec<Candidate>,
    guests: Vec<Spinners>,
    /// Time that searches took, until it is charged.
    pub(super) spent_ps: u64,
}

impl PauseExits {
    /// vCPUs of guests with these numbers of them; `None` on a host without pause-loop exits.
    pub(super) fn new(host: &Host, tsc_khz: u64, vcpus: &[u32]) -> Option<Self> {
        let pause = host.pause?;
        let count = vcpus.iter().sum::<u32>() as usize;
        let mut first = 0;
        let guests = vcpus.iter().map(|vcpus| {
            first += vcpus;
            Spinners { first: first - vcpus, boosts: Boosts::new(*vcpus), kicked: None }
        });
        Some(Self {
            guests: guests.collect(),
            pause,
            tsc_khz,
            windows: vec![pause.window; count],
            seen: vec![Candidate::default(); count],
            spent_ps: 0,
        })
    }

    /// The limits with which a vCPU is entered. Intel's filter works in ring 0 only.
    pub(super) fn limits(&self, number: u32, ring: u8) -> Option<PauseLimits> {
        let acts = ring == 0 || self.pause.counter == PauseCounter::Pauses;
        acts.then(|| self.pause.limits(self.windows[number as usize], self.tsc_khz))
    }

    /// A vCPU is out of its guest, which was in this ring.
    pub(super) fn exited(&mut self, number: u32, ring: u8) {
        self.seen[number as usize] = Candidate { in_kernel: ring == 0, ..Candidate::default() };
    }

    pub(super) fn preempted(&mut self, number: u32) {
        self.seen[number as usize].preempted = true;
    }

    pub(super) fn woke(&mut self, number: u32) {
        self.seen[number as usize].woken = true;
    }

    /// A vCPU gets a pCPU. `stays`: it was on that one, and no other thread has been since.
    pub(super) fn loaded(&mut self, number: u32, stays: bool) {
        let seen = &mut self.seen[number as usize];
        *seen = Candidate { in_kernel: seen.in_kernel, ..Candidate::default() };
        if !stays {
            self.windows[number as usize] = self.pause.window;
        }
    }

    /// A vCPU of a guest, counted from its first, was kicked.
    pub(super) fn kicked(&mut self, guest: usize, vcpu: u32) {
        self.guests[guest].kicked = Some(vcpu);
    }

    /// A pause loop of vCPU `number` of a guest has exited: it yields to another one. `says` is what a vCPU without a pCPU was doing.
    pub(super) fn spins(
        &mut self,
        guest: usize,
        number: u32,
        says: impl Fn(u32) -> Activity,
        mut yields_to: impl FnMut(u32) -> Yielded,
    ) -> Spun {
        let window = &mut self.windows[number as usize];
        *window = self.pause.wider(*window);
        self.seen[number as usize].in_spin = true;
        let next = self.guests.get(guest + 1).map_or(self.seen.len(), |next| next.first as usize);
        let Spinners { first, boosts, kicked } = &mut self.guests[guest];
        let (first, seen) = (*first, &self.seen[*first as usize..next]);
        let mut yields_to = |id| yields_to(first + id);
        let doing = |activity| (0..seen.len() as u32).filter(|id| says(first + id) == activity).collect();
        let known: Vec<u32> = match self.pause.target {
            Target::RoundRobin => Vec::new(),
            Target::LastKicked => kicked.iter().copied().collect(),
            Target::Holder | Target::OnlyHolder => {
                let holders: Vec<u32> = doing(Activity::Holder);
                if holders.is_empty() { doing(Activity::Head) } else { holders }
            }
        };
        let mut spun = Spun { to: None, looks: 0 };
        for id in known {
            let next = Boosts::yields_to_known(id, seen, &mut yields_to);
            spun = Spun { to: next.to, looks: spun.looks + next.looks };
            if spun.to.is_some() {
                break;
            }
        }
        if spun.to.is_none() && self.pause.target != Target::OnlyHolder {
            let further = boosts.spins(number - first, seen, yields_to);
            spun = Spun { to: further.to, looks: spun.looks + further.looks };
        }
        self.spent_ps += u64::from(spun.looks) * self.pause.scan_ns * PS;
        spun
    }
}

#[cfg(test)]
mod tests {
    use haltkick_sim::hosts::presets;
    use haltkick_sim::machine::LongestLoop;

    use super::*;

    fn exits() -> PauseExits {
        PauseExits::new(&presets()[0].host(), 2_500_000, &[2, 3]).unwrap()
    }

    fn idle(_: u32) -> Activity {
        Activity::Other
    }

    fn longest(exits: &PauseExits, number: u32) -> LongestLoop {
        exits.limits(number, 0).unwrap().longest
    }

    #[test]
    fn spinners_yield_to_preempted_vcpus_of_their_own_guest() {
        let mut exits = exits();
        (0..5).for_each(|number| exits.exited(number, 0));
        exits.preempted(0);
        exits.preempted(4);
        let mut tried = Vec::new();
        exits.spins(1, 2, idle, |number| {
            tried.push(number);
            Yielded::To(0)
        });
        assert_eq!(tried, [4]);
        assert_eq!(exits.spent_ps, 2 * 35 * PS, "it looked at 3 and 4");
        exits.loaded(4, false);
        assert_eq!(exits.spins(1, 2, idle, |_| Yielded::To(0)).to, None, "4 runs");
    }

    /// The vCPU of four to which the last one yields. vCPU 1 heads a queue, vCPU 2 holds the lock, and vCPU 0 was kicked.
    fn chosen(target: Target, preempted: &[u32]) -> Option<u32> {
        let mut exits = PauseExits::new(&presets()[0].host(), 2_500_000, &[4]).unwrap();
        exits.pause.target = target;
        (0..4).for_each(|number| exits.exited(number, 0));
        preempted.iter().for_each(|number| exits.preempted(*number));
        exits.kicked(0, 0);
        let says = |number| match number {
            1 => Activity::Head,
            2 => Activity::Holder,
            _ => Activity::Waiter,
        };
        let off = |number| if preempted.contains(&number) { says(number) } else { Activity::Other };
        let mut to = None;
        exits.spins(0, 3, off, |number| {
            to = Some(number);
            Yielded::To(0)
        });
        to
    }

    #[test]
    fn a_target_is_the_holder_the_last_kicked_or_the_next_one() {
        for (target, preempted, expected) in [
            (Target::Holder, &[0, 1, 2][..], Some(2)),
            (Target::Holder, &[0, 1], Some(1)),
            (Target::Holder, &[0], Some(0)),
            (Target::OnlyHolder, &[0, 1], Some(1)),
            (Target::OnlyHolder, &[0], None),
            (Target::LastKicked, &[0, 1, 2], Some(0)),
            (Target::LastKicked, &[1, 2], Some(1)),
            (Target::RoundRobin, &[0, 1, 2], Some(1)),
        ] {
            assert_eq!(chosen(target, preempted), expected, "{target:?} {preempted:?}");
        }
    }

    #[test]
    fn a_window_grows_until_another_thread_ran() {
        let mut exits = exits();
        let first = longest(&exits, 1);
        exits.spins(0, 1, idle, |_| Yielded::NotWaiting);
        let second = longest(&exits, 1);
        assert_ne!(first, second);
        exits.loaded(1, true);
        assert_eq!(longest(&exits, 1), second);
        exits.loaded(1, false);
        assert_eq!(longest(&exits, 1), first);
    }

    #[test]
    fn only_amd_counts_pauses_of_ring_3() {
        let mut exits = exits();
        assert_eq!(exits.limits(0, 3), None);
        exits.pause.counter = PauseCounter::Pauses;
        assert!(exits.limits(0, 3).is_some());
    }
}
