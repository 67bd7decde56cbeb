//! Under the host's scheduler: what became of the vCPUs at each switch of their threads, from the reports of a BPF
//! program (see `switch_probe`).
//!
//! A vCPU whose thread loses its CPU and could go on has been preempted, while it did what it said at that moment. What
//! the others lose meanwhile is what `loss` says, at the same moments: when the vCPU is back, everybody who waits for
//! its lock has waited since it asked, or since the vCPU left. Those that are off then said so when they left, and
//! those that run are looked at by the program. Descheduling on purpose is not in these books: the thread that does it
//! keeps them.
//!
//! A report may get lost, when it is read too late: then a stay on a pCPU or off it has no beginning or no end, and is
//! left out. How many got lost is counted.

use crate::guest::Activity;
use crate::host::switch_probe::{IN, LOOK, OUT_BLOCKED, OUT_READY, Switch, ThreadDoes, WOKEN};
use crate::observe::trace::What;
use crate::observe::{Where, Whereabouts};
use crate::sched::books::Books;
use crate::sched::loss::{self, Claim, GuestClock, LastLook};
use crate::sched::window::WindowTimes;

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// Not started: not seen yet.
    at: Where,
    since_ns: u64,
    /// Its last report, and the time of reading it.
    said: Switch,
    claim: Option<Claim>,
}

/// Counts of a BPF program's reports on the host's scheduler, whole run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchReports {
    /// Reports that were read.
    pub read: u64,
    /// Reports that were lost because the reader was too late.
    pub dropped: u64,
}

/// The books of all vCPUs of a guest.
#[derive(Debug)]
pub(crate) struct SwitchBooks {
    entries: Vec<Entry>,
    looks: Vec<LastLook>,
    halts_in_kernel: bool,
    /// Preemptions and losses of all vCPUs.
    pub(crate) books: Books,
    /// Per vCPU: times its thread lost its CPU and could have gone on, whole run.
    pub(crate) switched_out_ready: Vec<u64>,
    pub(crate) reports: SwitchReports,
}

impl SwitchBooks {
    /// `halts_in_kernel`: whether vCPUs sleep in KVM's hands.
    pub(crate) fn new(vcpus: u32, locks: u32, halts_in_kernel: bool) -> Self {
        Self {
            entries: vec![Entry::default(); vcpus as usize],
            looks: (0..locks).map(|_| LastLook::default()).collect(),
            halts_in_kernel,
            books: Books::default(),
            switched_out_ready: vec![0; vcpus as usize],
            reports: SwitchReports::default(),
        }
    }

    /// Enters what was seen of a vCPU of a guest with this `clock`; what a trace should say of it.
    pub(crate) fn enter(&mut self, switch: &Switch, clock: GuestClock<'_>) -> Option<What> {
        self.reports.read += 1;
        let vcpu = switch.vcpu as usize;
        // Threads that have left are forgotten: the kernel may make others of what they were.
        if self.entries.get(vcpu).is_none_or(|entry| entry.at == Where::Left) {
            return None;
        }
        match switch.kind {
            OUT_READY | OUT_BLOCKED => self.goes(vcpu, switch, clock.window),
            IN => self.comes(vcpu, switch, clock),
            LOOK => {
                self.entries[vcpu].said = *switch;
                None
            }
            WOKEN => self.wakes(vcpu, switch.at_ns, clock.window),
            _ => None,
        }
    }

    /// Returns the place of `vcpu`, if it is off its pCPU although it could run.
    pub(crate) fn preempted(&self, vcpu: u32) -> Option<Whereabouts> {
        let entry = &self.entries[vcpu as usize];
        matches!(entry.at, Where::Preempted(_))
            .then_some(Whereabouts { at: entry.at, since_ns: Some(entry.since_ns) })
    }

