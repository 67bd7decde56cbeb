//! A token goes round all vCPUs, each of which sleeps until it is its turn: what passing anything on costs where every
//! receiver sleeps. A lock that is strictly first come, first served and halts its waiters can be no faster.

use core::sync::atomic::{AtomicU32, Ordering};

use haltkick_hypercalls::{WINDOW_CLOSED, WINDOW_OPEN};
use haltkick_locks::CachePadded;

use crate::hypercall;
use crate::locks::GuestLock;
use crate::percpu::{add, boot, control, cpu, this};

/// The vCPU that has the token.
static TURN: CachePadded<AtomicU32> = CachePadded::new(AtomicU32::new(0));

/// The workload on one vCPU. Passing the token on once counts as one operation.
pub(crate) fn run<L: GuestLock>() {
    let (me, vcpus) = (cpu() as u32, boot().vcpus);
    let next = if me + 1 == vcpus { 0 } else { me + 1 };
    loop {
        // Relaxed, here and below: a kick that follows the store ends this wait or is latched, and whoever is woken
        // looks again.
        while TURN.load(Ordering::Relaxed) != me {
            hypercall::wait();
            if control().window.load(Ordering::Relaxed) == WINDOW_CLOSED {
                return;
            }
        }
        match control().window.load(Ordering::Relaxed) {
            WINDOW_OPEN => add(&this().results.acquisitions, 1),
            WINDOW_CLOSED => return,
            _ => {}
        }
        TURN.store(next, Ordering::Relaxed);
        hypercall::kick(next);
    }
}
