//! A fixed amount of work that all vCPUs share: a free vCPU takes the next job, like the jobs of `make -j`. Where each vCPU has as
//! much from the start, it is one job.

use core::sync::atomic::{AtomicU64, Ordering};

use haltkick_hypercalls::PORT_WORK_DONE;

use crate::cpu::percpu::boot;
use crate::image::hot;
use crate::monitor::hypercall;

/// Sections per job: enough that taking jobs is rare, few enough that no vCPU is left with much at the end.
const JOB: u64 = 8;

hot! {
    static TAKEN: AtomicU64 = AtomicU64::new(0);
    static DONE: AtomicU64 = AtomicU64::new(0);
}

/// The sections of the next job; `None`: all are taken.
pub(crate) fn take() -> Option<u64> {
    // Relaxed: a ticket; what the jobs do is ordered by their locks.
    let first = TAKEN.fetch_add(JOB, Ordering::Relaxed);
    let left = boot().shape.work_sections.saturating_sub(first);
    (left > 0).then_some(left.min(JOB))
}

/// A job of `sections` is done. The vCPU that does the last one says so to the VMM.
pub(crate) fn done(sections: u64) {
    // Relaxed: the sum decides, and it reaches the total once.
    if DONE.fetch_add(sections, Ordering::Relaxed) + sections == boot().shape.work_sections {
        hypercall::out(PORT_WORK_DONE, 0);
    }
}
