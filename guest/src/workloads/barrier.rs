//! A spin barrier: no vCPU goes on before all have come. On overcommitted CPUs it is the classic pathology, for
//! spinning vCPUs keep the CPUs from those that they wait for.
//!
//! A round is `--think` of work and the barrier; one that a vCPU has passed is one operation, `barrier` the time from coming to
//! going on.

use core::hint::spin_loop;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::cpu::percpu::{add, boot, this};
use crate::cpu::time::now;
use crate::image::hot;
use crate::lock::measure::{is_open, is_over};
use crate::lock::registry::workload;
use crate::observe::histogram::record_between;
use crate::work::choice::Choices;

workload! {
    "130" "barrier", "work for --think, then spin until all vCPUs have done so",
        [TAKES_NO_LOCK IS_SHAPED], ["barrier"] => run;
}

/// Slot of the results' times.
const BARRIER: usize = 0;

hot! {
    /// vCPUs that have come, of this round.
    static COME: AtomicU32 = AtomicU32::new(0);
    /// Rounds that are over.
    static ROUNDS: AtomicU32 = AtomicU32::new(0);
}

fn run() {
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
        record_between(BARRIER, come, now());
    }
    !is_over()
}
