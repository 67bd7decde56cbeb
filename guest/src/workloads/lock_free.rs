//! Workloads without a lock: controls, and other things that vCPUs wait for.

use core::hint::spin_loop;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::cpu::percpu::{add, boot, cpu, this};
use crate::cpu::time::{iterations, now, work};
use crate::image::hot;
use crate::lock::measure::{end_round, is_open, is_over};
use crate::lock::registry::workload;
use crate::monitor::hypercall;
use crate::observe::times::record_between;
use crate::traps::mmu;
use crate::work::choice::Choices;

workload! {
    "030" "hand-off",
        "a token goes round by kick and wait, without a lock, after work for --hold: the cost of any handoff to a sleeper",
        [TAKES_NO_LOCK], [] => hand_off;
    "070" "compute", "work for --hold and --think, and take no lock: a control, in which no lock may differ",
        [TAKES_NO_LOCK IDEAL_IS_LOCK_FREE], [] => compute;
    "130" "barrier", "work for --think, then spin until all vCPUs have done so",
        [TAKES_NO_LOCK IS_SHAPED], ["barrier"] => barrier;
    "150" "call-all", "work for --think, then have all other vCPUs drop their cached translations, and wait for them",
        [TAKES_NO_LOCK USES_MEMORY IS_SHAPED], ["call"] => call_all;
}

/// Slot of the results' times: that of a barrier, or of a call.
const WAITED: usize = 0;

hot! {
    /// The vCPU that has the token.
    static TURN: AtomicU32 = AtomicU32::new(0);
    /// vCPUs that have come to the barrier, of this round.
    static COME: AtomicU32 = AtomicU32::new(0);
    /// Rounds of the barrier that are over.
    static ROUNDS: AtomicU32 = AtomicU32::new(0);
}

/// Counts an operation, if that counts. Returns whether there is to be another one.
fn end_operation() -> bool {
    end_round(|| add(&this().results.acquisitions, 1))
}

/// Work that a change to a lock must leave as fast as it is. One round of hold and think is one operation.
fn compute() {
    let round = iterations(boot().hold_ns + boot().think_ns).max(1);
    loop {
        work(round);
        if !end_operation() {
            return;
        }
    }
}

/// A token goes round all vCPUs, each of which sleeps until it is its turn: what passing anything on costs where every
/// receiver sleeps. A lock that is strictly first come, first served and halts its waiters can be no faster. With `--hold` each vCPU
/// works before it passes the token on, so that the others sleep longer. Passing it on once is one operation.
fn hand_off() {
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
        if !end_operation() {
            return;
        }
        work(hold);
        TURN.store(next, Ordering::Relaxed);
        hypercall::kick(next);
    }
}

/// A spin barrier: no vCPU goes on before all have come. On overcommitted CPUs it is the classic pathology, for
/// spinning vCPUs keep the CPUs from those that they wait for.
///
/// A round is `--think` of work and the barrier; one that a vCPU has passed is one operation, `barrier` the time from coming to
/// going on.
fn barrier() {
    let vcpus = boot().vcpus;
    Choices::of_this_vcpu().rounds(|_| pass(vcpus));
}

/// Passes the barrier; `false`: the window has closed, and a missing vCPU may be gone.
fn pass(vcpus: u32) -> bool {
    let come = now();
    // A sign of life for observers: a round may take many slices.
    this().activity.since_tsc.store(come, Ordering::Relaxed);
    // Relaxed: the round cannot end before this vCPU has come.
    let round = ROUNDS.load(Ordering::Relaxed);
    // AcqRel: all that was done before the barrier comes before all that is done after it.
    if COME.fetch_add(1, Ordering::AcqRel) + 1 == vcpus {
        // Relaxed: before the release below, which lets the first of the next round come.
        COME.store(0, Ordering::Relaxed);
        ROUNDS.store(round.wrapping_add(1), Ordering::Release);
    }
    while ROUNDS.load(Ordering::Acquire) == round {
        if is_over() {
            return false;
        }
        spin_loop();
    }
    if is_open() {
        add(&this().results.acquisitions, 1);
        record_between(WAITED, come, now());
    }
    !is_over()
}

/// Synchronous calls to all CPUs, as a TLB shootdown makes them: the caller waits for every other vCPU, those
/// included that have no pCPU.
///
/// A round is `--think` of work and a call, by which every other vCPU drops the translations that it has cached (an NMI, or
/// the VMM's word that it is off its pCPU and will). A call is one operation, `call` the time that it took.
fn call_all() {
    Choices::of_this_vcpu().rounds(|_| {
        let begun = now();
        // A sign of life for observers.
        this().activity.since_tsc.store(begun, Ordering::Relaxed);
        mmu::invalidate_others(0..boot().vcpus as usize, None);
        end_round(|| {
            add(&this().results.acquisitions, 1);
            record_between(WAITED, begun, now());
        })
    });
}