    fn goes(&mut self, vcpu: usize, switch: &Switch, window: &WindowTimes) -> Option<What> {
        let ready = switch.kind == OUT_READY;
        let activity = Activity::said(switch.state);
        self.idle_since(switch);
        let entry = &mut self.entries[vcpu];
        if let Some(claim) = entry.claim.take() {
            claim.settle(switch.entered, &mut self.books.lost_ns_by);
        }
        let does = |what: ThreadDoes| switch.thread_does == what as u32;
        let to = match ready {
            _ if does(ThreadDoes::KeepsOut) => Where::KeptOut(activity),
            true if does(ThreadDoes::Yields) => Where::Ready,
            true => Where::Preempted(activity),
            false if does(ThreadDoes::Left) => Where::Left,
            false if does(ThreadDoes::Waits) || self.halts_in_kernel => Where::Asleep,
            false => Where::Blocked,
        };
        self.switched_out_ready[vcpu] += u64::from(ready);
        (entry.at, entry.since_ns, entry.said) = (to, switch.at_ns, *switch);
        if window.contains(switch.at_ns) {
            match to {
                Where::Preempted(activity) => *self.books.preemptions_by.of(activity) += 1,
                Where::Asleep => self.books.preemptions_by.halted += 1,
                _ => {}
            }
        }
        Some(match to {
            Where::KeptOut(_) => What::Leaves,
            to => What::Stops { to },
        })
    }

    fn comes(&mut self, vcpu: usize, switch: &Switch, clock: GuestClock<'_>) -> Option<What> {
        let idle_since_ns = self.idle_since(switch);
        let Entry { at: was, since_ns, claim, .. } = self.entries[vcpu];
        let off_ns = clock.window.overlap_ns(since_ns, switch.at_ns);
        match was {
            Where::Preempted(activity) => {
                *self.books.preempted_ns_by.of(activity) += off_ns;
                if (switch.lock as usize) < self.looks.len() {
                    let waited_since = |from_ns| self.waited_by_others(from_ns, switch, clock);
                    let (lost_ns, claimed) =
                        loss::on_return(activity, since_ns, idle_since_ns, switch.entered, waited_since);
                    self.books.lost_ns_by.holder += lost_ns;
                    self.entries[vcpu].claim = claimed.or(claim);
                }
            }
            Where::Asleep => self.books.preempted_ns_by.halted += off_ns,
            _ => {}
        }
        let entry = &mut self.entries[vcpu];
        (entry.at, entry.since_ns, entry.said) = (Where::Running, switch.at_ns, *switch);
        Some(match was {
            Where::KeptOut(_) => What::Takes { pcpu: switch.pcpu },
            _ => What::Runs { pcpu: Some(switch.pcpu) },
        })
    }

    fn wakes(&mut self, vcpu: usize, at_ns: u64, window: &WindowTimes) -> Option<What> {
        let entry = &mut self.entries[vcpu];
        match entry.at {
            Where::Asleep => {
                self.books.preempted_ns_by.halted += window.overlap_ns(entry.since_ns, at_ns);
            }
            Where::Blocked => {}
            // It had not gone yet, or is kept out.
            _ => return None,
        }
        (entry.at, entry.since_ns) = (Where::Ready, at_ns);
        Some(What::Wakes)
    }

    /// Looks at the lock that a vCPU says it is at. Returns the time since when it is free, as far as is known; `None`
    /// if it has a holder.
    fn idle_since(&self, switch: &Switch) -> Option<u64> {
        let look = self.looks.get(switch.lock as usize)?;
        look.idle_since(switch.lock_entered, switch.lock_owner, switch.at_ns)
    }

