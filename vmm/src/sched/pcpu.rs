//! State of one runner: its pCPU's timers, and the ends of the turn that is on it.
//!
//! In its grace (`--grace`) a vCPU whose slice ends while it holds a lock may run a little longer, once in a turn, to leave its
//! section. The time that it runs beyond the slice is charged to its next one. So a vCPU that always claims to hold a lock gains nothing.

use std::sync::atomic::Ordering;

use crate::guest::Activity;
use crate::host::clock::Clock;
use crate::host::signal::Thread;
use crate::observe::notes::Observer;
use crate::sched::deschedule::Injector;
use crate::sched::quota::Portion;
use crate::sched::slice::SliceTimer;
use crate::sched::task::Task;

/// When to look whether the vCPU on a pCPU has halted.
struct Look {
    began_ns: u64,
    at_ns: u64,
}

pub(super) struct Pcpu<'a> {
    pub(super) number: u32,
    /// The thread that runs its vCPUs; `None` on a simulated machine.
    pub(super) thread: Option<Thread>,
    pub(super) slice: SliceTimer,
    injector: Option<Injector>,
    /// While the turn is in its grace: since when.
    pub(super) grace: Option<u64>,
    /// The portion of its guest's quota that the turn has taken.
    pub(super) portion: Option<Portion>,
    look: Option<Look>,
    pub(super) observer: Observer<'a>,
}

impl<'a> Pcpu<'a> {
    pub(super) fn new(
        number: u32,
        thread: Option<Thread>,
        slice: SliceTimer,
        injector: Option<Injector>,
        observer: Observer<'a>,
    ) -> Self {
        Self { number, thread, slice, injector, grace: None, portion: None, look: None, observer }
    }

    /// A turn begins. Whether a timer was set for it.
    pub(super) fn begin(&mut self, now_ns: u64, debt_ns: u64, first_look_ns: Option<u64>) -> bool {
        let was_set = self.slice.begin(now_ns, debt_ns);
        self.look = first_look_ns.map(|look_ns| Look { began_ns: now_ns, at_ns: now_ns + look_ns });
        self.set_alarm() || was_set
    }

    /// Tells the guest of `task`, whose turn it is at `now_ns`, when the slice ends that began, or went on.
    pub(super) fn publish_slice_end(&self, task: &Task<'_>, clock: &Clock, now_ns: u64) {
        let Some(shared) = &task.guest.shared else { return };
        // A guest is not told of its quota.
        let ends_ns = self.portion.map_or(self.slice.deadline_ns(), |portion| portion.slice_ends_ns);
        let left_ns = ends_ns.saturating_sub(now_ns);
        // Relaxed: a hint, which the vCPU reads once it runs.
        let end_tsc = task.guest.tsc.in_ns(left_ns, clock.tsc());
        shared.area(task.vcpu.id).host.slice_end_tsc.store(end_tsc, Ordering::Relaxed);
    }

    /// The vCPU has not halted.
    pub(super) fn looked(&mut self, now_ns: u64) {
        if let Some(look) = self.look.as_mut().filter(|look| look.at_ns <= now_ns) {
            look.at_ns = now_ns + (now_ns - look.began_ns);
            self.set_alarm();
        }
    }

    /// `task` is out, maybe at a `point`: for how long it is to stay out, if that is what the experiment wants.
    pub(super) fn takes(&mut self, point: Option<u32>, task: &Task<'_>, now_ns: u64) -> Option<u64> {
        let injector = self.injector.as_mut()?;
        let length_ns = injector.takes(point, task.guest.activity_at(point, task.vcpu.id), now_ns);
        if point.is_none() {
            self.set_alarm();
        }
        length_ns
    }

    /// Has the alarm ring for whatever is due within the slice. Whether a timer was set for that.
    pub(super) fn set_alarm(&mut self) -> bool {
        let look_ns = self.look.as_ref().map(|look| look.at_ns);
        let injection_ns = self.injector.as_ref().and_then(Injector::alarm);
        let at_ns = look_ns.into_iter().chain(injection_ns).min();
        at_ns.is_some_and(|at_ns| self.slice.also_at(at_ns))
    }

    /// The slice of the vCPU is over: whether it may run on for `grace_ns`; 0: never. If so, the guest is asked to yield once it has left
    /// its section.
    pub(super) fn grants_grace(&mut self, task: &Task<'_>, grace_ns: u64, now_ns: u64) -> bool {
        let Some(shared) = &task.guest.shared else { return false };
        // Relaxed: the vCPU is stopped.
        let asks = || shared.area(task.vcpu.id).activity.asks_for_no_grace.load(Ordering::Relaxed) == 0;
        if grace_ns == 0
            || self.grace.is_some()
            || task.guest.activity(task.vcpu.id) != Activity::Holder
            || !asks()
        {
            return false;
        }
        self.grace = Some(now_ns);
        self.slice.extend(now_ns + grace_ns);
        // Relaxed: the vCPU is stopped.
        shared.area(task.vcpu.id).host.yield_wanted.store(1, Ordering::Relaxed);
        true
    }

    /// The turn ends, with grace or without: charges what the vCPU ran beyond its slice, `slice_ns` at most. `expired`: it did not leave
    /// its section in time.
    pub(super) fn settle_grace(&mut self, task: &mut Task<'_>, slice_ns: u64, expired: bool, now_ns: u64) {
        let Some(granted_ns) = self.grace.take() else { return };
        if let Some(shared) = &task.guest.shared {
            // Relaxed: the vCPU is stopped.
            shared.area(task.vcpu.id).host.yield_wanted.store(0, Ordering::Relaxed);
        }
        let overrun_ns = now_ns.saturating_sub(granted_ns);
        task.account.turns.debt_ns = overrun_ns.min(slice_ns);
        if task.guest.window.contains(now_ns) {
            let graces = &mut task.account.books.graces;
            graces.granted += 1;
            graces.expired += u64::from(expired);
            graces.overrun_ns += overrun_ns;
        }
    }
}
