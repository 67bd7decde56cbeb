//! One vCPU's books: when it ran, when it was off, what it was doing when it was taken off.
//!
//! Also writes what the guest may know of this: the `preempted` flag, its generation and the stolen time.

use std::sync::atomic::Ordering;

use haltkick_hypercalls::{ACTIVITY_HEAD, ACTIVITY_HOLDER, ACTIVITY_WAITER, VcpuArea};

use crate::clock::WindowTimes;
use crate::outcome::ByActivity;

/// What a vCPU was doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activity {
    Holder,
    Head,
    Waiter,
    Other,
}

impl Activity {
    /// What the vCPU of `area` says it is doing. A guest that lies spoils its own figures.
    pub(crate) fn of(area: &VcpuArea) -> Self {
        match area.activity.state.load(Ordering::Relaxed) {
            ACTIVITY_HOLDER => Self::Holder,
            ACTIVITY_HEAD => Self::Head,
            ACTIVITY_WAITER => Self::Waiter,
            _ => Self::Other,
        }
    }

    /// Its name in records.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Holder => "holder",
            Self::Head => "head",
            Self::Waiter => "waiter",
            Self::Other => "other",
        }
    }
}

impl<T> ByActivity<T> {
    fn of(&mut self, activity: Activity) -> &mut T {
        match activity {
            Activity::Holder => &mut self.holder,
            Activity::Head => &mut self.head,
            Activity::Waiter => &mut self.waiter,
            Activity::Other => &mut self.other,
        }
    }
}

impl ByActivity<u64> {
    /// Adds another vCPU's.
    pub(crate) fn add(&mut self, other: &Self) {
        self.holder += other.holder;
        self.head += other.head;
        self.waiter += other.waiter;
        self.other += other.other;
    }
}

/// Why a vCPU is not on a pCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Off {
    /// Runnable: new, kicked awake, or it gave up its slice.
    Ready,
    /// Taken off while it was running.
    Preempted(Activity),
}

/// The books of one vCPU under the VMM's scheduler.
#[derive(Debug)]
pub(crate) struct Account {
    /// CPU time for the ready queue's order: grows with time on a pCPU, and is moved up after a sleep.
    pub(crate) virtual_ns: u64,
    /// Time on a pCPU, inside the window.
    pub(crate) run_ns: u64,
    /// Time runnable without a pCPU, whole run.
    pub(crate) steal_ns: u64,
    /// Times taken off while running, whole run.
    pub(crate) preemptions: u64,
    /// The same inside the window, by activity.
    pub(crate) preemptions_by: ByActivity<u64>,
    /// How long those were off for, inside the window.
    pub(crate) preempted_ns_by: ByActivity<u64>,
    /// Sleeps, whole run.
    pub(crate) waits: u64,
    /// Kicks received, whole run. Counted by the scheduler, where kicks arrive.
    pub(crate) kicks: u64,
    off: Off,
    since_ns: u64,
}

impl Account {
    /// A vCPU that is ready from `now_ns` on.
    pub(crate) fn new(now_ns: u64) -> Self {
        Self {
            virtual_ns: 0,
            run_ns: 0,
            steal_ns: 0,
            preemptions: 0,
            preemptions_by: ByActivity::default(),
            preempted_ns_by: ByActivity::default(),
            waits: 0,
            kicks: 0,
            off: Off::Ready,
            since_ns: now_ns,
        }
    }

    /// Host time since when the vCPU has been off its pCPU, while it is off.
    pub(crate) fn off_since_ns(&self) -> u64 {
        self.since_ns
    }

    /// Whether it was taken off while it was running.
    pub(crate) fn was_preempted(&self) -> bool {
        matches!(self.off, Off::Preempted(_))
    }

    /// The vCPU gets a pCPU: settles the time off and clears the flag, before the vCPU runs.
    pub(crate) fn resume(&mut self, area: &VcpuArea, window: &WindowTimes, now_ns: u64) {
        self.settle_off(window, now_ns);
        let steal = &area.steal;
        // KVM's protocol: an odd version while the record changes. Release pairs with a reader's loads of the
        // version before and after; `preempted` is a hint and may be seen early.
        let version = steal.version.load(Ordering::Relaxed);
        steal.version.store(version | 1, Ordering::Release);
        steal.steal_ns.store(self.steal_ns, Ordering::Release);
        steal.version.store((version | 1).wrapping_add(1), Ordering::Release);
        steal.preempted.store(0, Ordering::Release);
        self.since_ns = now_ns;
    }

    fn settle_off(&mut self, window: &WindowTimes, now_ns: u64) {
        self.steal_ns += now_ns.saturating_sub(self.since_ns);
        if let Off::Preempted(activity) = self.off {
            *self.preempted_ns_by.of(activity) += window.overlap_ns(self.since_ns, now_ns);
        }
    }

    fn settle_on(&mut self, window: &WindowTimes, now_ns: u64) {
        self.run_ns += window.overlap_ns(self.since_ns, now_ns);
        self.virtual_ns += now_ns.saturating_sub(self.since_ns);
        self.since_ns = now_ns;
    }

    /// The vCPU is taken off while it runs: sets the flag before anybody else gets its pCPU.
    pub(crate) fn preempt(&mut self, area: &VcpuArea, window: &WindowTimes, now_ns: u64) {
        self.settle_on(window, now_ns);
        let activity = Activity::of(area);
        self.off = Off::Preempted(activity);
        self.preemptions += 1;
        if window.contains(now_ns) {
            *self.preemptions_by.of(activity) += 1;
        }
        mark_off(area);
    }

    /// The vCPU gives up its slice but could go on: off its pCPU, so the flag is set, but nobody took it off.
    pub(crate) fn give_up(&mut self, area: &VcpuArea, window: &WindowTimes, now_ns: u64) {
        self.settle_on(window, now_ns);
        self.off = Off::Ready;
        mark_off(area);
    }

    /// The vCPU sleeps. As in KVM, a vCPU that halted is not marked as preempted.
    pub(crate) fn sleep(&mut self, window: &WindowTimes, now_ns: u64) {
        self.settle_on(window, now_ns);
        self.waits += 1;
    }

    /// The vCPU was kicked awake and waits for a pCPU.
    pub(crate) fn wake(&mut self, now_ns: u64) {
        self.off = Off::Ready;
        self.since_ns = now_ns;
    }

    /// The vCPU is done.
    pub(crate) fn leave(&mut self, window: &WindowTimes, now_ns: u64) {
        self.settle_on(window, now_ns);
    }

    /// The run is over while the vCPU is off: settles what it has been off for.
    pub(crate) fn end_while_ready(&mut self, window: &WindowTimes, now_ns: u64) {
        self.settle_off(window, now_ns);
    }
}

/// Sets the flag and moves the generation. The generation first: whoever sees the flag sees it counted.
fn mark_off(area: &VcpuArea) {
    let generation = area.host.generation.load(Ordering::Relaxed);
    area.host.generation.store(generation.wrapping_add(1), Ordering::Release);
    area.steal.preempted.store(1, Ordering::Release);
}
