//! Activity of this vCPU, as it tells the VMM: for attribution, and as its request not to be descheduled just
//! now.
//!
//! A number of sections, which the workloads count, and what a lock has announced last; [`Activity::among`] says what comes
//! of the two. This vCPU alone writes both, and the VMM reads the outcome when it has stopped.

use core::sync::atomic::Ordering::Relaxed;

use haltkick_hypercalls::{Activity as Line, BootFlags};
use haltkick_locks::Activity;

use crate::cpu::percpu::{boot, this};
use crate::monitor::hypercall;

/// One more critical section of the vCPU that `activity` is of.
#[inline(always)]
pub(crate) fn section_entered(activity: &Line) {
    activity.sections.store(activity.sections.load(Relaxed) + 1, Relaxed);
    activity.state.store(Activity::Holder as u32, Relaxed);
}

#[inline(always)]
pub(crate) fn section_left(activity: &Line) {
    let left = activity.sections.load(Relaxed) - 1;
    activity.sections.store(left, Relaxed);
    activity.state.store(if left == 0 { Activity::Other } else { Activity::Holder } as u32, Relaxed);
}

#[inline(always)]
pub(crate) fn is_in_section() -> bool {
    this().activity.sections.load(Relaxed) != 0
}

/// The other half of the VMM's grace: this vCPU has announced that it left its section. If its slice was over, it
/// goes, and what is left of the grace is given back.
#[inline(always)]
pub(crate) fn end_grace() {
    // Relaxed: the VMM wrote it while this vCPU was stopped.
    let wanted = || this().host.yield_wanted.load(Relaxed) != 0 && !is_in_section();
    if boot().flags.has(BootFlags::GRACE) && wanted() {
        hypercall::yield_to(None);
    }
}

/// Records an activity that a lock announces.
#[inline(always)]
pub(crate) fn announce(announced: Activity) {
    let activity = &this().activity;
    activity.state.store(announced.among(activity.sections.load(Relaxed)) as u32, Relaxed);
}
