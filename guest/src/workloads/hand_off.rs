//! A token goes round all vCPUs, each of which sleeps until it is its turn: what passing anything on costs where every
//! receiver sleeps. A lock that is strictly first come, first served and halts its waiters can be no faster. With `--hold` each vCPU
//! works before it passes the token on, so that the others sleep longer.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::cpu::percpu::{add, boot, cpu, this};
use crate::cpu::time::{iterations, work};
use crate::image::hot;
use crate::lock::measure::{end_round, is_over};
use crate::lock::registry::workload;
use crate::monitor::hypercall;

hot! {
    /// The vCPU that has the token.
    static TURN: AtomicU32 = AtomicU32::new(0);
}

workload! {
    "030" "hand-off",
        "a token goes round by kick and wait, without a lock, after work for --hold: the cost of any handoff to a sleeper",
        [TAKES_NO_LOCK], [] => run;
}

/// The workload on one vCPU. Passing the token on once counts as one operation.
fn run() {
    let (me, vcpus) = (cpu() as u32, boot().vcpus);
    let next = if me + 1 == vcpus { 0 } else { me + 1 };
    let hold = iterations(boot().hold_ns);
    loop {
        // Relaxed, here and below: a kick that follows the store ends this wait or is latched, and the woken
        // vCPU looks again.
        while TURN.load(Ordering::Relaxed) != me {
            hypercall::wait();
            if is_over() {
                return;
            }
        }
        if !end_round(|| add(&this().results.acquisitions, 1)) {
            return;
        }
        work(hold);
        TURN.store(next, Ordering::Relaxed);
        hypercall::kick(next);
    }
}
