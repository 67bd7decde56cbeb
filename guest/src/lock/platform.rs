//! The lock crate's `Platform`, made of hypercalls and shared memory.

use core::hint::spin_loop;
use core::sync::atomic::{AtomicBool, Ordering};

use haltkick_hypercalls::{
    ACTIVITY_HEAD, ACTIVITY_HOLDER, ACTIVITY_OTHER, ACTIVITY_WAITER, BootFlags, MAX_VCPUS, PORT_POINT,
};
use haltkick_locks::{Activity, Event, Platform, Point};

use crate::cpu::{percpu, time};
use crate::monitor::hypercall;
use crate::observe::activity;
use crate::traps::interrupts;

/// Lines for the queue spinlocks' table of sleeping heads: enough for one of each vCPU.
pub(crate) const LINES: usize = MAX_VCPUS;

static KICKS_ARE_LOST: AtomicBool = AtomicBool::new(false);

/// From now on kicks are dropped: for the selftest that shows how a lost wake-up is explained.
pub(crate) fn lose_kicks() {
    KICKS_ARE_LOST.store(true, Ordering::Relaxed);
}

/// This guest, as a lock sees it. An instrumented lock tells the VMM of the points that the run is about.
pub(crate) struct Guest<const INSTRUMENTED: bool = false>;

/// This guest for all that is not instrumented.
pub(crate) const GUEST: Guest = Guest;

impl<const INSTRUMENTED: bool> Platform for Guest<INSTRUMENTED> {
    #[inline(always)]
    fn cpu(&self) -> usize {
        percpu::cpu()
    }

    #[inline(always)]
    fn pause(&self) {
        spin_loop();
    }

    #[inline(always)]
    fn now(&self) -> u64 {
        time::now()
    }

    #[inline(always)]
    fn off_ticks(&self) -> u64 {
        // Relaxed: written before this vCPU got its pCPU.
        percpu::this().host.off_ticks.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn spin_threshold(&self) -> u64 {
        percpu::boot().spin_threshold_ticks
    }

    #[inline(always)]
    fn spin_rounds(&self) -> u32 {
        percpu::boot().spin_rounds
    }

    /// At the default threshold of 20 us this is the limit of Linux, 500 ms; `--spin-threshold` scales it. Never 0: waiters that fail at
    /// once would come back at once.
    #[inline]
    fn lock_limit(&self) -> u64 {
        self.spin_threshold().max(1).saturating_mul(25_000)
    }

    /// A kick after `still` said yes is latched by the VMM, so the sleep cannot miss it (locks.md T1, T11 are the
    /// ways to get this wrong in a kernel that halts).
    #[inline]
    fn wait(&self, still: impl Fn() -> bool) {
        interrupts::held_off(|| {
            if still() {
                hypercall::wait();
            }
        });
    }

    #[inline]
    fn kick(&self, cpu: usize) {
        // Relaxed: set once, by a selftest that loses some kick anyway. The load is negligible next to the
        // exit.
        if !KICKS_ARE_LOST.load(Ordering::Relaxed) {
            hypercall::kick(cpu as u32);
        }
    }

    #[inline(always)]
    fn is_preempted(&self, cpu: usize) -> bool {
        percpu::boot().flags.has(BootFlags::PREEMPTED_HINT) && percpu::is_marked(cpu)
    }

    #[inline(always)]
    fn is_preempted_for_the_record(&self, cpu: usize) -> bool {
        // Relaxed: as above.
        percpu::area(cpu).steal.preempted.load(Ordering::Relaxed) != 0
    }

    #[inline]
    fn ticks(&self, nanoseconds: u64) -> u64 {
        time::ticks(nanoseconds)
    }

    #[inline]
    fn is_overcommitted(&self) -> bool {
        // Relaxed: a hint.
        percpu::control().ready_vcpus.load(Ordering::Relaxed) != 0
    }

    #[inline]
    fn yield_to(&self, cpu: Option<usize>) {
        hypercall::yield_to(cpu.map(|cpu| cpu as u32));
    }

    #[inline(always)]
    fn slice_left(&self) -> u64 {
        // Relaxed: written before this vCPU got its pCPU, or while it was stopped.
        match percpu::this().host.slice_end_tsc.load(Ordering::Relaxed) {
            0 => u64::MAX,
            end => end.saturating_sub(time::now()),
        }
    }

    #[inline(always)]
    fn slice_margin(&self) -> u64 {
        percpu::boot().slice_margin_ticks
    }

    #[inline(always)]
    fn count(&self, event: Event, n: u64) {
        percpu::add(&percpu::this().results.lock_events[event as usize], n);
    }

    #[inline(always)]
    fn is_in_section(&self) -> bool {
        activity::is_in_section()
    }

    #[inline(always)]
    fn section_entered(&self) {
        activity::section_entered(&percpu::this().activity);
    }

    #[inline(always)]
    fn section_left(&self) {
        activity::section_left(&percpu::this().activity);
    }

    #[inline(always)]
    fn announce(&self, activity: Activity) {
        activity::announce(activity);
    }

    #[inline(always)]
    fn point(&self, point: Point) {
        if INSTRUMENTED {
            pass(point as u32, point.activity());
        }
    }
}

/// Passes a point below 64. Announces first: from taking the lock to returning with it, the point knows better than the last
/// announcement.
#[inline]
pub(crate) fn pass(point: u32, activity: Option<Activity>) {
    if percpu::boot().points & 1 << point == 0 {
        return;
    }
    if let Some(activity) = activity {
        activity::announce(activity);
    }
    hypercall::out(PORT_POINT, point);
}

// The two crates number the activities alike, so that announcing one is a store and nothing else.
const _: () = {
    assert!(Activity::Other as u32 == ACTIVITY_OTHER);
    assert!(Activity::Holder as u32 == ACTIVITY_HOLDER);
    assert!(Activity::Waiter as u32 == ACTIVITY_WAITER);
    assert!(Activity::Head as u32 == ACTIVITY_HEAD);
};

/// Number that changes when a vCPU goes off its pCPU or on, as far as the host says.
///
/// The host moves the generation when a vCPU is taken off, and the version when it runs again. Where KVM keeps the record, only the
/// version moves.
pub(crate) fn yield_count(cpu: usize) -> u64 {
    let area = percpu::area(cpu);
    // Relaxed: hints.
    let version = area.steal.version.load(Ordering::Relaxed);
    area.host.generation.load(Ordering::Relaxed).wrapping_add(u64::from(version))
}
