//! Synchronous calls to all CPUs, as a TLB shootdown makes them: the caller waits for every other vCPU, those
//! included that have no pCPU.
//!
//! A round is `--think` of work and a call, by which every other vCPU drops the translations that it has cached (an NMI, or
//! the VMM's word that it is off its pCPU and will). A call is one operation, `call` the time that it took.

use core::sync::atomic::Ordering;

use crate::cpu::percpu::{add, boot, this};
use crate::cpu::time::now;
use crate::lock::measure::end_round;
use crate::lock::registry::workload;
use crate::observe::histogram::record_between;
use crate::traps::mmu;
use crate::work::choice::Choices;

workload! {
    "150" "call-all", "work for --think, then have all other vCPUs drop their cached translations, and wait for them",
        [TAKES_NO_LOCK USES_MEMORY IS_SHAPED], ["call"] => run;
}

/// Slot of the results' times.
const CALL: usize = 0;

fn run() {
    Choices::of_this_vcpu().rounds(|_| {
        let begun = now();
        // A sign of life for observers.
        this().activity.since_tsc.store(begun, Ordering::Relaxed);
        mmu::invalidate_others(0..boot().vcpus as usize, None);
        end_round(|| {
            add(&this().results.acquisitions, 1);
            record_between(CALL, begun, now());
        })
    });
}
