//! Lock, work, unlock, work: for as long as the VMM lets it.

use core::sync::atomic::Ordering;

use haltkick_hypercalls::{WINDOW_CLOSED, WINDOW_OPEN};

use crate::histogram::record;
use crate::locks::GuestLock;
use crate::percpu::{add, boot, control, cpu, this};
use crate::random::Random;
use crate::time::{iterations, now, work};
use crate::trace::Ring;
use crate::{activity, grace, oracle};

/// The workload on one vCPU. The locks are visited in turn, each vCPU beginning at another one.
pub(crate) fn run<L: GuestLock>() {
    let (hold, think) = (iterations(boot().hold_ns), iterations(boot().think_ns));
    let locks = boot().lock_count as usize;
    let (results, doing, window) = (&this().results, &this().activity, &control().window);
    let excludes = L::excludes();
    let trace = Ring::of_this_vcpu();
    let mut index = cpu() % locks;
    // From the run's seed: vCPUs that begin in step stay in step for long.
    work(Random::of_vcpu().below(think + 1));
    loop {
        let asked = now();
        // Relaxed: this line is this vCPU's own; the VMM reads it when it has stopped.
        doing.lock.store(index as u32, Ordering::Relaxed);
        doing.since_tsc.store(asked, Ordering::Relaxed);
        doing.awaited_since_tsc.store(asked, Ordering::Relaxed);
        let mut had = 0;
        L::section(index, || {
            had = now();
            doing.awaited_since_tsc.store(0, Ordering::Relaxed);
            if excludes {
                activity::section_entered();
                oracle::enter(index);
                work(hold);
                oracle::leave(index);
            } else {
                work(hold);
            }
        });
        let left = now();
        if excludes {
            activity::section_left();
            grace::section_left();
        }
        trace.section(index, asked, had, left);
        // Relaxed: a vCPU that sees the window change one round late counts one round more or less.
        match window.load(Ordering::Relaxed) {
            WINDOW_OPEN => {
                add(&results.acquisitions, 1);
                record(&results.wait, had - asked);
                record(&results.hold, left - had);
            }
            WINDOW_CLOSED => return,
            _ => {}
        }
        work(think);
        index += 1;
        if index == locks {
            index = 0;
        }
    }
}
