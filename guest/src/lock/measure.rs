//! One section, with all that is around it: stamps, what the VMM is told, the oracle, the trace, the other half of the grace.
//!
//! Every workload that is made of sections goes through here, and so does every arm: one without a lock differs by the lock
//! alone. What it does for others to see (activity, oracle) it does to lines of the vCPU's own.

use core::sync::atomic::{AtomicU32, Ordering};

use haltkick_hypercalls::{
    Activity, MAX_VCPUS, TIME_HOLD, TIME_UNLOCK, TIME_WAIT, TIMES, WINDOW_CLOSED, WINDOW_OPEN,
};

use crate::cpu::percpu::{add, control, cpu, this};
use crate::cpu::time;
use crate::lock::calls::{self, TryFunction};
use crate::lock::oracle::Watch;
use crate::observe::activity;
use crate::observe::times::{Stamps, record_between};
use crate::observe::trace::Ring;

/// TSC ticks at the edges of a section.
#[derive(Clone, Copy)]
pub(crate) struct Times {
    pub(crate) asked: u64,
    pub(crate) had: u64,
    /// The section was over, the lock still held.
    pub(crate) left: u64,
    pub(crate) released: u64,
}

/// State that a vCPU carries from one section to the next.
pub(crate) struct Sections {
    stamps: Stamps,
    watch: Watch,
    trace: Ring,
    /// Place for its activity: read by the VMM; unread without a lock.
    doing: &'static Activity,
}

/// Activity of a vCPU where there is no lock to hold.
static UNHEARD: [Activity; MAX_VCPUS] = [const { Activity::new() }; MAX_VCPUS];

impl Sections {
    pub(crate) fn of_this_vcpu() -> Self {
        Self::watched_by(Watch::of_this_vcpu())
    }

    pub(crate) fn watched_by(watch: Watch) -> Self {
        Self {
            stamps: Stamps::of_run(),
            watch,
            trace: Ring::of_this_vcpu(),
            doing: if calls::excludes() { &this().activity } else { &UNHEARD[cpu()] },
        }
    }

    /// Does `body` while it holds lock `index`, alone.
    #[inline(always)]
    pub(crate) fn exclusive(&self, index: usize, body: impl FnOnce()) -> Times {
        let asked = self.ask(index);
        // Relaxed: this line is this vCPU's own, and the VMM reads it when the window closes. Readers' waits are not looked at.
        this().activity.awaited_since_tsc.store(asked, Ordering::Relaxed);
        let (mut had, mut left) = (asked, asked);
        calls::with_lock(index, || {
            had = self.stamps.now();
            this().activity.awaited_since_tsc.store(0, Ordering::Relaxed);
            activity::section_entered(self.doing);
            self.watch.enter(index);
            body();
            left = self.stamps.now();
            self.watch.leave(index, left);
        });
        self.release(index, Times { asked, had, left, released: asked })
    }

    /// Does `body` while it holds lock `index`, alone or among readers; it says whether what it read was whole.
    #[inline(always)]
    pub(crate) fn shared(&self, index: usize, body: impl FnOnce() -> bool) -> Times {
        let asked = self.ask(index);
        let (mut had, mut left) = (asked, asked);
        calls::with_read_lock(index, || {
            had = self.stamps.now();
            activity::section_entered(self.doing);
            let whole = body();
            self.watch.reads(index, whole);
            left = self.stamps.now();
        });
        self.release(index, Times { asked, had, left, released: asked })
    }

    /// Does `body` while it holds lock `index` inside another one, which it holds on.
    #[inline(always)]
    pub(crate) fn inner(&self, index: usize, body: impl FnOnce()) {
        let at = &this().activity.lock;
        // Relaxed: as in `ask`.
        let outer = at.load(Ordering::Relaxed);
        at.store(index as u32, Ordering::Relaxed);
        calls::with_lock(index, || self.watched(index, body));
        activity::section_left(self.doing);
        at.store(outer, Ordering::Relaxed);
    }