    /// Time that all others have waited for the lock of the vCPU that `switch` has back, from `from_ns` on, inside the window.
    fn waited_by_others(&self, from_ns: u64, switch: &Switch, clock: GuestClock<'_>) -> u64 {
        let wait = |(other, entry): (usize, &Entry)| {
            let waits = matches!(Activity::said(entry.said.state), Activity::Waiter | Activity::Head);
            // One that runs was looked at in the same moment, if it waited.
            let known = match entry.at {
                Where::Running => entry.said.kind == LOOK && entry.said.at_ns == switch.at_ns,
                Where::NotStarted | Where::Left => false,
                _ => true,
            };
            (other != switch.vcpu as usize && waits && known && entry.said.lock == switch.lock)
                .then_some(entry.said.since_tsc)
        };
        let since_tsc = self.entries.iter().enumerate().filter_map(wait);
        clock.waited_ns(since_tsc, from_ns, switch.at_ns)
    }
}

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzed {
    use haltkick_fuzzing::{Script, Target};

    use super::*;
    use crate::host::clock::{Moment, TscRate};

    pub(crate) const TARGET: Target = Target { name: "switches", most_bytes: 1024, seeds: Vec::new, execute };

    const VCPUS: u32 = 4;
    const LOCKS: u32 = 2;
    const WINDOW_NS: [u64; 2] = [1_000, 1_000_000];

    /// Any reports, the kernel's times among them: no vCPU is off for longer than the window, or costs each of the others
    /// more.
    fn execute(bytes: &[u8]) {
        let mut script = Script::new(bytes);
        let window = WindowTimes::between(WINDOW_NS[0], WINDOW_NS[1]);
        let clock = GuestClock {
            now: Moment { ns: script.number().wrapping_mul(16), tsc: script.number() },
            rate: TscRate::of_khz(2_000_000),
            window: &window,
        };
        let mut books = SwitchBooks::new(VCPUS, LOCKS, script.byte() & 1 != 0);
        let mut reports = 0;
        while !script.is_over() {
            _ = books.enter(&switch(&mut script), clock);
            _ = books.preempted(u32::from(script.byte()) % VCPUS);
            reports += 1;
        }
        let SwitchBooks { books, .. } = books;
        let longest_ns = (WINDOW_NS[1] - WINDOW_NS[0]) * reports;
        let (off, lost) = (&books.preempted_ns_by, &books.lost_ns_by);
        for off_ns in [off.holder, off.head, off.waiter, off.halted, off.other] {
            assert!(off_ns <= longest_ns, "{books:?}");
        }
        for lost_ns in [lost.holder, lost.head, lost.waiter] {
            assert!(lost_ns <= longest_ns * u64::from(VCPUS), "{books:?}");
        }
    }

    fn switch(script: &mut Script<'_>) -> Switch {
        Switch {
            at_ns: script.number().wrapping_mul(1_000),
            since_tsc: script.number().wrapping_mul(100),
            entered: script.number(),
            lock_entered: script.number(),
            vcpu: script.number() as u32,
            pcpu: script.number() as u32,
            lock: script.number() as u32,
            lock_owner: script.number() as u32,
            state: script.number() as u32,
            kind: script.number() as u32,
            thread_does: script.number() as u32,
            unused: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use haltkick_hypercalls::{ACTIVITY_HEAD, ACTIVITY_HOLDER, ACTIVITY_OTHER, ACTIVITY_WAITER};

    use super::*;
    use crate::guest::ByActivity;
    use crate::host::clock::{Moment, TscRate};

    struct Run(SwitchBooks);

    impl Run {
        fn new() -> Self {
            Self(SwitchBooks::new(4, 1, false))
        }

        /// vCPU `vcpu` switches at `at_ns`, and says `state`, and that it has waited since `since_ns`.
        fn see(&mut self, at_ns: u64, vcpu: u32, kind: u32, state: u32, since_ns: u64) -> Option<What> {
            self.enter(Switch { at_ns, vcpu, kind, state, since_tsc: since_ns * 2, lock_owner: 1, ..base() })
        }

        /// Enters a report of a guest with a window from 1 us on, and a counter of 2 ticks per nanosecond.
        fn enter(&mut self, switch: Switch) -> Option<What> {
            let window = WindowTimes::between(1_000, 1_000_000);
            let now = Moment { ns: 500_000, tsc: 1_000_000 };
            let clock = GuestClock { now, rate: TscRate::of_khz(2_000_000), window: &window };
            self.0.enter(&switch, clock)
        }

        fn finish(self) -> Books {
            self.0.books
        }
    }

    fn base() -> Switch {
        Switch { lock_entered: 7, ..Switch::default() }
    }

    #[test]
    fn a_holder_costs_the_others_what_they_waited_while_it_was_off() {
        let mut run = Run::new();
        // Off since before the holder went, and waiting since then; off, and waiting since later; off, and not waiting.
        run.see(2_000, 1, OUT_READY, ACTIVITY_WAITER, 1_500);
        run.see(2_500, 3, OUT_READY, ACTIVITY_OTHER, 0);
        let stops = run.see(10_000, 0, OUT_READY, ACTIVITY_HOLDER, 0);
        assert_eq!(stops, Some(What::Stops { to: Where::Preempted(Activity::Holder) }));
        // This one runs when the holder comes back, and waits since 12 us.
        run.see(20_000, 2, LOOK, ACTIVITY_HEAD, 12_000);
        run.0.entries[2].at = Where::Running;
        run.see(20_000, 0, IN, ACTIVITY_HOLDER, 0);
        let switched = run.finish();
        assert_eq!(
            switched.preemptions_by,
            ByActivity { holder: 1, waiter: 1, other: 1, ..ByActivity::default() }
        );
        assert_eq!((switched.preempted_ns_by.holder, switched.lost_ns_by.holder), (10_000, 10_000 + 8_000));
    }

    #[test]
    fn a_running_vcpu_counts_as_waiting_only_if_just_looked_at() {
        let mut run = Run::new();
        run.see(3_000, 1, IN, ACTIVITY_WAITER, 2_000);
        run.see(10_000, 0, OUT_READY, ACTIVITY_HOLDER, 0);
        run.see(15_000, 1, LOOK, ACTIVITY_WAITER, 2_000);
        run.see(20_000, 0, IN, ACTIVITY_HOLDER, 0);
        assert_eq!(run.finish().lost_ns_by.holder, 0);
    }

    #[test]
    fn a_waiter_that_enters_costs_the_time_the_lock_was_free() {
        for (entered, lost) in [(5, 7_000), (4, 0)] {
            let mut run = Run::new();
            run.see(2_000, 1, OUT_READY, ACTIVITY_WAITER, 1_500);
            run.see(10_000, 0, OUT_READY, ACTIVITY_HEAD, 1_500);
            // A look at which a section has just been left.
            run.enter(Switch { at_ns: 13_000, vcpu: 2, kind: OUT_READY, lock_entered: 8, ..base() });
            let waits = Switch { vcpu: 0, state: ACTIVITY_HEAD, entered: 4, lock_entered: 8, ..base() };
            run.enter(Switch { at_ns: 20_000, kind: IN, ..waits });
            run.enter(Switch { at_ns: 30_000, kind: OUT_READY, entered, ..waits });
            assert_eq!(run.finish().lost_ns_by.head, lost);
        }
    }

    #[test]
    fn sleeps_yields_and_descheduling_on_purpose_are_no_preemptions_by_the_host() {
        let mut run = Run::new();
        let does = |at_ns, kind, does: ThreadDoes| Switch { at_ns, kind, thread_does: does as u32, ..base() };
        run.enter(does(2_000, OUT_BLOCKED, ThreadDoes::Waits));
        assert_eq!(run.enter(does(5_000, WOKEN, ThreadDoes::Waits)), Some(What::Wakes));
        run.enter(does(9_000, IN, ThreadDoes::Waits));
        run.enter(does(10_000, OUT_READY, ThreadDoes::Yields));
        run.enter(does(11_000, IN, ThreadDoes::Yields));
        assert_eq!(run.enter(does(12_000, OUT_BLOCKED, ThreadDoes::KeepsOut)), Some(What::Leaves));
        assert_eq!(run.enter(does(13_000, WOKEN, ThreadDoes::KeepsOut)), None);
        run.enter(does(14_000, IN, ThreadDoes::KeepsOut));
        run.enter(does(15_000, OUT_BLOCKED, ThreadDoes::Runs));
        run.enter(does(16_000, OUT_BLOCKED, ThreadDoes::Left));
        // Whatever the kernel does with the thread's memory then.
        run.enter(does(17_000, IN, ThreadDoes::Runs));
        run.enter(does(18_000, OUT_READY, ThreadDoes::Runs));
        let SwitchBooks { books: switched, switched_out_ready, .. } = run.0;
        assert_eq!(switched.preemptions_by, ByActivity { halted: 1, ..ByActivity::default() });
        assert_eq!(switched.preempted_ns_by, ByActivity { halted: 3_000, ..ByActivity::default() });
        // The kernel counts a yield as well.
        assert_eq!(switched_out_ready[0], 1);
    }

    #[test]
    fn nothing_outside_of_the_window_or_without_beginning_is_counted() {
        let mut run = Run::new();
        run.see(400, 0, OUT_READY, ACTIVITY_HOLDER, 0);
        run.see(3_000, 0, IN, ACTIVITY_HOLDER, 0);
        run.see(4_000, 1, IN, ACTIVITY_HOLDER, 0);
        // The report of its return got lost.
        run.see(5_000, 2, OUT_READY, ACTIVITY_HOLDER, 0);
        run.see(9_000, 2, OUT_READY, ACTIVITY_OTHER, 0);
        run.see(9_500, 2, IN, ACTIVITY_OTHER, 0);
        let switched = run.finish();
        assert_eq!(switched.preemptions_by, ByActivity { holder: 1, other: 1, ..ByActivity::default() });
        assert_eq!(
            switched.preempted_ns_by,
            ByActivity { holder: 2_000, other: 500, ..ByActivity::default() }
        );
    }
}