    /// Does `body` while it holds lock `index`, if `take` gets it at once.
    #[inline(always)]
    pub(crate) fn if_free(&self, index: usize, take: TryFunction, body: impl FnOnce()) -> Option<Times> {
        let asked = self.ask(index);
        let mut had = asked;
        let is_done = calls::with_lock_if_free(index, take, || {
            had = self.stamps.now();
            // Relaxed: as in `ask`.
            self.doing.tried.store(1, Ordering::Relaxed);
            self.watched(index, body);
            self.doing.tried.store(0, Ordering::Relaxed);
        });
        let left = self.stamps.now();
        is_done.then(|| self.release(index, Times { asked, had, left, released: asked }))
    }

    #[inline(always)]
    fn watched(&self, index: usize, body: impl FnOnce()) {
        activity::section_entered(self.doing);
        self.watch.enter(index);
        body();
        self.watch.leave(index, time::now());
    }

    #[inline(always)]
    fn ask(&self, index: usize) -> u64 {
        let activity = &this().activity;
        // Relaxed, here and below: these lines are this vCPU's own; the VMM reads them when it has stopped.
        activity.lock.store(index as u32, Ordering::Relaxed);
        let asked = self.stamps.now();
        activity.since_tsc.store(asked, Ordering::Relaxed);
        asked
    }

    #[inline(always)]
    fn release(&self, index: usize, times: Times) -> Times {
        let released = self.stamps.now();
        activity::section_left(self.doing);
        activity::end_grace();
        self.trace.section(index, times.asked, times.had, released);
        Times { released, ..times }
    }
}

#[inline(always)]
pub(crate) fn count(times: &Times) {
    add(&this().results.acquisitions, 1);
    record_between(TIME_WAIT, times.asked, times.had);
    record_between(TIME_HOLD, times.had, times.left);
    record_between(TIME_UNLOCK, times.left, times.released);
}

/// Slot of the results' times for tries that succeed.
const TRY: usize = 3;

/// Counts a section whose lock was free when it was tried.
pub(crate) fn count_tried(times: &Times) {
    add(&this().results.acquisitions, 1);
    record_between(TRY, times.asked, times.had);
}

/// Slots of the results' times for sections that only read, in workloads that have those.
const READ_WAIT: usize = 3;
const READ_HOLD: usize = 4;
const _: () = assert!(READ_HOLD < TIMES);

/// Counts a section that only read, whose times are its own.
pub(crate) fn count_read(times: &Times) {
    let results = &this().results;
    add(&results.acquisitions, 1);
    add(&results.reads, 1);
    record_between(READ_WAIT, times.asked, times.had);
    record_between(READ_HOLD, times.had, times.left);
}

/// Forgets all that was counted on the calling vCPU, which has not begun its workload.
pub(crate) fn forget() {
    Ring::of_this_vcpu().forget();
    let results = &this().results;
    results.entered.store(0, Ordering::Relaxed);
    results.acquisitions.store(0, Ordering::Relaxed);
    for histogram in &results.times {
        histogram.buckets.iter().for_each(|bucket| bucket.store(0, Ordering::Relaxed));
        histogram.max.store(0, Ordering::Relaxed);
        histogram.sum.store(0, Ordering::Relaxed);
    }
}

/// Whether what happens now counts.
#[inline(always)]
pub(crate) fn is_open() -> bool {
    // Relaxed: a vCPU that sees the window change one round late counts one round more or less.
    control().window.load(Ordering::Relaxed) == WINDOW_OPEN
}

/// Whether the window has closed.
#[inline(always)]
pub(crate) fn is_over() -> bool {
    // Relaxed: polled.
    control().window.load(Ordering::Relaxed) == WINDOW_CLOSED
}

/// Does `operation` until the window closes. Each counts, those before it opens, too.
pub(crate) fn until_closed(mut operation: impl FnMut()) {
    while !is_over() {
        operation();
        add(&this().results.acquisitions, 1);
    }
}

/// Counts a round by `count` if it counts. Returns whether there is to be another one.
#[inline(always)]
pub(crate) fn end_round(count: impl FnOnce()) -> bool {
    end_round_in(&control().window, count)
}

/// [`end_round`] of a loop that has the window at hand.
#[inline(always)]
pub(crate) fn end_round_in(window: &AtomicU32, count: impl FnOnce()) -> bool {
    // Relaxed: as above.
    match window.load(Ordering::Relaxed) {
        WINDOW_OPEN => count(),
        WINDOW_CLOSED => return false,
        _ => {}
    }
    true
}
